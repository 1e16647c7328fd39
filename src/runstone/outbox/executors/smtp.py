"""Connections to one SMTP server: opened when needed, kept for the next mail, closed when in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Literal

import aiosmtplib
import msgspec

from runstone.core.effect_specs import SecretRef


class EmailConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which server takes our mail. Times are in seconds."""

    sender: str
    """Who mail is from that names no sender of its own."""
    host: str = "localhost"
    port: int | None = None
    """The usual one if not given: 587 with `starttls`, 465 with `tls`, 25 with neither."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = None
    password: str | SecretRef | None = None
    ca_file: str | None = None
    """Certificates to trust instead of the machine's own."""
    message_id_domain: str | None = None
    """What stands behind the `@` of a `Message-ID`; the sender's domain if not given."""
    local_hostname: str | None = None
    """The name by which we greet the server; the machine's own if not given."""
    timeout: float = 60.0
    """For one mail, connecting included."""
    max_connections: int = 4
    keep_alive: float = 30.0

    def __repr__(self) -> str:
        return f"EmailConfig(sender={self.sender!r}, host={self.host!r}, security={self.security!r})"

    @property
    def actual_port(self) -> int:
        return self.port or {"starttls": 587, "tls": 465, "none": 25}[self.security]


class Connections:
    """A pool. Whoever borrows a connection has it alone."""

    def __init__(self, config: EmailConfig) -> None:
        self._config = config
        self._idle: list[tuple[float, aiosmtplib.SMTP]] = []
        self._free = asyncio.Semaphore(config.max_connections)
        self._trusted: ssl.SSLContext | None = None

    @asynccontextmanager
    async def borrow(self, password: str | None) -> AsyncIterator[aiosmtplib.SMTP]:
        """A connection that is ready for a mail; after any exception it is not used again."""
        async with self._free:
            client = await self._reuse() or await self._open(password)
            try:
                yield client
            except BaseException:
                client.close()
                raise
            self._idle.append((monotonic(), client))

    async def _reuse(self) -> aiosmtplib.SMTP | None:
        """One that still answers; the server may have hung up since."""
        while self._idle:
            since, client = self._idle.pop()
            if client.is_connected and monotonic() - since < self._config.keep_alive:
                try:
                    await client.rset()
                    return client
                except (aiosmtplib.SMTPException, OSError):
                    pass
                except BaseException:
                    client.close()
                    raise
            client.close()
        return None

    async def _open(self, password: str | None) -> aiosmtplib.SMTP:
        config = self._config
        client = aiosmtplib.SMTP(
            hostname=config.host,
            port=config.actual_port,
            username=config.username,
            password=password,
            local_hostname=config.local_hostname,
            timeout=config.timeout,
            use_tls=config.security == "tls",
            start_tls=config.security == "starttls",
            tls_context=self._context(),
        )
        try:
            await client.connect()
        except BaseException:
            client.close()
            raise
        return client

    def _context(self) -> ssl.SSLContext | None:
        if self._config.security != "none" and self._trusted is None:
            self._trusted = ssl.create_default_context(cafile=self._config.ca_file)
        return self._trusted

    async def aclose(self) -> None:
        while self._idle:
            _, client = self._idle.pop()
            with contextlib.suppress(aiosmtplib.SMTPException, OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await client.quit()
            client.close()
