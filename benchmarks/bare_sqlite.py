"""The bare limit of SQLite: the rows of a store, written by `sqlite3` with nothing around it.

One thread, one connection, every value bound beforehand. It decides nothing, compares nothing and
tells nobody, yet it writes what the store writes, into the same schema with the same settings;
`contents` shows whether it did.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

from benchmarks.measure import undisturbed
from runstone.core.commit import Commit, StreamWrite
from runstone.core.events import Event
from runstone.core.run import QueueEntry
from runstone.ports.clock import SystemClock
from runstone.stores.sql import statements
from runstone.stores.sqlite.commits import dequeued, leases
from runstone.stores.sqlite.files import open_writer
from runstone.stores.sqlite.rows import EVENTS, ROWS, STREAMS, chunks, to_micros

Transaction: TypeAlias = list[tuple[str, list[list[Any]]]]
"""Statements, and the rows that each is executed with."""

_DEQUEUE: Final = statements("sqlite")["dequeue"].replace(":run_ids", "?")
_LEASE: Final = statements("sqlite")["set_leases"].replace(":leases", "?")
_PERSISTED: Final = EVENTS.columns.index("persisted_at")
_EXCEPT: Final = frozenset({"persisted_at"})
"""Columns that two writers of the same rows need not agree on."""


class Unequal(Exception):
    """The bare writer did not write what the store wrote, so the two cannot be compared."""


def transactions(commits: Sequence[Commit], count: int, now: int, rows_at_once: int = 1) -> list[Transaction]:
    """The commits, in their order, as so many transactions of equal size."""
    bounds = [len(commits) * number // count for number in range(count + 1)]
    return [_transaction(commits[first:last], now, rows_at_once) for first, last in pairwise(bounds)]


def _transaction(commits: Sequence[Commit], now: int, rows_at_once: int) -> Transaction:
    writes = [write for commit in commits for write in commit.writes]
    queued = [write for write in writes if write.queue_changed]
    work = _statements(STREAMS.write, [_head(write) for write in writes], rows_at_once)
    events = [_event(event, now) for commit in commits for event in commit.events]
    work += _statements(EVENTS.insert, events, rows_at_once)
    for struct, table in ROWS.items():
        found = [row for write in writes for row in write.rows if type(row) is struct]
        if struct is QueueEntry:
            found = [write.queue for write in queued if write.queue]
        work += _statements(table.write, [table.pack(row) for row in found], rows_at_once)
    work.append((_DEQUEUE, [[json.dumps(gone)]] if (gone := dequeued(writes)) else []))
    work.append((_LEASE, [[json.dumps(leased)]] if (leased := leases(writes)) else []))
    return work


def _statements(make: Callable[[int], str], rows: list[list[Any]], rows_at_once: int) -> Transaction:
    """One statement for all rows, executed with each; or, if it takes several at once, some statements."""
    if rows_at_once == 1:
        return [(make(1), rows)]
    return [(make(len(chunk)), [list(chain(*chunk))]) for chunk in chunks(rows, rows_at_once)]


def _head(write: StreamWrite) -> list[Any]:
    return [
        write.stream_id,
        write.tenant_id,
        write.kind,
        write.last_seq,
        write.head,
        to_micros(write.last_at),
        write.fence + write.raise_fence,
    ]


def _event(event: Event, now: int) -> list[Any]:
    values = EVENTS.pack(event)
    values[_PERSISTED] = now
    return values


def write(path: Path, work: Iterable[Transaction]) -> list[float]:
    """Writes it all into a new file, each transaction durable before the next; the seconds of each."""
    seconds = []
    with closing(open_writer(str(path))) as connection:
        for transaction in work:
            began = perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in transaction:
                connection.executemany(statement, rows)
            connection.execute("COMMIT")
            seconds.append(perf_counter() - began)
    return seconds


def write_again(store: Path, commits: Sequence[Commit], count: int, rows_at_once: int = 1) -> list[float]:
    """What a store holds, once more beside it, in so many transactions; the seconds of each.

    `Unequal` if the two files do not hold the same rows then.
    """
    bare = store.with_name(f"bare-{rows_at_once}.db")
    work = transactions(commits, count, to_micros(SystemClock().now()), rows_at_once)
    with undisturbed():
        seconds = write(bare, work)
    compare(store, bare)
    return seconds


def compare(store: Path, bare: Path) -> None:
    """Whether both files hold the same rows, but for the time they were persisted at."""
    ours, theirs = contents(store), contents(bare)
    for table in ours.keys() | theirs.keys():
        if ours.get(table) != theirs.get(table):
            raise Unequal(f"{table}: {ours.get(table)} by the store, {theirs.get(table)} by the bare writer")


def contents(path: Path) -> dict[str, tuple[int, str]]:
    """What a file holds: for each table, how many rows, and a digest of them all."""
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return {name: _digest(connection, name) for (name,) in tables.fetchall()}


def _digest(connection: sqlite3.Connection, table: str) -> tuple[int, str]:
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    compared = ", ".join(name for name in columns if name not in _EXCEPT)
    digest, count = sha256(), 0
    for row in connection.execute(f"SELECT {compared} FROM {table} ORDER BY 1"):
        digest.update(repr(row).encode())
        count += 1
    return count, digest.hexdigest()


def in_order(path: Path, commits: Iterable[Commit]) -> list[Commit]:
    """The commits in the order in which a store wrote them."""
    by_first_event = {commit.events[0].id: commit for commit in commits}
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT id FROM orchestration_events ORDER BY sequence_number")
        return [by_first_event[event_id] for (event_id,) in found if event_id in by_first_event]


def count_transactions(path: Path) -> int:
    """How many transactions a store's events came in: each has a time of its own."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT count(DISTINCT persisted_at) FROM orchestration_events")
        return int(found.fetchone()[0])
