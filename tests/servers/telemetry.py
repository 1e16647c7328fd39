"""A telemetry endpoint: takes events in, keeps each once, and answers by run and by commit.

`python -m tests.servers.telemetry PORT` serves one; tests start `Endpoint` in a thread.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint(ThreadingHTTPServer):
    """The service and what it has been told."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.events: dict[str, dict[str, Any]] = {}
        """By id, in the order of arrival."""
        self.lines: dict[str, bytes] = {}
        self.requests = 0
        self.failing = False
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, body: bytes) -> None:
        for line in body.splitlines():
            event = json.loads(line)
            self.events.setdefault(event["id"], event)
            self.lines.setdefault(event["id"], line)

    def of_run(self, run_id: str) -> list[bytes]:
        ours = [event for event in self.events.values() if event.get("run_id") == run_id]
        return [self.lines[event["id"]] for event in sorted(ours, key=lambda event: event["run_seq"])]

    def of_commit(self, sha: str) -> list[bytes]:
        return [
            self.lines[event["id"]]
            for event in self.events.values()
            if event["event_type"] == "COMMIT_RECORDED" and event["event_data"]["sha"] == sha
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.requests += 1
            failing = self.server.failing
            if self.path == "/events" and not failing:
                self.server.take(body)
        self._answer(503 if failing else 204 if self.path == "/events" else 404, b"")

    def do_GET(self) -> None:
        with self.server.lock:
            match self.path.split("/"):
                case ["", "runs", run_id, "events"]:
                    found = self.server.of_run(run_id)
                case ["", "commits", sha, "events"]:
                    found = self.server.of_commit(sha)
                case _:
                    self._answer(404, b"")
                    return
        self._answer(200, b"".join(line + b"\n" for line in found))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@contextmanager
def serving(port: int = 0) -> Iterator[Endpoint]:
    endpoint = Endpoint(port)
    thread = threading.Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


if __name__ == "__main__":
    Endpoint(int(sys.argv[1])).serve_forever()
