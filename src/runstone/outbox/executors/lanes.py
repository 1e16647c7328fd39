"""Connections to many hosts, each a lane of its own; the lane that was used last is used next.

The client's own pool looks at every idle connection before every request, and asks the system about
each. With some dozens of them that costs more than the request. Here only the one that is taken is
looked at.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import TypeAlias

import httpx2

Place: TypeAlias = tuple[str, str, int | None]
"""Scheme, host and port."""


class Lanes(httpx2.AsyncBaseTransport):
    """A transport of many transports with one connection each."""

    def __init__(self, *, most: int, keep_alive: float, proxy: str | None = None) -> None:
        self._keep_alive = keep_alive
        self._proxy = proxy
        self._free = asyncio.Semaphore(most)
        self._next_look = 0.0
        self._trusted: ssl.SSLContext | None = None
        self._idle: dict[Place, deque[tuple[float, httpx2.AsyncHTTPTransport]]] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._wait(request)
        try:
            place = (request.url.scheme, request.url.host, request.url.port)
            lane = await self._take(place)
        except BaseException:
            self._free.release()
            raise
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._put(place, lane)  # without its connection: it opens another for the next request
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Held(response.stream, lambda: self._put(place, lane))
        return response

    async def _wait(self, request: httpx2.Request) -> None:
        """Until there may be one connection more."""
        try:
            async with asyncio.timeout(request.extensions.get("timeout", {}).get("pool")):
                await self._free.acquire()
        except TimeoutError as error:
            raise httpx2.PoolTimeout("every connection is in use", request=request) from error

    async def _take(self, place: Place) -> httpx2.AsyncHTTPTransport:
        """The lane that was used last."""
        if monotonic() >= self._next_look:
            self._next_look = monotonic() + min(self._keep_alive, 1.0)
            await self._close_old()
        idle = self._idle.get(place)
        return idle.pop()[1] if idle else self._new()

    async def _close_old(self) -> None:
        """Closes what nobody has used for long."""
        oldest = monotonic() - self._keep_alive
        for place, idle in list(self._idle.items()):
            while idle and idle[0][0] <= oldest:
                await idle.popleft()[1].aclose()
            if not idle:
                self._idle.pop(place, None)

    def _new(self) -> httpx2.AsyncHTTPTransport:
        self._trusted = self._trusted or httpx2.create_ssl_context(trust_env=False)
        limits = httpx2.Limits(
            max_connections=1, max_keepalive_connections=1, keepalive_expiry=self._keep_alive
        )
        return httpx2.AsyncHTTPTransport(
            verify=self._trusted, trust_env=False, limits=limits, proxy=self._proxy
        )

    def _put(self, place: Place, lane: httpx2.AsyncHTTPTransport) -> None:
        self._idle.setdefault(place, deque()).append((monotonic(), lane))
        self._free.release()

    async def aclose(self) -> None:
        while self._idle:
            _, idle = self._idle.popitem()
            for _, lane in idle:
                await lane.aclose()


class _Held(httpx2.AsyncByteStream):
    """An answer on its way; when it is closed, its lane is free."""

    def __init__(self, stream: httpx2.AsyncByteStream, let_go: Callable[[], None]) -> None:
        self._stream = stream
        self._let_go: Callable[[], None] | None = let_go

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._let_go is not None:
                let_go, self._let_go = self._let_go, None
                let_go()
