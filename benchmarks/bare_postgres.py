"""The bare limit of PostgreSQL: the rows of a store, written by asyncpg with nothing around it.

As many connections as the store's writers have, and the very transactions that the store made: which commits
went together is read from the log. Each is one prepared statement that writes whole rows from arrays, the
fastest shape we know, with every value bound beforehand and every decision made: what is new is inserted,
what is there is updated, what does not change is left alone. It locks nothing first, compares nothing and
tells nobody, yet it writes what the store writes, into the same schema; `compare` shows whether it did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from time import perf_counter
from typing import Any, Final, TypeAlias

import asyncpg
import msgspec

from benchmarks.bare_sqlite import Unequal
from benchmarks.measure import undisturbed
from runstone.core.commit import Commit, StreamWrite
from runstone.core.events import Event
from runstone.core.rows import CHANGING, Row
from runstone.core.run import QueueEntry, Run
from runstone.core.signal import Signal
from runstone.ports.clock import SystemClock
from runstone.stores.postgres.connections import Opener
from runstone.stores.postgres.rows import EVENTS, ROWS, SCHEMA
from runstone.stores.postgres.writer import IN_FLIGHT

EXCEPT: Final = frozenset({"persisted_at", "sequence_number", "transaction_id"})
"""Columns that two writers of the same rows need not agree on."""

_UNCOMPARED: Final = frozenset({"workers"})
"""Leases of workers are nobody's commits: who claims while it leaves may leave its row behind."""

_GIVEN: Final = ", ".join(EVENTS.columns[:-2])
_HEAD: Final = "id, tenant_id, kind, last_seq, head, last_at"
_QUEUE: Final = ROWS[QueueEntry]
_Pack: TypeAlias = Callable[[Any], Sequence[Any]]


class Part(msgspec.Struct, frozen=True):
    """What a statement does to one table, `{rows}` being its parameter."""

    text: str
    shape: str
    pack: _Pack = list

    def numbered(self, number: int) -> str:
        return self.text.replace("{rows}", f"unnest(${number}::{SCHEMA}.{self.shape}[])")


class Transaction(msgspec.Struct, frozen=True):
    """One statement, ready to be sent, and the transactions that have to be durable before it."""

    statement: str
    arguments: Sequence[Any]
    after: Collection[int]


class Taken(msgspec.Struct, frozen=True):
    """How long it took: all of it, and each transaction; and what each of them wrote."""

    seconds: float
    each: Sequence[float]
    batches: Sequence[Sequence[Commit]] = ()


def _insert(table: str, columns: str, given: str | None = None) -> str:
    return f"INSERT INTO {table} ({columns}) SELECT {given or columns} FROM {{rows}}"


def _change(table: str, columns: Sequence[str], key: str) -> str:
    changes = ", ".join(f"{column} = x.{column}" for column in columns)
    return (
        f"UPDATE {table} AS t SET {changes} FROM {{rows}} AS x "
        f"WHERE t.{key} = x.{key} AND t.tenant_id = x.tenant_id"
    )


def _parts() -> Iterator[tuple[str, Part]]:
    streams = f"{SCHEMA}.streams"
    yield "opened", Part(_insert(streams, f"{_HEAD}, fence", f"{_HEAD}, new_fence"), "batch_streams")
    moved = "last_seq = x.last_seq, head = x.head, last_at = x.last_at, fence = x.new_fence"
    yield (
        "moved",
        Part(f"UPDATE {streams} AS t SET {moved} FROM {{rows}} AS x WHERE t.id = x.id", "batch_streams"),
    )
    yield (
        "logged",
        Part(_insert(EVENTS.name, f"{_GIVEN}, persisted_at", f"{_GIVEN}, $1::timestamptz"), "batch_events"),
    )
    for struct, table in ROWS.items():
        if struct is QueueEntry:
            continue
        name = table.name.rpartition(".")[2]
        yield f"new {name}", Part(_insert(table.name, ", ".join(table.columns)), f"batch_{name}", table.pack)
        if CHANGING[struct]:
            columns = ("id", "tenant_id", *CHANGING[struct])
            narrow = struct in (Signal, Run)
            yield (
                f"changed {name}",
                Part(
                    _change(table.name, CHANGING[struct], "id"),
                    f"batch_{name}_changed" if narrow else f"batch_{name}",
                    table.packer(columns) if narrow else table.pack,
                ),
            )
    leased = (*_QUEUE.columns, "owner", "attempts")
    yield "queued", Part(_insert(_QUEUE.name, ", ".join(leased)), "batch_queued")
    requeued = (*CHANGING[QueueEntry], "owner", "attempts")
    yield "requeued", Part(_change(_QUEUE.name, requeued, "run_id"), "batch_requeued")
    gone = f"DELETE FROM {_QUEUE.name} AS t USING {{rows}} AS x WHERE t.run_id = x.id"
    yield "dequeued", Part(gone, "batch_ids")


