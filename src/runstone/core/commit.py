"""A commit: what is decided on one or several streams, ready to be made durable whole (§STO-12 to §STO-15).

A `StreamWriter` gives events their place and hash and folds them as they are recorded, so a
commit carries sequence numbers, the new head and the changed rows, all computed beforehand from
the state it was decided on. The store only compares and writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw

from runstone.core import codec
from runstone.core.contract import CONTRACT_VERSION
from runstone.core.events import Event, StreamKind
from runstone.core.fold import RunFold, SignalFold
from runstone.core.fold.streams import StreamFold
from runstone.core.ids import NewId, check_id
from runstone.core.keys import event_key
from runstone.core.payloads import Payload
from runstone.core.rows import Row, changed_rows, queue_entry
from runstone.core.run import QueueEntry
from runstone.core.state import RunState, SignalState, StreamState

_Fold = TypeVar("_Fold", bound=StreamFold)

ONCE_PER_ATTEMPT: Final = frozenset(
    {
        "SIGNAL_RECEIVED",
        "SIGNAL_PROCESSING_STARTED",
        "SIGNAL_PROCESSED",
        "SIGNAL_PROCESSING_FAILED",
        "RUN_CREATED",
        "RUN_APPROVED",
        "RUN_STARTED",
        "RUN_HANDLER_RETURNED",
        "RUN_COMPLETED",
        "RUN_FAILED",
        "RUN_CANCELLED",
        "STEP_STARTED",
        "STEP_COMPLETED",
        "STEP_FAILED",
        "STEP_SKIPPED",
        "STEP_RETRIED",
    }
)
"""Events whose key needs no occurrence: stream, step key and attempt say all (§IDM-4)."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision cannot know by itself: the time, where ids come from, who decides."""

    now: datetime
    new_id: NewId
    actor: str
    trace_id: str = ""
    """The trace it is part of; none: the correlation is the trace (§EVT-3)."""
    span_id: str = ""
    """The span it is part of; none: the commit is the span."""
    adapter_version: str | None = CONTRACT_VERSION
    engine_attempt: int | None = None
    engine_run_ref: Any = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit makes of a run's lease; operational, not history."""

    owner: str | None
    attempts: int = 0


