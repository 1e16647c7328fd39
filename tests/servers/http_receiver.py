"""An HTTP server that keeps every request, and answers as it is told to.

In a test, `async with HttpReceiver() as receiver:` in the test's own loop. As a process of its own,
`python -m tests.servers.http_receiver [FILE]` prints its URL, answers 200 to everything, and appends each
request to the file as a line of JSON before it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came in; the names of its headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int = 0
    """Which connection it came by: equal numbers show that one was used again."""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """How to answer one request."""

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    delay: float = 0.0
    cut_after: int | None = None
    """Hang up after so many bytes of the answer; 0 is no answer at all."""

    @classmethod
    def of_json(cls, value: object, status: int = 200, **headers: str) -> Reply:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return cls(
            status=status,
            headers={"Content-Type": "application/json", **named},
            body=msgspec.json.encode(value),
        )

    def encoded(self) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} Said",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        if self.status != 204:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class HttpReceiver:
    """Answers with `replies` in their order, and then always with `otherwise`."""

    def __init__(
        self, *replies: Reply, otherwise: Reply | None = None, record: Callable[[Request], None] | None = None
    ) -> None:
        self.replies = list(replies)
        self.otherwise = otherwise or Reply.of_json({"ok": True})
        self.requests: list[Request] = []
        self._record = record or self.requests.append
        self._numbers = itertools.count(1)
        self._arrival = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def arrival(self) -> None:
        """Until the first request has come."""
        await self._arrival.wait()

    async def forever(self) -> None:
        await self._server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        number = next(self._numbers)
        try:
            while await self._answer(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        """One request; whether the connection stays open."""
        self._record(await read_request(reader, number))
        self._arrival.set()
        reply = self.replies.pop(0) if self.replies else self.otherwise
        if reply.delay:
            await asyncio.sleep(reply.delay)
        content = reply.encoded()
        writer.write(content if reply.cut_after is None else content[: reply.cut_after])
        await writer.drain()
        return reply.cut_after is None


async def read_request(reader: asyncio.StreamReader, number: int) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method=method, path=path, headers=headers, body=body, connection=number)


async def main(path: Path | None) -> None:
    """Until it is killed."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("ab", buffering=0)) if path else None

        def keep(request: Request) -> None:
            if file is not None:
                file.write(msgspec.json.encode(request) + b"\n")

        async with HttpReceiver(record=keep) as receiver:
            print(receiver.url, flush=True)
            await receiver.forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
