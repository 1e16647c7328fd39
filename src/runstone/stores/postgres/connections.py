"""Connections: how they are opened, what a server has to be like, and a few that are lent out.

A connection is used by one caller at a time and thrown away at the first sign that it is lost. The
server's settings are checked on every one of them: behind the same name there may be another
server than yesterday.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec

from runstone.errors import StoreClosed, StoreUnusable
from runstone.stores.postgres.faults import DRIVER, LOST, translate
from runstone.stores.sql import statements

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

OLDEST: Final = 14_00_00
DURABLE: Final = ("fsync", "full_page_writes", "synchronous_commit")
"""Settings that a server must not have switched off, or what it acknowledges can be lost."""

CONNECT_SECONDS: Final = 10.0
"""How long it may take to open a connection to a host and to look at the server behind it."""

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A minute after the other end is gone, without a word, a connection is taken for lost."""

_SQL: Final = statements("postgres")


def shown(dsn: str) -> str:
    """Where a database is, without user and password, however they are written: fit for messages."""
    rest = dsn.partition("://")[2]
    if re.search("[?#].*=.*@", rest):  # the end of a password, or an option that is one: who knows
        return "postgresql://…"
    place = re.split("[?#]", rest.rpartition("@")[2])[0]
    return f"postgresql://{'localhost' if place[:1] in ('', '/') else ''}{place}"


def one_by_one(dsn: str) -> list[str]:
    """A URL for each of its hosts."""
    if "," not in dsn:
        return [dsn]
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]


async def connect(dsn: str, **options: Any) -> Connection:
    """To the first host that answers and is what the URL asks for. Each has its time: the driver would let
    one that says nothing use up that of all."""
    *others, last = one_by_one(dsn)
    for one in others:
        with suppress(*LOST, asyncpg.CannotConnectNowError):
            return await asyncpg.connect(one, timeout=CONNECT_SECONDS, **options)
    return await asyncpg.connect(last, timeout=CONNECT_SECONDS, **options)


