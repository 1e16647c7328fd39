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
from runstone.core.fold import RunFold
from runstone.core.fold.streams import StreamFold
from runstone.core.ids import NewId, check_id
from runstone.core.keys import event_key
from runstone.core.payloads import Payload
from runstone.core.rows import Row, changed_rows, queue_entry
from runstone.core.run import QueueEntry

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


class Lease(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a commit makes of a run's lease; operational, not history."""

    owner: str | None
    attempts: int = 0


class Hold(msgspec.Struct, frozen=True, gc=False):
    """An outbox entry that the writer has claimed, and the fence of that claim; operational, not history."""

    effect_id: str
    fence: int
    release: bool = True
    """Whether the claim ends with this commit."""


class StreamWrite(msgspec.Struct, frozen=True, gc=False, kw_only=True):
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
    holds: tuple[Hold, ...] = ()
    """Outbox entries that have to be the writer's own still, or the commit is refused (§OUT-13)."""


class Commit(msgspec.Struct, frozen=True, gc=False):
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
        self._run_id = fold.stream_id if isinstance(fold, RunFold) else None
        self._trace_id = correlation_id.replace("-", "")

    @property
    def now(self) -> datetime:
        """When the next event happens: not before the last, whatever this writer's clock says (§ORD-23)."""
        now, last_at = self.context.now, self.fold.last_at
        return now if last_at is None or last_at < now else last_at

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
        occurrence: str = "",
    ) -> Event:
        """Adds one event, caused by `cause` or else by the last event of the same aggregate.

        `occurrence` is what its key is made from, where the caller knows something better than a number.
        """
        fold, context = self.fold, self.context
        aggregate_id = aggregate_id or fold.stream_id
        if aggregate_id not in fold.causes:
            check_id(aggregate_id)
        if step_key is not None:
            codec.check_text(step_key, "/step_key")
        run_seq = fold.last_seq + 1
        event_id = context.new_id()
        event = Event(
            id=event_id,
            tenant_id=fold.tenant_id,
            stream_id=fold.stream_id,
            run_id=self._run_id,
            event_type=data.EVENT_TYPE,
            event_version=data.VERSION,
            aggregate_type=data.AGGREGATE,
            aggregate_id=aggregate_id,
            event_data=Raw(codec.encode_line(data)),
            idempotency_key=event_key(
                fold.stream_id,
                data.EVENT_TYPE,
                step_key=step_key,
                logical_attempt=logical_attempt,
                plan_version=self.plan_version,
                occurrence=occurrence or _occurrence(data.EVENT_TYPE, control_signal_id, run_seq, generation),
            ),
            correlation_id=self.correlation_id,
            causation_id=cause or fold.causes.get(aggregate_id),
            actor=context.actor,
            occurred_at=self.now,
            step_key=step_key,
            logical_attempt=logical_attempt,
            engine_attempt=context.engine_attempt,
            control_signal_id=control_signal_id,
            adapter_version=context.adapter_version,
            engine_run_ref=context.engine_run_ref,
            trace_id=context.trace_id or self._trace_id,
            span_id=context.span_id or span_of(self.journal[0].id if self.journal else event_id),
            run_seq=run_seq,
            prev_hash=fold.seal_head(),
        )
        return self._take(event)

    def hand_over(self) -> None:
        """What was recorded has gone into a commit."""
        self.events.clear()
        self.fold.mark()

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


def stream_write(fold: StreamFold, events: Sequence[Event], fence: int = 0) -> StreamWrite:
    """What these events, folded since the last mark, make of a stream; a run's has more to it."""
    return StreamWrite(
        stream_id=fold.stream_id,
        tenant_id=fold.tenant_id,
        kind=fold.KIND,
        expected_seq=fold.marked_seq,
        fence=fence,
        events=tuple(events),
        last_seq=fold.last_seq,
        head=fold.seal_head(),
        last_at=_moment(fold),
        rows=changed_rows(fold),
    )


def run_write(
    fold: RunFold,
    events: Sequence[Event],
    fence: int = 0,
    *,
    queued: QueueEntry | None,
    raise_fence: bool = False,
    lease: Lease | None = None,
    holds: tuple[Hold, ...] = (),
) -> StreamWrite:
    """What these events, folded since the last mark, make of a run's stream; `queued`: its place then."""
    queue = queue_entry(fold)
    return StreamWrite(
        stream_id=fold.stream_id,
        tenant_id=fold.tenant_id,
        kind="RUN",
        expected_seq=fold.marked_seq,
        fence=fence,
        raise_fence=raise_fence,
        events=tuple(events),
        last_seq=fold.last_seq,
        head=fold.seal_head(),
        last_at=_moment(fold),
        rows=changed_rows(fold),
        queue=queue,
        queue_changed=queue != queued,
        lease=lease,
        holds=holds,
    )


def _moment(fold: StreamFold) -> datetime:
    assert fold.last_at is not None, "only a stream with events is written"
    return fold.last_at
