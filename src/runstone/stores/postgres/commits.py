"""Group commit: many commits, one statement, and a lost one takes nothing with it (§STO-13 to §STO-16).

A batch is a few arrays of rows, one for each table that it touches, in shapes that the schema knows: to
bind rows whole costs the driver half of what it costs to bind them by the column, and the server too.
The statement is put together from the parts that the batch needs, always in the same order: most touch
four or five tables, and a part that has nothing to do still costs the server as much as a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

from runstone.core.chain import event_bytes
from runstone.core.commit import Commit, StreamWrite
from runstone.core.effect import Effect, OutboxEntry
from runstone.core.entity import Entity
from runstone.core.events import Event
from runstone.core.rows import CHANGING, Row
from runstone.core.run import QueueEntry, Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.step import Step, StepCorrection
from runstone.core.toolcall import ToolCall
from runstone.errors import CommitRefused, DuplicateKey, StaleClaim, StaleFence, StaleSequence
from runstone.stores.postgres.rows import EVENTS, ROWS, SCHEMA, Table
from runstone.stores.sql import statements

_SQL: Final = statements("postgres")
_LOGGED: Final = EVENTS.columns[:-2]
"""The columns of an event that its writer gives; the store gives the last two."""
_logged: Final = EVENTS.packer(_LOGGED)


class Part:
    """What a batch does to one table beside streams and events, and the shape of its rows."""

    def __init__(
        self,
        name: str,
        statement: str,
        struct: type[Row],
        *,
        columns: Sequence[str] = (),
        shape: str | None = None,
        order: str = "id",
    ) -> None:
        table: Table[Any] = ROWS[struct]
        changing = CHANGING[struct]
        source = "excluded" if statement == "upsert_part" else "x"
        self.name = name
        self.shape = shape or f"batch_{name}"
        self.pack = table.packer(columns) if columns else table.pack
        self._template = (
            _SQL[statement]
            .replace("{part}", name)
            .replace("{table}", table.name)
            .replace("{columns}", ", ".join(table.columns + _EXTRA.get(name, ())))
            .replace("{changes}", ", ".join(f"{column} = {source}.{column}" for column in changing))
            .replace("{old}", ", ".join(f"t.{column}" for column in changing))
            .replace("{new}", ", ".join(f"x.{column}" for column in changing))
            .replace("{order}", order)
        )

    def text(self, number: int) -> str:
        """The part, its rows being the parameter of this number."""
        return self._template.replace("{rows}", f"${number}::{SCHEMA}.{self.shape}[]")


def _changed(struct: type[Row]) -> tuple[str, ...]:
    return ("id", "tenant_id", *CHANGING[struct])


_EXTRA: Final = {"queued": ("owner", "attempts")}
"""Columns that are no part of the struct: a lease."""

PARTS: Final = (
    Part("signals", "insert_part", Signal, order="tenant_id, source_channel, source_id"),
    Part("signals_changed", "change_part", Signal, columns=_changed(Signal)),
    Part("runs", "insert_part", Run, order="tenant_id, key, run_request_id"),
    Part("runs_changed", "change_part", Run, columns=_changed(Run)),
    Part("steps", "upsert_part", Step),
    Part("step_corrections", "insert_part", StepCorrection),
    Part("effects", "upsert_part", Effect, order="tenant_id, idempotency_key"),
    Part("outbox_events", "upsert_part", OutboxEntry, order="tenant_id, idempotency_key"),
    Part("outbox_released", "release_part", OutboxEntry, columns=_changed(OutboxEntry)),
    Part("holds_ended", "end_holds_part", OutboxEntry, shape="batch_ids"),
    Part("tool_calls", "upsert_part", ToolCall),
    Part("entities", "upsert_part", Entity, order="tenant_id, entity_type, entity_id"),
    Part("schedules", "upsert_part", Schedule, order="tenant_id, name"),
    Part("queued", "insert_part", QueueEntry, order="run_id"),
    Part("requeued", "requeue_part", QueueEntry),
    Part("dequeued", "dequeue_part", QueueEntry, shape="batch_ids"),
)
_PLACES: Final = {part.name: place for place, part in enumerate(PARTS)}
_KINDS: Final[dict[type, tuple[int, int]]] = {
    Signal: (_PLACES["signals"], _PLACES["signals_changed"]),
    Run: (_PLACES["runs"], _PLACES["runs_changed"]),
    Step: (_PLACES["steps"],) * 2,
    StepCorrection: (_PLACES["step_corrections"],) * 2,
    Effect: (_PLACES["effects"],) * 2,
    OutboxEntry: (_PLACES["outbox_events"],) * 2,
    ToolCall: (_PLACES["tool_calls"],) * 2,
    Entity: (_PLACES["entities"],) * 2,
    Schedule: (_PLACES["schedules"],) * 2,
}
"""By kind of row: the part that writes it when its stream is new, and when its stream is there."""
_QUEUED, _REQUEUED, _DEQUEUED = (_PLACES[name] for name in ("queued", "requeued", "dequeued"))
_RELEASED, _ENDED = _PLACES["outbox_released"], _PLACES["holds_ended"]


CUT_TO_MEASURE: Final = 4
"""Up to so many commits have a statement of the parts they need. Larger batches take the usual parts all
together: an empty part costs them little, and the server keeps the plan of every statement it was asked."""

_GROUPS: Final = tuple(
    frozenset(_PLACES[name] for name in names.split())
    for names in (
        "signals signals_changed runs runs_changed steps queued requeued dequeued",
        "effects outbox_events outbox_released holds_ended",
    )
)


@cache
def statement(parts: tuple[int, ...], *, opens: bool, moves: bool, holds: bool) -> str:
    """The statement of a batch that needs these parts; does it open streams, move some, hold anything?"""
    texts = [f",\n{PARTS[place].text(number)}" for number, place in enumerate(parts, 4)]
    held = f"${4 + len(parts)}::{SCHEMA}.batch_holds[]"
    return (
        _SQL["commit"]
        .replace("{opened}", f"{_SQL['opened']}\n" if opens else "")
        .replace("{moved}", f"{_SQL['moved']}\n" if moves else "")
        .replace("{event_columns}", ", ".join(_LOGGED))
        .replace("{parts}", "".join(texts))
        .replace("{held}", _SQL["held"].replace("{rows}", held) + "\n" if holds else "")
        .replace("{stale_holds}", "\n" + _SQL["stale_holds"].replace("{rows}", held) if holds else "")
    )


SHAPES: Final = _SQL["shapes"].replace(
    "{shapes}",
    ", ".join(
        f"NULL::{SCHEMA}.{shape}[]"
        for shape in sorted({part.shape for part in PARTS} | {"batch_streams", "batch_events", "batch_holds"})
    ),
)


class Batch:
    """Commits as one statement and its arguments: the same bytes, however often they are submitted."""

    def __init__(self, commits: Sequence[Commit], now: datetime) -> None:
        self._heads: list[tuple[Any, ...]] = []
        self._events: list[tuple[Any, ...]] = []
        self._holds: list[tuple[Any, ...]] = []
        self._opens = self._moves = False
        self._rows: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for place, commit in enumerate(commits):
            self._events += [(place, *_logged(event)) for event in commit.events]
            for write in commit.writes:
                self._add(place, write)
        needed = set(self._rows)
        holds = bool(self._holds)
        if len(commits) > CUT_TO_MEASURE:
            needed = needed.union(*(group for group in _GROUPS if not group.isdisjoint(needed)))
            self._opens = self._moves = True
        parts = tuple(sorted(needed))
        self.statement = statement(parts, opens=self._opens, moves=self._moves, holds=holds)
        self.arguments: list[Any] = [self._heads, self._events, now, *(self._rows[part] for part in parts)]
        if holds:
            self.arguments.append(self._holds)

    def _add(self, place: int, write: StreamWrite) -> None:
        exists = write.expected_seq > 0
        self._opens |= not exists
        self._moves |= exists
        self._heads.append(_head(place, write))
        if write.holds:
            self._add_held(place, write)
        else:
            for row in write.rows:
                part = _KINDS[type(row)][exists]
                self._rows[part].append((place, *PARTS[part].pack(row)))
        if write.queue_changed or write.lease is not None:
            self._queue(place, write, exists)

    def _add_held(self, place: int, write: StreamWrite) -> None:
        """A row can be written once in a statement: a claim that ends goes with what became of its entry."""
        self._holds += [(place, hold.effect_id, hold.fence) for hold in write.holds]
        ended = {hold.effect_id for hold in write.holds if hold.release}
        for row in write.rows:
            part = _KINDS[type(row)][write.expected_seq > 0]
            if isinstance(row, OutboxEntry) and row.id in ended:
                ended.remove(row.id)
                part = _RELEASED
            self._rows[part].append((place, *PARTS[part].pack(row)))
        for effect_id in ended:
            self._rows[_ENDED].append((place, effect_id))

    def _queue(self, place: int, write: StreamWrite, exists: bool) -> None:
        """A run enters the queue, stays in it or leaves it."""
        queue, lease = write.queue, write.lease
        owner, attempts = (lease.owner, lease.attempts) if lease else (None, 0)
        if queue is None:
            if write.queue_changed:
                self._rows[_DEQUEUED].append((place, write.stream_id))
        elif exists:
            packed = PARTS[_REQUEUED].pack(queue)
            self._rows[_REQUEUED].append((place, *packed, lease is not None, owner, attempts))
        else:
            self._rows[_QUEUED].append((place, *PARTS[_QUEUED].pack(queue), owner, attempts))


def _head(place: int, write: StreamWrite) -> tuple[Any, ...]:
    return (
        place,
        write.stream_id,
        write.tenant_id,
        write.kind,
        write.expected_seq,
        write.last_seq,
        bytes.fromhex(write.head),
        write.last_at,
        write.fence,
        write.fence + write.raise_fence,
    )


# Who lost, and why


def refusal(commit: Commit, lost: dict[str, Sequence[Any]]) -> CommitRefused:
    """Why a commit was refused, by the heads it met: a stale fence first, its writer must not try again."""
    stale: CommitRefused | None = None
    for write in commit.writes:
        head = lost.get(write.stream_id)
        if head is None:
            continue
        tenant_id, last_seq, fence = head
        if tenant_id is not None and tenant_id != write.tenant_id:
            return DuplicateKey(f"stream {write.stream_id}")
        if fence != write.fence:
            return StaleFence(write.stream_id, write.fence, fence)
        stale = stale or StaleSequence(write.stream_id, write.expected_seq, last_seq)
    return stale or _stale_claim(commit, lost)


def _stale_claim(commit: Commit, lost: dict[str, Sequence[Any]]) -> StaleClaim:
    holds = (hold for write in commit.writes for hold in write.holds)
    hold = next(hold for hold in holds if hold.effect_id in lost)
    return StaleClaim(hold.effect_id, hold.fence, lost[hold.effect_id][2])


def may_have_landed(commit: Commit, lost: dict[str, Sequence[Any]]) -> bool:
    """Whether all of its streams are where this very commit would have led them, or beyond."""
    return all(
        write.stream_id in lost and lost[write.stream_id][1] >= write.last_seq for write in commit.writes
    )


STRETCHES: Final = _SQL["stretches"].replace("{event_selected}", EVENTS.selected)


def stretches(commits: Iterable[Commit]) -> list[Sequence[Any]]:
    """The arguments that ask for what stands where these commits would."""
    asked = [
        (write.stream_id, write.last_seq - len(write.events) + 1, write.last_seq)
        for commit in commits
        for write in commit.writes
    ]
    return list(zip(*asked, strict=True))


def landed(commit: Commit, found: dict[tuple[str, int], Event]) -> bool:
    """Whether what stands there is this very commit, event for event."""
    return all(
        (there := found.get((event.stream_id, event.run_seq))) is not None
        and event_bytes(there) == event_bytes(event)
        for event in commit.events
    )


def size(commit: Commit) -> int:
    """About how many bytes it is: payloads count for themselves, and again as rows."""
    return sum(1024 + 2 * len(memoryview(event.event_data)) for event in commit.events)


def one_tenant(commit: Commit) -> bool:
    return len({write.tenant_id for write in commit.writes}) == 1