class Opener:
    """Opens connections to one database, and refuses servers that would lose what they acknowledge."""

    def __init__(self, dsn: str, unsafe: Collection[str] = (), api: bool = False) -> None:
        unknown = sorted(set(unsafe) - set(DURABLE))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not among {', '.join(DURABLE)}")
        self.where = shown(dsn)
        self._dsn = dsn
        self._unsafe = frozenset(unsafe)
        self._api = api
        """Whether a user may come who sees no more than the tenant of a transaction."""
        self.epoch = 0
        """The feed's epoch, as the connection that was opened last has found it."""
        self.login: Login | None = None
        """Whose connection that was."""

    async def open(self) -> Connection:
        async with asyncio.timeout(CONNECT_SECONDS * len(one_by_one(self._dsn))):
            return await self._opened()

    async def _opened(self) -> Connection:
        connection = await connect(
            self._dsn,
            statement_cache_size=128,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
        )
        try:
            _keep_alive(connection)
            await connection.execute(_SQL["session"])
            await self._check(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _check(self, connection: Connection) -> None:
        found = await connection.fetchrow(_SQL["server"])
        assert found is not None
        if found["version"] < OLDEST:
            raise StoreUnusable(
                f"{self.where} is PostgreSQL {found['version'] // 10000}: "
                f"Runstone needs {OLDEST // 10000} or later"
            )
        if found["encoding"] != "UTF8":
            raise StoreUnusable(
                f"{self.where} has the encoding {found['encoding']}: create the database with UTF8"
            )
        for name in DURABLE:
            if found[name] == "off" and name not in self._unsafe:
                raise StoreUnusable(
                    f"{self.where} has {name} = off, and would lose what it has acknowledged: switch it on, "
                    f"or, for tests only, name it in `unsafe` (RUNSTONE_UNSAFE={name})"
                )
        if not found["migrated"]:
            raise StoreUnusable(f"{self.where} has no schema of Runstone's: run `runstone db migrate`")
        self.login = await login(connection)
        if not (self._api and self.login.sees_one):
            self.check_sees_all()
        self.epoch = await connection.fetchval(_SQL["epoch"])

    def check_sees_all(self) -> None:
        """Refuses who would take a store for empty that is not (§TEN-28)."""
        if self.login is not None and not self.login.sees_all:
            raise StoreUnusable(f"{self.where}: {self.login.refusal}")


class Login(msgspec.Struct, frozen=True):
    """The user of a connection, and how much row-level security shows to it."""

    name: str
    sees_all: bool
    sees_one: bool
    """The tenant that a transaction has set, as a member of `runstone_api`."""
    member: bool
    """Whether it is in `runstone_engine`, even if it does not inherit what that may see."""

    @property
    def refusal(self) -> str:
        quoted = '"' + self.name.replace('"', '""') + '"'
        if self.member:
            return (
                f"{self.name} is in runstone_engine without its rights and would see nothing: "
                f"GRANT runstone_engine TO {quoted} WITH INHERIT TRUE, "
                f"or before PostgreSQL 16 ALTER ROLE {quoted} INHERIT"
            )
        otherwise = "; as it is, it can only start and send with `connection=`" if self.sees_one else ""
        return (
            f"{self.name} is no member of runstone_engine and would see nothing: "
            f"GRANT runstone_engine TO {quoted}{otherwise}"
        )


async def login(connection: Connection) -> Login:
    found = await connection.fetchrow(_SQL["login"])
    assert found is not None, "everybody is somebody"
    return Login(*found)


def _keep_alive(connection: Connection) -> None:
    """Lets the system notice that nobody is there any more, also while a long question waits."""
    transport = getattr(connection, "_transport", None)  # the driver has no other way to its socket
    end: socket.socket | None = transport.get_extra_info("socket") if transport else None
    if end is not None and end.family in (socket.AF_INET, socket.AF_INET6):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if option := getattr(socket, name, None):  # not every system has them
                end.setsockopt(socket.IPPROTO_TCP, option, value)


class Pool:
    """A few connections, opened when they are needed and lent to one caller at a time."""

    def __init__(self, open_connection: Callable[[], Awaitable[Connection]], most: int) -> None:
        self._open = open_connection
        self._free: list[Connection] = []
        self._turn = asyncio.Semaphore(most)
        self._closed = False

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Connection]:
        """A connection; it is not used again after anything but an answer or an error of the server's."""
        async with self._turn:
            if self._closed:
                raise StoreClosed
            connection = self._take() or await self._open()
            sound = False
            try:
                yield connection
                sound = True
            except asyncpg.PostgresError:
                sound = True
                raise
            finally:
                self._give_back(connection, sound)

    def _take(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        return None

    def _give_back(self, connection: Connection, sound: bool) -> None:
        if sound and not self._closed and not connection.is_closed() and not connection.is_in_transaction():
            self._free.append(connection)
        else:
            connection.terminate()

    async def close(self) -> None:
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            await close(connection)


class Link:
    """A connection for one purpose, opened when it is needed and again when it was lost."""

    def __init__(self, open_connection: Callable[[], Awaitable[Connection]], shapes: str) -> None:
        self._open = open_connection
        self._shapes = shapes
        """A statement by which the driver learns the types that it will need."""
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await self._open()
            try:
                await connection.prepare(self._shapes, timeout=CONNECT_SECONDS)
            except BaseException:
                connection.terminate()
                raise
            self._connection = connection
        return self._connection

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            await close(self._connection)


async def close(connection: Connection) -> None:
    """Says goodbye, if there is somebody to say it to."""
    with suppress(*DRIVER):
        await connection.close(timeout=2)


@asynccontextmanager
async def translated(where: str, *, written: bool = False) -> AsyncIterator[None]:
    """Turns the driver's errors into the port's."""
    try:
        yield
    except DRIVER as error:
        raise translate(error, where, written=written) from error
