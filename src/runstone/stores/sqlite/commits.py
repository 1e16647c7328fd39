"""Group commit: many commits, one transaction, and one bad commit fails alone (§STO-13 to §STO-16).

All of it runs on the writer's connection, inside a transaction that the writer opened. The common
case is a handful of statements a batch, whatever its size: one reads the heads, one per table
writes the winners' rows. Each statement runs without Python's lock, so fewer statements also mean
fewer fights over it with the event loop.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from runstone.core.chain import event_bytes
from runstone.core.commit import Commit, StreamWrite
from runstone.core.events import Event
from runstone.core.rows import TABLES
from runstone.core.run import QueueEntry
from runstone.errors import CommitRefused, DuplicateKey, StaleFence, StaleSequence, StoreError
from runstone.ports.store import Committed
from runstone.stores.sql import statements
from runstone.stores.sqlite import reads
from runstone.stores.sqlite.faults import translate
from runstone.stores.sqlite.rows import ENTITIES, EVENTS, STREAMS, Table, chunks, to_micros

Outcome: TypeAlias = Committed | StoreError

ROWS_AT_ONCE: Final = 64

_SQL: Final = statements("sqlite")
_SEQUENCE: Final = EVENTS.columns.index("sequence_number")
_PERSISTED: Final = EVENTS.columns.index("persisted_at")


class _Head:
    __slots__ = ("fence", "last_seq", "tenant_id")

    def __init__(self, tenant_id: str, last_seq: int, fence: int) -> None:
        self.tenant_id = tenant_id
        self.last_seq = last_seq
        self.fence = fence


def apply(connection: sqlite3.Connection, commits: Sequence[Commit], now: int, path: str) -> list[Outcome]:
    """Writes the commits that fit; the outcome of each, in their order."""
    connection.execute("SAVEPOINT batch")
    try:
        outcomes = _apply_together(connection, commits, now)
        connection.execute("RELEASE batch")
        return outcomes
    except sqlite3.IntegrityError as error:
        connection.execute("ROLLBACK TO batch")
        connection.execute("RELEASE batch")
        if len(commits) == 1:
            return [translate(error, path)]
    return [apply(connection, [commit], now, path)[0] for commit in commits]


def _apply_together(connection: sqlite3.Connection, commits: Sequence[Commit], now: int) -> list[Outcome]:
    heads = _heads(connection, commits)
    outcomes: list[Outcome] = []
    winners: list[Commit] = []
    written: dict[tuple[str, int], tuple[Event, ...]] = {}
    for commit in commits:
        refusal = _judge(commit, heads)
        if refusal is None:
            winners.append(commit)
            for write in commit.writes:
                heads[write.stream_id] = _Head(
                    write.tenant_id, write.last_seq, write.fence + write.raise_fence
                )
                written[write.stream_id, write.last_seq] = write.events
            outcomes.append(Committed())
        elif all(_landed(connection, write, written) for write in commit.writes):
            outcomes.append(Committed(repeated=True))
        else:
            outcomes.append(refusal)
    if winners:
        _write(connection, winners, now)
    return outcomes


def _heads(connection: sqlite3.Connection, commits: Sequence[Commit]) -> dict[str, _Head]:
    ids = json.dumps([write.stream_id for commit in commits for write in commit.writes])
    (found,) = connection.execute(_SQL["heads"], {"stream_ids": ids}).fetchone()
    return {stream_id: _Head(*rest) for stream_id, *rest in json.loads(found)}


def _judge(commit: Commit, heads: dict[str, _Head]) -> StoreError | None:
    """Why the commit is refused, if it is: a stale fence first, for its writer must not try again."""
    if len({write.tenant_id for write in commit.writes}) > 1:
        return CommitRefused("A commit belongs to one tenant")
    stale: StoreError | None = None
    for write in commit.writes:
        head = heads.get(write.stream_id)
        if head is not None and head.tenant_id != write.tenant_id:
            return DuplicateKey(f"stream {write.stream_id}")
        last_seq, fence = (head.last_seq, head.fence) if head else (0, 0)
        if fence != write.fence:
            return StaleFence(write.stream_id, write.fence, fence)
        if last_seq != write.expected_seq:
            stale = stale or StaleSequence(write.stream_id, write.expected_seq, last_seq)
    return stale


def _landed(
    connection: sqlite3.Connection, write: StreamWrite, written: dict[tuple[str, int], tuple[Event, ...]]
) -> bool:
    """Whether this very write, event for event, is in the log or in this batch already."""
    place = (write.stream_id, write.last_seq)
    if place in written:
        return written[place] == write.events
    count = len(write.events)
    found = reads.fetch(connection, write.tenant_id, write.stream_id, write.last_seq - count, count)
    return list(map(event_bytes, found)) == list(map(event_bytes, write.events))


def _write(connection: sqlite3.Connection, winners: Sequence[Commit], now: int) -> None:
    writes = [write for commit in winners for write in commit.writes]
    insert(connection, STREAMS, [_head_row(write) for write in writes], replace=True)
    insert(connection, EVENTS, [_event_row(event, now) for commit in winners for event in commit.events])
    by_table: dict[type, list[list[Any]]] = {struct: [] for struct in TABLES}
    for write in writes:
        for row in write.rows:
            by_table[type(row)].append(ENTITIES[type(row)].pack(row))
        if write.queue is not None and write.queue_changed:
            by_table[QueueEntry].append(ENTITIES[QueueEntry].pack(write.queue))
    for struct, rows in by_table.items():
        insert(connection, ENTITIES[struct], rows, replace=True)
    for write in writes:
        if write.queue is None and write.queue_changed:
            connection.execute(_SQL["dequeue"], {"run_id": write.stream_id})
        elif write.lease is not None:
            lease = {"run_id": write.stream_id, "owner": write.lease.owner, "attempts": write.lease.attempts}
            connection.execute(_SQL["set_lease"], lease)


def _head_row(write: StreamWrite) -> list[Any]:
    return [
        write.stream_id,
        write.tenant_id,
        write.kind,
        write.last_seq,
        write.head,
        to_micros(write.last_at),
        write.fence + write.raise_fence,
    ]


def _event_row(event: Event, now: int) -> list[Any]:
    values = EVENTS.pack(event)
    values[_SEQUENCE] = None
    values[_PERSISTED] = now
    return values


def insert(
    connection: sqlite3.Connection, table: Table[Any], rows: Sequence[list[Any]], *, replace: bool = False
) -> None:
    """Writes rows, many to a statement."""
    for chunk in chunks(rows, ROWS_AT_ONCE):
        statement = table.upsert(len(chunk)) if replace else table.insert(len(chunk))
        connection.execute(statement, [value for row in chunk for value in row])
