"""Group commit: many commits, one transaction, and one bad commit fails alone (§STO-13 to §STO-16).

All of it runs on the writer's connection, inside a transaction that the writer opened. The common
case is a handful of statements a batch, whatever its size: one reads the heads, one per table
writes the winners' rows. Each statement runs without Python's lock, so fewer statements also mean
fewer fights over it with the event loop.

A file has one writer at a time, of all processes. So a batch is made ready before its transaction begins,
on the guess that all of it wins: what is done inside of a transaction, everybody waits for.
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
from runstone.stores.sqlite.rows import EVENTS, ROWS, STREAMS, chunks, to_micros

Outcome: TypeAlias = Committed | StoreError
_Statement: TypeAlias = tuple[str, Any]
"""Its text, and what is bound."""

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
        self.rows.setdefault(struct, []).append(ROWS[struct].pack(row))


class Batch:
    """Commits, and the statements that write the rows of all of them."""

    def __init__(self, commits: Sequence[Packed]) -> None:
        self.commits = commits
        writes = [write for packed in commits for write in packed.commit.writes]
        self.stream_ids = json.dumps([write.stream_id for write in writes])
        self.held = [hold.effect_id for write in writes for hold in write.holds]
        self._events = _statements(EVENTS.insert, [row for packed in commits for row in packed.events])
        self._statements = _statements(STREAMS.write, [row for packed in commits for row in packed.heads])
        self._statements += self._events
        for struct, table in ROWS.items():
            rows = [row for packed in commits if struct in packed.rows for row in packed.rows[struct]]
            self._statements += _statements(table.write, rows)
        ended = [hold.effect_id for write in writes for hold in write.holds if hold.release]
        for name, parameter, values in (
            ("dequeue", "run_ids", dequeued(writes)),
            ("set_leases", "leases", leases(writes)),
            ("end_holds", "effect_ids", ended),
        ):
            if values:
                self._statements.append((_SQL[name], {parameter: json.dumps(values)}))

    def write(self, connection: sqlite3.Connection, now: int) -> None:
        """Writes it all, whether it fits or not."""
        for _, values in self._events:
            values[_PERSISTED :: len(EVENTS.columns)] = [now] * (len(values) // len(EVENTS.columns))
        for statement, bound in self._statements:
            connection.execute(statement, bound)


class _Head:
    __slots__ = ("fence", "last_seq", "tenant_id")

    def __init__(self, tenant_id: str, last_seq: int, fence: int) -> None:
        self.tenant_id = tenant_id
        self.last_seq = last_seq
        self.fence = fence


def apply(connection: sqlite3.Connection, commits: Sequence[Packed], now: int, path: str) -> list[Outcome]:
    """Writes the commits that fit, each by itself; the outcome of each, in their order."""
    return [_apply_alone(connection, packed, now, path) for packed in commits]


def _apply_alone(connection: sqlite3.Connection, packed: Packed, now: int, path: str) -> Outcome:
    connection.execute("SAVEPOINT alone")
    try:
        (outcome,) = apply_together(connection, Batch([packed]), now)
    except sqlite3.IntegrityError as error:
        connection.execute("ROLLBACK TO alone")
        outcome = translate(error, path)
    connection.execute("RELEASE alone")
    return outcome


def apply_together(connection: sqlite3.Connection, batch: Batch, now: int) -> list[Outcome]:
    """The same in a handful of statements; `IntegrityError` if the database has something against one."""
    heads = _heads(connection, batch)
    fences = _fences(connection, batch)
    outcomes: list[Outcome] = []
    winners: list[Packed] = []
    written: dict[tuple[str, int], tuple[Event, ...]] = {}
    for packed in batch.commits:
        commit = packed.commit
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
        (batch if len(winners) == len(batch.commits) else Batch(winners)).write(connection, now)
    return outcomes


def _heads(connection: sqlite3.Connection, batch: Batch) -> dict[str, _Head]:
    (found,) = connection.execute(_SQL["heads"], {"stream_ids": batch.stream_ids}).fetchone()
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


def _fences(connection: sqlite3.Connection, batch: Batch) -> dict[str, int]:
    """The fences of the outbox entries that these commits hold; most hold none."""
    if not batch.held:
        return {}
    (found,) = connection.execute(_SQL["effect_fences"], {"effect_ids": json.dumps(batch.held)}).fetchone()
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
    for text, values in _statements(statement, rows):
        connection.execute(text, values)


def _statements(statement: Callable[[int], str], rows: Sequence[list[Any]]) -> list[_Statement]:
    return [(statement(len(chunk)), list(chain.from_iterable(chunk))) for chunk in chunks(rows)]