PARTS: Final = dict(_parts())


class Binder:
    """Turns commits into statements, and remembers what is there already."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._known: set[tuple[type, str]] = set()
        self._queue: dict[str, list[Any]] = {}
        self._last: dict[str, int] = {}
        self._count = 0

    def bind(self, commits: Sequence[Commit]) -> Transaction:
        rows: dict[str, list[Sequence[Any]]] = {name: [] for name in PARTS}
        for commit in commits:
            rows["logged"] += [(0, *_given(event)) for event in commit.events]
            for write in commit.writes:
                rows["moved" if write.expected_seq else "opened"].append(_head(write))
                for row in write.rows:
                    name = self._part(row)
                    rows[name].append((0, *PARTS[name].pack(row)))
                self._add_queue(write, rows)
        parts = tuple(name for name, found in rows.items() if found)
        arguments = [self._now, *(rows[name] for name in parts)]
        return Transaction(_statement(parts), arguments, self._place(commits))

    def _part(self, row: Row) -> str:
        key = (type(row), row.id)  # type: ignore[union-attr]
        name = ROWS[type(row)].name.rpartition(".")[2]
        if key in self._known:
            return f"changed {name}"
        self._known.add(key)
        return f"new {name}"

    def _add_queue(self, write: StreamWrite, rows: Mapping[str, list[Sequence[Any]]]) -> None:
        if not write.queue_changed and write.lease is None:
            return
        run_id = write.stream_id
        before = self._queue.get(run_id)
        if write.queue is None:
            if write.queue_changed and before is not None:
                del self._queue[run_id]
                rows["dequeued"].append((0, run_id))
            return
        leased = (write.lease.owner, write.lease.attempts) if write.lease else None
        after = [*_QUEUE.pack(write.queue), *(leased or (before[-2:] if before else (None, 0)))]
        self._queue[run_id] = after
        if before is None:
            rows["queued"].append((0, *after))
        elif before != after:
            rows["requeued"].append((0, *after[:-2], True, *after[-2:]))

    def _place(self, commits: Sequence[Commit]) -> Collection[int]:
        """The transactions that its streams were in before."""
        streams = [write.stream_id for commit in commits for write in commit.writes]
        after = {self._last[stream] for stream in streams if stream in self._last}
        self._last.update(dict.fromkeys(streams, self._count))
        self._count += 1
        return after


def _statement(parts: Sequence[str]) -> str:
    texts = (f"part{number} AS ({PARTS[name].numbered(number)})" for number, name in enumerate(parts, 2))
    return f"WITH {', '.join(texts)} SELECT 1"


def _given(event: Event) -> list[Any]:
    return EVENTS.pack(event)[:-2]


def _head(write: StreamWrite) -> tuple[Any, ...]:
    return (
        *(0, write.stream_id, write.tenant_id, write.kind, write.expected_seq, write.last_seq),
        *(bytes.fromhex(write.head), write.last_at, write.fence, write.fence + write.raise_fence),
    )


# Writing


async def write_again(
    store: str, bare: str, commits: Collection[Commit], warm: Collection[Commit], writers: int = 1
) -> Taken:
    """What so many writers of the store wrote, once more in another database, in the same transactions.

    Those of the `warm` commits go before and do not count. `Unequal` if both do not hold the same rows then.
    """
    together = await transactions(store, [*warm, *commits])
    binder = Binder(SystemClock().now())
    work = [binder.bind(batch) for batch in together]
    first = {commit.events[0].id for commit in warm}
    begins = sum(batch[0].events[0].id in first for batch in together)
    connections = [await Opener(bare).open() for _ in range(writers * IN_FLIGHT)]
    try:
        prepared = [
            {text: await connection.prepare(text) for text in sorted({each.statement for each in work})}
            for connection in connections
        ]
        await _send(prepared, work, range(begins))
        with undisturbed():
            taken = await _send(prepared, work, range(begins, len(work)))
    finally:
        for connection in connections:
            await connection.close()
    await compare(store, bare)
    return msgspec.structs.replace(taken, batches=together[begins:])


async def insert_alone(bare: str, events: Sequence[Event], warm: int) -> list[float]:
    """Seconds of each of these events, inserted into the log and nowhere else, without the first few."""
    statement = f"WITH one AS ({PARTS['logged'].numbered(2)}) SELECT 1"
    now = SystemClock().now()
    rows = [[(0, *_given(event))] for event in events]
    connection = await Opener(bare).open()
    try:
        prepared = await connection.prepare(statement)
        seconds = []
        with undisturbed():
            for row in rows:
                began = perf_counter()
                await prepared.fetch(now, row)
                seconds.append(perf_counter() - began)
    finally:
        await connection.close()
    return seconds[warm:]


async def _send(lanes: Sequence[Mapping[str, Any]], work: Sequence[Transaction], places: range) -> Taken:
    """Sends transactions in their order, on whichever connection is free."""
    ended = {place: asyncio.Event() for place in places}
    each = [0.0] * len(places)
    waiting = iter(places)

    async def lane(prepared: Mapping[str, Any]) -> None:
        for place in waiting:
            transaction = work[place]
            for other in ended.keys() & transaction.after:
                await ended[other].wait()
            began = perf_counter()
            await prepared[transaction.statement].fetch(*transaction.arguments)
            each[place - places.start] = perf_counter() - began
            ended[place].set()

    began = perf_counter()
    await asyncio.gather(*map(lane, lanes))
    return Taken(perf_counter() - began, each)


async def transactions(store: str, commits: Collection[Commit]) -> list[list[Commit]]:
    """The commits as the store wrote them: those of each transaction, in order."""
    by_first_event = {commit.events[0].id: commit for commit in commits}
    connection = await asyncpg.connect(store)
    try:
        found = await connection.fetch(
            "SELECT e.id::text, e.transaction_id::text FROM runstone.orchestration_events AS e "
            "WHERE e.id = ANY($1::uuid[]) ORDER BY e.transaction_id, e.sequence_number",
            list(by_first_event),
        )
    finally:
        await connection.close()
    return [
        [by_first_event[row[0]] for row in rows] for _, rows in groupby(found, key=lambda row: str(row[1]))
    ]


# Comparing


async def compare(store: str, bare: str) -> None:
    """Whether both databases hold the same rows, but for order and time of writing."""
    ours, theirs = await contents(store), await contents(bare)
    for table in (ours.keys() | theirs.keys()) - _UNCOMPARED:
        if ours.get(table) != theirs.get(table):
            raise Unequal(f"{table}: {ours.get(table)} by the store, {theirs.get(table)} by the bare writer")


async def contents(url: str, without: Collection[str] = EXCEPT) -> dict[str, tuple[int, str]]:
    """For each table, how many rows, and a digest of them all."""
    connection = await asyncpg.connect(url)
    try:
        columns: dict[str, list[str]] = {}
        for table, column in await connection.fetch(
            "SELECT table_name::text, column_name::text FROM information_schema.columns "
            "JOIN information_schema.tables USING (table_schema, table_name) "
            "WHERE table_schema = $1 AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position",
            SCHEMA,
        ):
            columns.setdefault(table, []).extend([] if column in without else [column])
        return {table: await _digest(connection, table, names) for table, names in columns.items()}
    finally:
        await connection.close()


async def _digest(connection: Any, table: str, columns: Sequence[str]) -> tuple[int, str]:
    rows = f"SELECT md5(r::text) AS m FROM (SELECT {', '.join(columns)} FROM {SCHEMA}.{table}) AS r"
    (row,) = await connection.fetch(
        f"SELECT count(*), md5(coalesce(string_agg(m, '' ORDER BY m), '')) FROM ({rows}) AS all_rows"
    )
    return row[0], row[1]
