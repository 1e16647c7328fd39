"""One exchange over HTTP: bounded in time and size, no redirects, no cookies, and clear failures.

The executors that speak HTTP share it, and may share one client with its pool of connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec

from runstone.outbox.executors.failures import excerpt, failed, patience, reason
from runstone.outbox.executors.lanes import Lanes
from runstone.ports.executor import Failed

RETRIED_4XX: Final = frozenset((408, 409, 425, 429))
"""Client errors that may be over the next time (§OUT-15)."""

_LONGEST_WAIT: Final = timedelta(days=365)
_PRINTABLE: Final = "!#$%&'()*+,-./:;<=>?@[]^_`{|}~ "


class WireConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to speak HTTP. Times are in seconds."""

    connect_timeout: float = 10.0
    read_timeout: float = 30.0
    """The longest silence."""
    timeout: float = 60.0
    """All of it together."""
    max_response_bytes: int = 100_000
    max_connections: int = 100
    keep_alive: float = 30.0
    """How long a connection is kept that nobody uses."""
    proxy: str | None = None
    """The environment's proxies are not asked."""
    user_agent: str = "runstone"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    content: bytes
    cut_off: bool
    """Whether there was more of it than is read."""

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300


def new_client(config: WireConfig) -> httpx2.AsyncClient:
    """A client with a pool of connections, and no cookies: they would go from one tenant to the next."""
    return httpx2.AsyncClient(
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
        headers=_defaults(config),
        transport=Lanes(most=config.max_connections, keep_alive=config.keep_alive, proxy=config.proxy),
        trust_env=False,
    )


def _defaults(config: WireConfig) -> dict[str, str]:
    return {"user-agent": config.user_agent, "accept": "*/*", "accept-encoding": "identity"}


class Wire:
    """Sends requests. A client that was given is left open at the end; its own is closed."""

    def __init__(self, config: WireConfig, client: httpx2.AsyncClient | None = None) -> None:
        self._config = config
        self._defaults = _defaults(config)
        self._own = client is None
        self._client = client or new_client(config)

    async def exchange(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, within: timedelta
    ) -> Answer | Failed:
        """One request and its answer."""
        seconds = patience(self._config.timeout, within)
        what = f"{method} {shown(url)}"
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(method, url, headers, content, seconds)
        except TimeoutError:
            return _timed_out(f"{what}: no complete answer within {seconds:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return _transport_failure(what, error)

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, seconds: float
    ) -> Answer:
        config = self._config
        timeout = {
            "connect": min(config.connect_timeout, seconds),
            "read": min(config.read_timeout, seconds),
            "write": min(config.read_timeout, seconds),
            "pool": min(config.connect_timeout, seconds),
        }
        given = {name.lower() for name in headers}
        ours = {name: value for name, value in self._defaults.items() if name not in given}
        named = [(name.encode(), value.encode()) for name, value in (ours | dict(headers)).items()]
        request = httpx2.Request(
            method, _parsed(url), headers=named, content=content, extensions={"timeout": timeout}
        )
        response = await self._client.send(request, stream=True)
        try:
            content, cut_off = await self._read(response)
        finally:
            await response.aclose()
        return Answer(
            status=response.status_code,
            phrase=response.reason_phrase,
            headers=response.headers,
            content=content,
            cut_off=cut_off,
        )

    async def _read(self, response: httpx2.Response) -> tuple[bytes, bool]:
        """No more than the bound (§OUT-52); undecoded, for a few compressed bytes can be gigabytes."""
        most = self._config.max_response_bytes
        read = bytearray()
        async for chunk in response.aiter_raw():
            read += chunk
            if len(read) > most:
                return bytes(read[:most]), True
        return bytes(read), False

    async def aclose(self) -> None:
        if self._own:
            await self._client.aclose()


@lru_cache(1024)
def _parsed(url: str) -> httpx2.URL:
    """Parsing costs as much as a tenth of a call, and many calls go to the same place."""
    return httpx2.URL(url)


def shown(url: str) -> str:
    """A URL as it may stand in a message: without its query."""
    return re.split("[?#]", url, maxsplit=1)[0]


def host_of(url: str) -> str:
    """Host and port, as limits and circuits count them."""
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0].lower()


def header_value(key: str) -> str:
    """An idempotency key as a header can carry it; what a header cannot hold is percent-encoded."""
    return quote(key, safe=_PRINTABLE) if key == key.strip() else quote(key)


def refusal(what: str, answer: Answer, now: datetime) -> Failed:
    """An answer that is no success, as a failure (§OUT-15, §OUT-16, §OUT-51)."""
    status = answer.status
    said = f"{what} answered {status} {answer.phrase}".rstrip()
    if 300 <= status < 400:
        where = answer.headers.get("location")
        to = f" to {excerpt(where)}" if where else ""
        return failed(
            "EXTERNAL", "HTTP_REDIRECT", f"{said}{to}: redirects are not followed; call the new address"
        )
    body = excerpt(answer.content)
    return failed(
        "EXTERNAL",
        f"HTTP_{status}",
        f"{said}: {body}" if body else said,
        retryable=status >= 500 or status in RETRIED_4XX,
        target_down=status >= 500,
        retry_after=retry_after(answer.headers.get("retry-after"), now),
    )


def retry_after(value: str | None, now: datetime) -> timedelta | None:
    """How long to wait, from seconds or from a date; nothing if it says neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:12]), _LONGEST_WAIT.total_seconds()))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=now.tzinfo)
    return min(max(moment - now, timedelta(0)), _LONGEST_WAIT)


def _timed_out(message: str) -> Failed:
    return failed("TIMEOUT", "HTTP_TIMEOUT", message, retryable=True, target_down=True)


def _transport_failure(what: str, error: Exception) -> Failed:
    """What failed below HTTP, and whether the other side can have seen the request (§OUT-23)."""
    match error:
        case httpx2.ConnectTimeout():
            return failed(
                "TIMEOUT",
                "CONNECT_TIMEOUT",
                f"{what}: no connection in time",
                retryable=True,
                nothing_sent=True,
                target_down=True,
            )
        case httpx2.ConnectError():
            return failed(
                "EXTERNAL",
                "CONNECT_FAILED",
                f"{what}: no connection: {reason(error)}",
                retryable=True,
                nothing_sent=True,
                target_down=True,
            )
        case httpx2.PoolTimeout():
            return failed(
                "TIMEOUT",
                "NO_FREE_CONNECTION",
                f"{what}: every connection of the pool was in use",
                retryable=True,
                nothing_sent=True,
            )
        case httpx2.TimeoutException():
            return _timed_out(f"{what}: the other side went silent")
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL() | httpx2.LocalProtocolError():
            return failed("VALIDATION", "INVALID_REQUEST", f"{what}: {reason(error)}", nothing_sent=True)
        case _:
            return failed(
                "EXTERNAL",
                "CONNECTION_LOST",
                f"{what}: the connection was lost: {reason(error)}",
                retryable=True,
                target_down=True,
            )
