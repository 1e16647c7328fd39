"""Tells a local HTTP endpoint of events, and asks it by run and by commit.

    POST {url}/events                 events as NDJSON; one that is known already changes nothing
    GET  {url}/runs/{run_id}/events   the events of a run, in their order
    GET  {url}/commits/{sha}/events   the COMMIT_RECORDED events of a commit: which runs made it

A thread of its own sends what a bounded queue holds. An endpoint that is slow or down is tried again
while the process lives, loses the oldest events when the queue is full, and never holds a run up.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from typing import Final

from runstone.core import codec
from runstone.core.chain import event_bytes
from runstone.core.events import Event
from runstone.errors import RunstoneError, SettingsInvalid

QUEUE: Final = 10_000
BATCH: Final = 200
TIMEOUT: Final = 5.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

_LATE: Final = 0.5
"""Seconds beyond its grace for which a request under way is waited for."""

_LOG: Final = logging.getLogger("runstone.telemetry")
_FAILURES: Final = (OSError, http.client.HTTPException, ValueError)
"""What a request may raise: the network's errors, HTTP's, and those of an answer that makes no sense."""


class HttpTelemetry:
    """Tells an endpoint. `close` waits `grace` seconds for what is left."""

    def __init__(self, url: str, *, grace: float = 2.0, queue: int = QUEUE, timeout: float = TIMEOUT) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsInvalid(f"{url!r} is no telemetry endpoint: give an http:// or https:// address")
        self.url = url.rstrip("/")
        self.lost = 0
        """How many events nobody took."""
        self._grace = grace
        self._timeout = timeout
        self._most = queue
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closing_at: float | None = None
        self._down = False
        self._in_hand = 0
        """How many events are on their way."""
        self._thread = threading.Thread(target=self._send_all, name="runstone-telemetry", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        with self._changed:
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(event)
            self._changed.notify()

    async def close(self) -> None:
        with self._changed:
            self._closing_at = time.monotonic() + self._grace
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, self._grace + _LATE)
        with self._changed:
            self.lost += len(self._waiting) + self._in_hand
            self._waiting.clear()
        if self.lost:
            _LOG.warning("Telemetry: %s did not take %d events; the log has them all", self.url, self.lost)

    # In the thread

    def _send_all(self) -> None:
        pause = FIRST_PAUSE
        while batch := self._next_batch():
            if self._send(batch):
                self._in_hand = 0
                pause = FIRST_PAUSE
                continue
            with self._changed:
                self._in_hand = 0
                self._put_back(batch)
                self._changed.wait(pause)
                if self._is_over():
                    return
            pause = min(2 * pause, LONGEST_PAUSE)

    def _next_batch(self) -> list[Event]:
        """Waits for events; none when there are no more to come."""
        with self._changed:
            while not self._waiting and self._closing_at is None:
                self._changed.wait()
            if self._is_over():
                return []
            self._in_hand = min(BATCH, len(self._waiting))
            return [self._waiting.popleft() for _ in range(self._in_hand)]

    def _is_over(self) -> bool:
        return self._closing_at is not None and time.monotonic() >= self._closing_at

    def _put_back(self, batch: list[Event]) -> None:
        room = max(0, self._most - len(self._waiting))
        self.lost += max(0, len(batch) - room)
        self._waiting.extendleft(reversed(batch[len(batch) - room :] if room < len(batch) else batch))

    def _send(self, batch: list[Event]) -> bool:
        body = b"".join(event_bytes(event) + b"\n" for event in batch)
        try:
            self._ask("/events", body)
        except _FAILURES as error:
            if not self._down:
                _LOG.warning("Telemetry: %s does not answer: %s. The run goes on", self.url, error)
            self._down = True
            return False
        self._down = False
        return True

    # Asking

    def of_run(self, run_id: str) -> list[Event]:
        """The events that the endpoint has of a run, in their order."""
        return self._events(f"/runs/{urllib.parse.quote(run_id, safe='')}/events")

    def of_commit(self, sha: str) -> list[Event]:
        """The records of a commit that the endpoint has: each names its run."""
        return self._events(f"/commits/{urllib.parse.quote(sha, safe='')}/events")

    def _events(self, path: str) -> list[Event]:
        try:
            answer = self._ask(path)
        except _FAILURES as error:
            raise RunstoneError(f"{self.url} cannot be asked: {error}") from error
        return [codec.decode_as(line, Event) for line in answer.splitlines() if line.strip()]

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=body)
        request.add_header("Accept", "application/x-ndjson")
        if body is not None:
            request.add_header("Content-Type", "application/x-ndjson")
        with urllib.request.urlopen(request, timeout=self._timeout) as answer:
            content: bytes = answer.read()
            return content
