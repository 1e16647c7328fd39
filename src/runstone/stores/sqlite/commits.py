"""Group commit: many commits, one transaction, and one bad commit fails alone (§STO-13 to §STO-16).

All of it runs on the writer's connection, inside a transaction that the writer opened. The common
case is a handful of statements a batch, whatever its size: one reads the heads, one per table
writes the winners' rows. Each statement runs without Python's lock, so fewer statements also mean
fewer fights over it with the event loop.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from runstone.core.chain import event_bytes
from runstone.core.commit import Commit, StreamWrite
from runstone.core.events import Event
from runstone.core.rows import Row
from runstone.errors import CommitRefused, DuplicateKey, StaleClaim, StaleFence, StaleSequence, StoreError
from runstone.ports.store import Committed
from runstone.stores.sql import statements
from runstone.stores.sqlite import reads
from runstone.stores.sqlite.faults import translate
from runstone.stores.sqlite.rows import ENTITIES, EVENTS, STREAMS, chunks, to_micros

Outcome: TypeAlias = Committed | StoreError

_SQL: Final = statements("sqlite")
_SEQUENCE: Final = EVENTS.columns.index("sequence_number")
_PERSISTED: Final = EVENTS.columns.index("persisted_at")


class Packed:
    """A commit and its values as they will be bound.

    It is packed in the caller's thread: whatever Python does in the writer's is done twice as slowly,
    for the two take Python's lock from each other.
    """

    __slots__ = ("commit", "events", "heads", "rows")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.heads = [_head_row(write) for write in commit.writes]
        self.events = [_event_row(event) for event in commit.events]
        self.rows: dict[type[Row], list[list[Any]]] = {}
        for write in commit.writes:
            for row in write.rows:
                self._add(row)
            if write.queue is not None and write.queue_changed:
                self._add(write.queue)

    def _add(self, row: Row) -> None:
        struct = type(row)
        self.rows.setdefault(struct, []).append(ENTITIES[struct].pack(row))


class _Head:
    __slots__ = ("fence", "last_seq", "tenant_id")

    def __init__(self, tenant_id: str, last_seq: int, fence: int) -> None:
        self.tenant_id = tenant_id
        self.last_seq = last_seq
        self.fence = fence


def apply(connection: sqlite3.Connection, batch: Sequence[Packed], now: int, path: str) -> list[Outcome]:
    """Writes the commits that fit, each by itself; the outcome of each, in their order."""
    return [_apply_alone(connection, packed, now, path) for packed in batch]


def _apply_alone(connection: sqlite3.Connection, packed: Packed, now: int, path: str) -> Outcome:
    connection.execute("SAVEPOINT alone")
    try:
        (outcome,) = apply_together(connection, [packed], now)
    except sqlite3.IntegrityError as error:
        connection.execute("ROLLBACK TO alone")
        outcome = translate(error, path)
    connection.execute("RELEASE alone")
    return outcome


def apply_together(connection: sqlite3.Connection, batch: Sequence[Packed], now: int) -> list[Outcome]:
    """The same in a handful of statements; `IntegrityError` if the database has something against one."""
    commits = [packed.commit for packed in batch]
    heads = _heads(connection, commits)
    fences = _fences(connection, commits)
    outcomes: list[Outcome] = []
    winners: list[Packed] = []
    written: dict[tuple[str, int], tuple[Event, ...]] = {}
    for packed, commit in zip(batch, commits, strict=True):
        refusal = _judge(commit, heads) or _judge_holds(commit, fences)
        if refusal is None:
            winners.append(packed)
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


def _fences(connection: sqlite3.Connection, commits: Sequence[Commit]) -> dict[str, int]:
    """The fences of the outbox entries that these commits hold; most hold none."""
    ids = [hold.effect_id for commit in commits for write in commit.writes for hold in write.holds]
    if not ids:
        return {}
    (found,) = connection.execute(_SQL["effect_fences"], {"effect_ids": json.dumps(ids)}).fetchone()
    fences: dict[str, int] = json.loads(found)
    return fences


def _judge_holds(commit: Commit, fences: dict[str, int]) -> StoreError | None:
    for write in commit.writes:
        for hold in write.holds:
            if fences.get(hold.effect_id) != hold.fence:
                return StaleClaim(hold.effect_id, hold.fence, fences.get(hold.effect_id))
    return None


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


def _write(connection: sqlite3.Connection, winners: Sequence[Packed], now: int) -> None:
    writes = [write for packed in winners for write in packed.commit.writes]
    execute(connection, STREAMS.write, [head for packed in winners for head in packed.heads])
    events = [event for packed in winners for event in packed.events]
    for event in events:
        event[_PERSISTED] = now
    execute(connection, EVENTS.insert, events)
    for struct, table in ENTITIES.items():
        rows = [packed.rows[struct] for packed in winners if struct in packed.rows]
        if rows:
            execute(connection, table.write, list(chain.from_iterable(rows)))
    gone = dequeued(writes)
    if gone:
        connection.execute(_SQL["dequeue"], {"run_ids": json.dumps(gone)})
    leased = leases(writes)
    if leased:
        connection.execute(_SQL["set_leases"], {"leases": json.dumps(leased)})
    ended = [hold.effect_id for write in writes for hold in write.holds if hold.release]
    if ended:
        connection.execute(_SQL["end_holds"], {"effect_ids": json.dumps(ended)})


def dequeued(writes: Sequence[StreamWrite]) -> list[str]:
    """The runs that leave the queue."""
    return [write.stream_id for write in writes if write.queue_changed and write.queue is None]


def leases(writes: Sequence[StreamWrite]) -> list[tuple[str, str | None, int]]:
    """What becomes of the leases of those that stay: run, owner, attempts."""
    return [
        (write.stream_id, write.lease.owner, write.lease.attempts)
        for write in writes
        if write.lease is not None and not (write.queue_changed and write.queue is None)
    ]


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


def _event_row(event: Event) -> list[Any]:
    values = EVENTS.pack(event)
    values[_SEQUENCE] = None
    return values


def execute(
    connection: sqlite3.Connection, statement: Callable[[int], str], rows: Sequence[list[Any]]
) -> None:
    """Writes rows, many to a statement."""
    for chunk in chunks(rows):
        connection.execute(statement(len(chunk)), list(chain.from_iterable(chunk)))
