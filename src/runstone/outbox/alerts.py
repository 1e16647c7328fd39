"""Tells operators about dead letters: soon, not too often, and never in the dispatcher's way (§OUT-29).

The first of a group (a type of effect and a code of error) goes out at once. Those that follow are
counted and go out as one, when the group's pause is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.ports.clock import Clock

Notify: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Sends a title and a text to the operators."""

PAUSE: Final = timedelta(minutes=5)
WAITING: Final = 1000
SENDING: Final = 30.0
"""How long one alert may take to be sent, in seconds."""

_log = logging.getLogger("runstone.outbox")


@dataclass
class _Group:
    quiet_until: datetime
    count: int = 0
    last: str = ""


class Alerts:
    """A queue of alerts and the task that sends them."""

    def __init__(self, notify: Notify | None, *, clock: Clock, pause: timedelta = PAUSE) -> None:
        self._notify = notify
        self._clock = clock
        self._pause = pause
        self._groups: dict[tuple[str, str], _Group] = {}
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue(WAITING)
        self._sending: asyncio.Task[None] | None = None
        self.dropped = 0
        """Alerts that nobody had time to send."""

    def dead_letter(self, effect: Effect, error: ErrorInfo) -> None:
        """Says that an effect was given up; returns at once."""
        tries = effect.retry_count + 1
        text = (
            f"Effect {effect.id} ({effect.effect_type}) of run {effect.run_id} was given up after "
            f"{tries} {'try' if tries == 1 else 'tries'}: {error.message} ({error.code})"
        )
        _log.error("dead letter: %s", text)
        if self._notify is None:
            return
        name = (effect.effect_type, error.code)
        group = self._groups.get(name)
        if group is None or (group.quiet_until <= self._clock.now() and not group.count):
            self._groups[name] = _Group(self._clock.now() + self._pause)
            self._put(f"Dead letter: {effect.effect_type}", text)
        else:
            group.count += 1
            group.last = text

    def flush(self) -> None:
        """Sends what was held back, of groups whose pause is over; called now and then."""
        now = self._clock.now()
        for name, group in list(self._groups.items()):
            if group.quiet_until > now:
                continue
            if not group.count:
                del self._groups[name]
                continue
            title = f"{group.count} more dead letters: {name[0]}, {name[1]}"
            self._put(title, f"The latest: {group.last}. See `runstone outbox list`.")
            self._groups[name] = _Group(now + self._pause)

    def _put(self, title: str, text: str) -> None:
        try:
            self._queue.put_nowait((title, text))
        except asyncio.QueueFull:
            self.dropped += 1
            return
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        assert self._notify is not None
        while not self._queue.empty():
            title, text = self._queue.get_nowait()
            try:
                async with asyncio.timeout(SENDING):
                    await self._notify(title, text)
            except Exception as error:
                _log.warning("cannot send an alert (%s): %s", title, error)

    async def close(self, deadline: timedelta = timedelta(seconds=5)) -> None:
        """Gives what is under way a little time."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=deadline.total_seconds())
            self._sending.cancel()
