"""A stand-in for GitHub's pull requests: lists, opens and changes them, and refuses a second for a branch.

What it does with the next requests can be told: to fail, or to do as asked and lose the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Server(ThreadingHTTPServer):
    """The service, its pull requests and who asked."""

    daemon_threads = True

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.pulls: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.faults: list[str] = []
        """What becomes of the next requests: "fail", "lose", or nothing special."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, address: str, body: dict[str, Any]) -> tuple[int, Any]:
        place = urlsplit(address)
        match [method, *place.path.strip("/").split("/")]:
            case ["GET", "repos", owner, _, "pulls"]:
                head = parse_qs(place.query)["head"][0]
                return 200, [pull for pull in self.pulls if f"{owner}:{pull['head']}" == head]
            case ["POST", "repos", _, _, "pulls"]:
                if any(pull["head"] == body["head"] for pull in self.pulls):
                    return 422, {"message": "Validation Failed", "errors": ["A pull request already exists"]}
                number = len(self.pulls) + 1
                self.pulls.append(
                    {**body, "number": number, "html_url": f"https://github.test/pull/{number}"}
                )
                return 201, self.pulls[-1]
            case ["PATCH", "repos", _, _, "pulls", number]:
                self.pulls[int(number) - 1].update(body)
                return 200, self.pulls[int(number) - 1]
        return 404, {"message": "Not Found"}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with self.server.lock:
            self.server.asked.append(self.command)
            fault = self.server.faults.pop(0) if self.server.faults else ""
            if self.headers["Authorization"] != f"Bearer {self.server.token}":
                status, answer = 401, {"message": "Bad credentials"}
            elif fault == "fail":
                status, answer = 502, {"message": "Server Error"}
            else:
                status, answer = self.server.answer(self.command, self.path, json.loads(body or b"{}"))
        if fault == "lose":
            self.close_connection = True
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = _serve

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@contextmanager
def serving(token: str) -> Iterator[Server]:
    server = Server(token)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
