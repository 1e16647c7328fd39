"""What the reference store keeps, and the rules by which a commit changes it (§STO-12 to §STO-15)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeVar

from msgspec.structs import replace

from runstone.core import transitions
from runstone.core.chain import portable
from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit, Hold, StreamWrite
from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.events import Event
from runstone.core.rows import NEVER_LESS, RISING, TABLES, Row, row_id
from runstone.core.run import QueueEntry, Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.state import StreamState
from runstone.core.step import Step
from runstone.core.stream import Stream, StreamHead
from runstone.core.tombstone import Tombstone
from runstone.core.toolcall import ToolCall
from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    StaleClaim,
    StaleFence,
    StaleSequence,
    StateTransitionError,
)
from runstone.ports.store import FeedItem, FeedPosition

_Row = TypeVar("_Row", bound=Row)

_MACHINES: Final[dict[type[Row], transitions.Machine]] = {
    Signal: transitions.SIGNAL,
    Run: transitions.RUN,
    Step: transitions.STEP,
    Effect: transitions.EFFECT,
    ToolCall: transitions.TOOL_CALL,
    Schedule: transitions.SCHEDULE,
}


@dataclass
class EffectLease:
    """Who has an outbox entry, and until when nobody else may: beside its row, and no history."""

    owner: str | None = None
    fence: int = 0
    until: datetime | None = None
    claims: int = 0


@dataclass
class MemoryStream:
    """One stream: its head, its events, its rows, and for a run the lease."""

    head: StreamHead
    events: list[Event] = field(default_factory=list)
    by_key: dict[str, Event] = field(default_factory=dict)
    rows: dict[tuple[type[Row], str], Row] = field(default_factory=dict)
    owner: str | None = None
    attempts: int = 0
    effect_leases: dict[str, EffectLease] = field(default_factory=dict)
    folded: StreamState | None = None

    def of(self, kind: type[_Row]) -> list[_Row]:
        """Rows of one kind: steps in the order of their start, others by id."""
        found = [row for row in self.rows.values() if isinstance(row, kind)]
        return sorted(found, key=lambda row: (row.step_index if isinstance(row, Step) else 0, name(row)[1]))

    def all_rows(self) -> list[Row]:
        return [row for kind in TABLES for row in self.of(kind)]

    @property
    def queue(self) -> QueueEntry | None:
        entry = self.rows.get((QueueEntry, self.head.stream_id))
        return entry if isinstance(entry, QueueEntry) else None

    def lease_of(self, effect: Effect) -> EffectLease:
        return self.effect_leases.setdefault(effect.id, EffectLease())

    def state(self) -> StreamState:
        if self.folded is None or self.folded.last_seq != self.head.last_seq:
            self.folded = self.whole().fold()
        return self.folded

    def whole(self, after_seq: int = 0) -> Stream:
        return Stream(head=self.head, events=tuple(self.events[after_seq:]))


@dataclass
class MemoryData:
    """What outlives a store that is closed."""

    streams: dict[str, MemoryStream] = field(default_factory=dict)
    log: list[FeedItem] = field(default_factory=list)
    event_ids: set[str] = field(default_factory=set)
    taken: dict[tuple[str, ...], str] = field(default_factory=dict)
    """What is unique beside events, and the id of the row that has it."""
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    commits: int = 0
    events: int = 0
    """How many there ever were: the last number that was given."""
    workers: dict[str, datetime] = field(default_factory=dict)
    checkpoints: dict[tuple[str, int], Checkpoint] = field(default_factory=dict)

    def end_leases(self) -> None:
        """As if so much time had passed that all of them had run out."""
        self.workers.clear()
        for stream in self.streams.values():
            for lease in stream.effect_leases.values():
                if lease.owner is not None:
                    lease.until = None

    def has(self, event: Event) -> bool:
        stream = self.streams.get(event.stream_id)
        there = stream.by_key.get(event.idempotency_key) if stream else None
        return there is not None and portable(there) == event

    def write(self, commit: Commit, now: datetime) -> None:
        """All checks before the first change: a refusal leaves nothing behind (§STO-13)."""
        if len({write.tenant_id for write in commit.writes}) > 1:
            raise CommitRefused("A commit belongs to one tenant")
        for write in commit.writes:
            self._check_head(write)
            self._check_tombstone(write)
            self._check_rows(write)
        self._check_events(commit.events)
        for write in commit.writes:
            self._check_holds(write)
        self.taken |= self._check_keys(row for write in commit.writes for row in write.rows)
        self.commits += 1
        for write in commit.writes:
            self._apply(write)
        for event in commit.events:
            self._store(self.streams[event.stream_id], event, now)

    def _check_head(self, write: StreamWrite) -> None:
        stream = self.streams.get(write.stream_id)
        if stream is not None and stream.head.tenant_id != write.tenant_id:
            raise DuplicateKey(f"stream {write.stream_id}")
        last_seq, fence = (stream.head.last_seq, stream.head.fence) if stream else (0, 0)
        if write.expected_seq != last_seq:
            raise StaleSequence(write.stream_id, write.expected_seq, last_seq)
        if write.fence != fence:
            raise StaleFence(write.stream_id, write.fence, fence)

    def _check_tombstone(self, write: StreamWrite) -> None:
        """A stream that was removed comes back whole, or not at all (§STO-53)."""
        stone = self.tombstones.get(write.stream_id)
        if stone is not None and (stone.tenant_id, stone.last_seq, stone.head) != (
            write.tenant_id,
            write.last_seq,
            write.head,
        ):
            raise DuplicateKey(f"stream {write.stream_id}, which was archived")

    def _check_rows(self, write: StreamWrite) -> None:
        """A row moves along its machine, and not at all once it has ended (§TRN-33, §TRN-34, §TRN-36)."""
        stream = self.streams.get(write.stream_id)
        for row in write.rows:
            before = stream.rows.get(name(row)) if stream else None
            rising, machine = RISING.get(type(row)), _MACHINES.get(type(row))
            if before is not None and rising and getattr(row, rising) <= getattr(before, rising):
                raise CommitRefused(f"The {rising} of {TABLES[type(row)]} {row_id(row)} only rises")
            for column in NEVER_LESS.get(type(row), ()):
                if before is not None and getattr(row, column) < getattr(before, column):
                    raise CommitRefused(f"The {column} of {TABLES[type(row)]} {row_id(row)} never falls")
            if machine is None or before is None:
                continue
            was, now = str(getattr(before, "status", "")), str(getattr(row, "status", ""))
            if was in machine.terminal or now not in machine.reachable(was) | {was}:
                raise StateTransitionError(machine.aggregate, name(row)[1], was, now)

    def _check_holds(self, write: StreamWrite) -> None:
        """§OUT-13."""
        stream = self.streams.get(write.stream_id)
        for hold in write.holds:
            lease = stream.effect_leases.get(hold.effect_id) if stream else None
            if lease is None or lease.fence != hold.fence:
                raise StaleClaim(hold.effect_id, hold.fence, lease.fence if lease else None)

    def _check_events(self, events: Iterable[Event]) -> None:
        ids: set[str] = set()
        keys: set[tuple[str, str]] = set()
        for event in events:
            stream = self.streams.get(event.stream_id)
            if event.id in ids or event.id in self.event_ids:
                raise DuplicateKey(f"event {event.id}")
            key = (event.stream_id, event.idempotency_key)
            if key in keys or (stream and event.idempotency_key in stream.by_key):
                raise DuplicateKey(f"event key {event.idempotency_key} in stream {event.stream_id}")
            ids.add(event.id)
            keys.add(key)

    def _check_keys(self, rows: Iterable[Row]) -> dict[tuple[str, ...], str]:
        """What these rows take for themselves, unless another row has it."""
        found: dict[tuple[str, ...], str] = {}
        archived = {key: stone.stream_id for stone in self.tombstones.values() for key in _kept_keys(stone)}
        for row in rows:
            own_id = row_id(row)
            for key in _unique_keys(row):
                if (found.get(key) or self.taken.get(key) or archived.get(key) or own_id) != own_id:
                    raise DuplicateKey(" ".join(key))
                found[key] = own_id
        return found

    def _apply(self, write: StreamWrite) -> None:
        stream = self.streams.get(write.stream_id)
        fence = (stream.head.fence if stream else 0) + write.raise_fence
        head = StreamHead(
            stream_id=write.stream_id,
            tenant_id=write.tenant_id,
            kind=write.kind,
            last_seq=write.last_seq,
            head=write.head,
            last_at=write.last_at,
            fence=fence,
        )
        self.tombstones.pop(write.stream_id, None)
        stream = self.streams.setdefault(write.stream_id, MemoryStream(head))
        stream.head = head
        stream.rows |= {name(row): row for row in write.rows}
        if write.queue_changed:
            self._enqueue(stream, write.queue)
        if write.lease is not None:
            stream.owner, stream.attempts = write.lease.owner, write.lease.attempts
        for hold in write.holds:
            self._end_hold(stream, hold)

    def _end_hold(self, stream: MemoryStream, hold: Hold) -> None:
        if hold.release:
            lease = stream.effect_leases[hold.effect_id]
            lease.owner, lease.until, lease.claims = None, None, 0

    def _store(self, stream: MemoryStream, event: Event, now: datetime) -> None:
        self.events += 1
        sequence = self.events
        stored = replace(event, sequence_number=sequence, persisted_at=now)
        stream.events.append(stored)
        stream.by_key[event.idempotency_key] = stored
        self.event_ids.add(event.id)
        position = FeedPosition(transaction=self.commits, sequence=sequence)
        self.log.append(FeedItem(position=position, event=stored))

    def _enqueue(self, stream: MemoryStream, entry: QueueEntry | None) -> None:
        if entry is None:
            stream.rows.pop((QueueEntry, stream.head.stream_id), None)
        else:
            stream.rows[name(entry)] = entry

    def forget(self, stones: Iterable[Tombstone]) -> None:
        """Takes streams out, with everything of theirs, and puts these in their place."""
        for stone in stones:
            stream = self.streams.pop(stone.stream_id)
            self.event_ids -= {event.id for event in stream.events}
            for row in stream.all_rows():
                for key in _unique_keys(row):
                    self.taken.pop(key, None)
            for place in [place for place in self.checkpoints if place[0] == stone.stream_id]:
                del self.checkpoints[place]
            self.tombstones[stone.stream_id] = stone
        self.log = [item for item in self.log if item.event.stream_id in self.streams]


def name(row: Row) -> tuple[type[Row], str]:
    """Table and id."""
    return type(row), row_id(row)


def _unique_keys(row: Row) -> Iterator[tuple[str, ...]]:
    """What no other row of its tenant may have (§IDM-13, §IDM-18, §IDM-25, §ENT-27, §ENT-31)."""
    match row:
        case Signal():
            yield "source", row.tenant_id, row.source_channel, row.source_id
        case Run():
            plan = (row.project, row.environment, row.plan_id, row.plan_version)
            yield "run request", row.tenant_id, *plan, row.run_request_id
            if row.key is not None:
                yield "run key", row.tenant_id, row.key
        case Effect():
            yield "effect key", row.tenant_id, row.idempotency_key
        case Entity():
            yield "entity", row.tenant_id, row.entity_type, row.entity_id
        case Schedule():
            yield "schedule", row.tenant_id, row.name
        case _:
            pass


def _kept_keys(stone: Tombstone) -> Iterator[tuple[str, ...]]:
    """What nobody else may have, though the row that had it is gone (§STO-53)."""
    if stone.source_channel is not None and stone.source_id is not None:
        yield "source", stone.tenant_id, stone.source_channel, stone.source_id
    if stone.run_key is not None:
        yield "run key", stone.tenant_id, stone.run_key
