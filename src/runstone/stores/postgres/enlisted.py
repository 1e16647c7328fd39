"""The store inside a transaction of the caller's own: what is written appears or vanishes with it (§STO-55).

Everything goes over the caller's connection, reads too: of a signal that came twice in one transaction nobody
else can know. A commit stands behind a savepoint, so that one that is refused leaves the transaction whole.
Rows go as text, for the caller may have taught the connection another way with JSON or times.

Nobody can be told that a transaction has ended, so its runs are rung for when the server says that it has
committed. As ever that is a hint.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar

from runstone.core.commit import Commit
from runstone.errors import RunstoneError, StoreBusy, StoreError
from runstone.ports.bell import Bell
from runstone.ports.store import Committed
from runstone.stores.postgres import commits
from runstone.stores.postgres.connections import Connection
from runstone.stores.postgres.faults import DRIVER, translate
from runstone.stores.sql import statements

_T = TypeVar("_T")

LOOK_AFTER: Final = 0.005
"""Seconds before the server is first asked what became of a transaction; each time longer."""
LOOK_AT_MOST: Final = 0.25
"""Seconds between two questions. Workers look for themselves as often."""

_SQL: Final = statements("postgres")
_PARAMETER: Final = re.compile(r"(\$\d+)::")


class Transaction:
    """A transaction of the caller's, and what the store does in it."""

    def __init__(self, connection: Connection, where: str, promise: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._where = where
        self._promise = promise

    async def commit(self, commit: Commit, now: datetime) -> Committed:
        """Writes a commit, which is durable when the caller's transaction is; or refuses it, whole."""
        if not self._connection.is_in_transaction():
            raise StoreError(
                "The connection has no transaction open: use `async with connection.transaction():` around it"
            )
        batch = commits.Batch([commit], now)
        try:
            await self._connection.execute(_SQL["begin_part"])
            try:
                statement, arguments = as_text(batch.statement, batch.arguments)
                lost = await self._connection.fetch(statement, *arguments)
                if lost:
                    raise commits.refusal(commit, {row[1]: tuple(row)[2:] for row in lost})
                transaction = await self._connection.fetchval(_SQL["transaction"])
            except BaseException:
                with suppress(*DRIVER):
                    await self._connection.execute(_SQL["undo_part"])
                raise
            await self._connection.execute(_SQL["end_part"])
        except DRIVER as error:
            raise translate(error, self._where) from error
        for write in commit.writes:
            if write.kind == "RUN":
                self._promise(transaction, write.stream_id)
        return Committed()

    async def ask(self, query: Callable[..., Awaitable[_T]], arguments: Sequence[Any]) -> _T:
        """Asks once: what is lost with the connection is lost with the transaction."""
        try:
            return await query(self._connection, *arguments)
        except DRIVER as error:
            raise translate(error, self._where) from error

    async def check_sees_all(self) -> None:
        """A transaction that sees one moment cannot see what took a key since."""
        if await self._connection.fetchval(_SQL["isolation"]) != "read committed":
            raise StoreBusy(
                "Somebody took the key after this transaction began, which sees nothing of it: "
                "roll back and try again"
            )


class Promises:
    """Rings for runs whose transactions are still open, once these have committed."""

    def __init__(self, read: Callable[..., Awaitable[Any]], bell: Bell) -> None:
        self._read = read
        self._bell = bell
        self._runs: dict[str, list[str]] = {}
        self._pause = LOOK_AFTER
        self._task: asyncio.Task[None] | None = None

    def promise(self, transaction: str, run_id: str) -> None:
        self._runs.setdefault(transaction, []).append(run_id)
        self._pause = LOOK_AFTER
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._look())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        while self._runs:
            await asyncio.sleep(self._pause)
            self._pause = min(LOOK_AT_MOST, 2 * self._pause)
            try:
                over = await self._read(ended, list(self._runs))
            except RunstoneError:
                self._runs.clear()
                return
            for transaction, committed in over:
                for run_id in self._runs.pop(transaction):
                    if committed:
                        self._bell.ring(run_id)


async def ended(connection: Connection, transactions: Sequence[str]) -> list[tuple[str, bool]]:
    """Those of these transactions that have ended, and whether by a commit."""
    rows = await connection.fetch(_SQL["ended_transactions"], transactions)
    return [(row["id"], row["status"] == "committed") for row in rows]


# Rows as text


def as_text(statement: str, arguments: Sequence[Any]) -> tuple[str, list[str]]:
    """The same statement and arguments, all of them text: the server reads that by itself."""
    return _PARAMETER.sub(r"\1::text::", statement), [
        _array(argument) if isinstance(argument, list) else _text(argument) for argument in arguments
    ]


def _array(rows: Sequence[Sequence[Any]]) -> str:
    return "{" + ",".join(_quoted(_row(row)) for row in rows) + "}"


def _row(values: Sequence[Any]) -> str:
    return "(" + ",".join("" if value is None else _quoted(_text(value)) for value in values) + ")"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(value)