class StreamWrite(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit does to one stream."""

    stream_id: str
    tenant_id: str
    kind: StreamKind
    expected_seq: int
    fence: int
    raise_fence: bool = False
    events: tuple[Event, ...]
    last_seq: int
    head: str
    last_at: datetime
    rows: tuple[Row, ...]
    queue: QueueEntry | None = None
    queue_changed: bool = False
    lease: Lease | None = None


class Commit(msgspec.Struct, frozen=True):
    """Writes to several streams: all of them, or none."""

    writes: tuple[StreamWrite, ...]
    events: tuple[Event, ...]
    """All events of all writes, each behind what caused it: the order they have in the feed (§ORD-21)."""

    @classmethod
    def of(cls, *commits: Commit) -> Commit:
        """Several decisions about different streams, to be made durable together."""
        return cls(
            tuple(write for commit in commits for write in commit.writes),
            tuple(event for commit in commits for event in commit.events),
        )


def causal_order(streams: Iterable[Sequence[Event]]) -> tuple[Event, ...]:
    """Events of several streams as one sequence that keeps each stream's order and puts causes first.

    A cause that is in none of them counts as known.
    """
    lanes = [lane for events in streams if (lane := deque(events))]
    ahead = {event.id for lane in lanes for event in lane}
    ordered: list[Event] = []
    while lanes:
        lane = next((lane for lane in lanes if lane[0].causation_id not in ahead), lanes[0])
        ahead.discard(lane[0].id)
        ordered.append(lane.popleft())
        if not lane:
            lanes.remove(lane)
    return tuple(ordered)


class StreamWriter(Generic[_Fold]):
    """Records events on one stream; nothing is durable until the store has taken the commit."""

    def __init__(
        self,
        fold: _Fold,
        context: Context,
        correlation_id: str,
        plan_version: str = "",
        journal: list[Event] | None = None,
    ) -> None:
        self.fold = fold
        self.context = context
        self.correlation_id = correlation_id
        self.plan_version = plan_version
        self.events: list[Event] = []
        self.journal = self.events if journal is None else journal
        """Where writers of one commit note their events together, in the order of recording."""

    def record(
        self,
        data: Payload,
        *,
        aggregate_id: str | None = None,
        cause: str | None = None,
        step_key: str | None = None,
        logical_attempt: int | None = None,
        control_signal_id: str | None = None,
        generation: int = 1,
    ) -> Event:
        """Adds one event, caused by `cause` or else by the last event of the same entity."""
        fold, context = self.fold, self.context
        aggregate_id = fold.stream_id if aggregate_id is None else aggregate_id
        if aggregate_id not in fold.causes:
            check_id(aggregate_id)
        if step_key is not None:
            codec.check_text(step_key, "/step_key")
        run_seq = fold.last_seq + 1
        payload = Raw(codec.encode_struct(data))
        codec.check_line(payload)
        event_id = context.new_id()
        event = Event(
            id=event_id,
            tenant_id=fold.tenant_id,
            stream_id=fold.stream_id,
            run_id=fold.stream_id if isinstance(fold, RunFold) else None,
            event_type=data.EVENT_TYPE,
            event_version=data.VERSION,
            aggregate_type=data.AGGREGATE,
            aggregate_id=aggregate_id,
            event_data=payload,
            idempotency_key=event_key(
                fold.stream_id,
                data.EVENT_TYPE,
                step_key=step_key,
                logical_attempt=logical_attempt,
                plan_version=self.plan_version,
                occurrence=_occurrence(data.EVENT_TYPE, control_signal_id, run_seq, generation),
            ),
            correlation_id=self.correlation_id,
            causation_id=cause or fold.causes.get(aggregate_id),
            actor=context.actor,
            occurred_at=max(context.now, fold.last_at) if fold.last_at else context.now,
            step_key=step_key,
            logical_attempt=logical_attempt,
            engine_attempt=context.engine_attempt,
            control_signal_id=control_signal_id,
            adapter_version=context.adapter_version,
            engine_run_ref=context.engine_run_ref,
            trace_id=context.trace_id or self.correlation_id.replace("-", ""),
            span_id=context.span_id or span_of(self.journal[0].id if self.journal else event_id),
            run_seq=run_seq,
            prev_hash=fold.seal_head(),
        )
        return self._take(event)

    def _take(self, event: Event) -> Event:
        """Folds the event from its bytes: what could not be read back is refused before it is written."""
        self.fold.apply(event)
        self.events.append(event)
        if self.journal is not self.events:
            self.journal.append(event)
        return event


def span_of(event_id: str) -> str:
    """A span's id from an event's: the half of it that is random."""
    return event_id[19:23] + event_id[24:]


def _occurrence(event_type: str, control_signal_id: str | None, run_seq: int, generation: int) -> str:
    if event_type in ONCE_PER_ATTEMPT:
        return "" if generation == 1 else f"g{generation}"
    return control_signal_id or str(run_seq)


def signal_write(
    before: SignalState, after: SignalFold, events: Sequence[Event], fence: int = 0
) -> StreamWrite:
    """What these events make of a signal's stream."""
    changed = after.signal is not None and after.signal is not before.signal
    return StreamWrite(
        **_stream(before, after, events, fence),
        kind="SIGNAL",
        rows=(after.signal,) if changed and after.signal else (),
    )


def run_write(
    before: RunState,
    after: RunFold,
    events: Sequence[Event],
    fence: int = 0,
    *,
    raise_fence: bool = False,
    lease: Lease | None = None,
) -> StreamWrite:
    """What these events make of a run's stream."""
    queue = queue_entry(after)
    return StreamWrite(
        **_stream(before, after, events, fence),
        kind="RUN",
        raise_fence=raise_fence,
        rows=changed_rows(before, after),
        queue=queue,
        queue_changed=queue != queue_entry(before),
        lease=lease,
    )


def _stream(before: StreamState, after: StreamFold, events: Sequence[Event], fence: int) -> dict[str, Any]:
    """What the writes of all streams share."""
    return {
        "stream_id": after.stream_id,
        "tenant_id": after.tenant_id,
        "expected_seq": before.last_seq,
        "fence": fence,
        "events": tuple(events),
        "last_seq": after.last_seq,
        "head": after.seal_head(),
        "last_at": after.last_at,
    }
