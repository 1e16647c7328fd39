"""A TCP proxy that stands for the network between a client and a server, and fails as networks do.

Connections hang in both directions and may go on later, with what was on its way; they are cut; they lose
an answer whose request has arrived; new ones are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from tests.servers.postgres import free_port

CHUNK: Final = 1 << 16


class Connection:
    """A client, a server, and what the network does to what they say."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._ends = (client, server)
        self.flows = asyncio.Event()
        self.flows.set()
        self.loses_answer = False

    def cut(self) -> None:
        """Both ends learn of it at once."""
        for end in self._ends:
            end.transport.abort()


class TcpProxy:
    """`async with TcpProxy(url) as proxy:`, and `proxy.url` leads to the same server."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.port = free_port()
        self.connections: set[Connection] = set()
        self.answers_lost = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        user, at, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    # What networks do

    def cut(self) -> int:
        """Ends every connection; how many."""
        cut = list(self.connections)
        for connection in cut:
            connection.cut()
        return len(cut)

    def refuse(self) -> None:
        """Ends every connection, and all that are opened from now on."""
        self._refuses = True
        self.cut()

    def hang(self) -> None:
        """Nothing arrives any more, on connections that are there and on new ones; nobody is told."""
        self._flows.clear()
        self.half_open()

    def half_open(self) -> int:
        """Nothing arrives any more on connections that are there, though new ones work; how many."""
        for connection in self.connections:
            connection.flows.clear()
        return len(self.connections)

    def lose_answers(self) -> None:
        """Each connection that is there is cut when the server next says something: it has been heard."""
        for connection in self.connections:
            connection.loses_answer = True

    def heal(self) -> None:
        """What was held up arrives, also from clients that have long given up."""
        self._refuses = False
        self._flows.set()
        for connection in self.connections:
            connection.flows.set()

    # Between two ends

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                if not self._refuses:
                    await self._flows.wait()
                    await self._carry(reader, writer)
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _carry(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        connection = Connection(to_client, to_server)
        self.connections.add(connection)
        try:
            asking = asyncio.ensure_future(_pump(from_client, to_server, connection.flows.wait))
            answering = asyncio.ensure_future(_pump(from_server, to_client, lambda: self._answer(connection)))
            try:
                await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
                if asking.done() and not connection.flows.is_set():
                    await answering
            finally:
                asking.cancel()
                answering.cancel()
                await asyncio.gather(asking, answering, return_exceptions=True)
        finally:
            self.connections.discard(connection)
            to_server.transport.abort()

    async def _answer(self, connection: Connection) -> None:
        """Just before an answer is passed on."""
        await connection.flows.wait()
        if connection.loses_answer:
            self.answers_lost += 1
            connection.cut()
            raise ConnectionResetError


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, before: Callable[[], Awaitable[object]]
) -> None:
    """Carries everything one way, until one of the two ends."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            await before()
            writer.write(data)
            await writer.drain()
