"""The mutable halves of the fold: what a stream's state is while events are taken in.

A fold works on containers of its own, so that a long history costs no more per event than a
short one, and the state it began with stays as it was. Reducers, one module per aggregate, do the
rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from runstone.core import codec, transitions
from runstone.core.catalogue import CATALOGUE
from runstone.core.chain import event_hash
from runstone.core.entity import Entity
from runstone.core.events import Event, StreamKind
from runstone.core.keys import content_hash
from runstone.core.payloads import EventRef, OptionalJson
from runstone.core.pipeline import PipelineFold
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.state import EntityState, RunState, ScheduleState, SignalState, StreamState, whole
from runstone.errors import ForeignEvent, SequenceGap, StateTransitionError, UnknownEventType

INLINE_BYTES: Final = 2048
"""A payload up to this size stands in its row as well as in its event (§PAY-16)."""


def utc(moment: datetime | None) -> datetime | None:
    """The same moment, told in UTC: rows show a time in one way only."""
    return moment and moment.astimezone(UTC)


Reducer: TypeAlias = Callable[[Any, Event, Any], None]
"""Takes one type of event into a fold."""


_T = TypeVar("_T")


class Rows(dict[str, _T]):
    """Rows by id, and which of them were set since the last mark."""

    __slots__ = ("changed",)

    def __init__(self, known: Mapping[str, _T]) -> None:
        dict.__init__(self, known)
        self.changed: dict[str, None] = {}

    def __setitem__(self, row_id: str, row: _T) -> None:
        dict.__setitem__(self, row_id, row)
        self.changed[row_id] = None


class StreamFold(ABC):
    """What the folds of all streams share: order, and who caused what."""

    KIND: ClassVar[StreamKind]

    def __init__(self, state: StreamState, reducers: Mapping[str, Reducer]) -> None:
        self._reducers = reducers
        self.stream_id = state.stream_id
        self.tenant_id = state.tenant_id
        self.last_seq = state.last_seq
        self.head = state.head
        self.last_at = state.last_at
        self.last_event = state.last_event
        self.causes = dict(state.causes)
        self.large = dict(state.large)
        self.marked_seq = state.last_seq
        """Where the stream stood at the last mark: what the next commit is compared with."""
        self._unhashed: Event | None = None
        self._frozen = False

    def apply(self, event: Event) -> None:
        """Takes one event in."""
        assert not self._frozen, "its containers belong to a frozen state now"
        if event.stream_id != self.stream_id or event.tenant_id != self.tenant_id:
            raise ForeignEvent(event.id, self.stream_id)
        if event.run_seq <= self.last_seq:
            return
        if event.run_seq != self.last_seq + 1:
            raise SequenceGap(self.stream_id, self.last_seq + 1, event.run_seq)
        reduce = self._reducers.get(event.event_type)
        if reduce is None:
            raise UnknownEventType(event.event_type)
        reduce(self, event, CATALOGUE.decode(event))
        self.last_seq = event.run_seq
        self.last_at = event.occurred_at
        self.last_event = event.id
        self.causes[event.aggregate_id] = event.id
        self._unhashed = event

    def mark(self) -> None:
        """What was folded so far has been handed over; changes count from here on."""
        self.marked_seq = self.last_seq

    @abstractmethod
    def freeze(self) -> StreamState:
        """The state so far; the fold has done its work then."""

    def seal_head(self) -> str:
        """The hash of the last event, computed once, when somebody asks."""
        if self._unhashed is not None:
            self.head = event_hash(self._unhashed)
            self._unhashed = None
        return self.head

    def _end(self) -> dict[str, Any]:
        """What the states of all streams share; nothing more is taken in."""
        self._frozen = True
        return {
            "stream_id": self.stream_id,
            "tenant_id": self.tenant_id,
            "last_seq": self.last_seq,
            "head": self.seal_head(),
            "last_at": self.last_at,
            "last_event": self.last_event,
            "causes": self.causes,
            "large": self.large,
        }

    def whole(self, payload: Raw) -> Raw:
        """A row's payload in full."""
        return whole(payload, self.large)

    def keep(self, event: Event, field: str, payload: Raw) -> Raw:
        """The payload as its row shows it: itself, or if it is large a reference to its event."""
        size = memoryview(payload).nbytes
        if size <= INLINE_BYTES:
            return payload
        self.large[f"{event.id}/{field}"] = payload
        reference = EventRef(event=event.id, field=field, sha256=content_hash(payload), size=size)
        return Raw(codec.encode(reference))

    def keep_any(self, event: Event, field: str, payload: OptionalJson) -> Raw | None:
        """The same for a payload that may be missing."""
        return None if isinstance(payload, UnsetType) else self.keep(event, field, payload)


class SignalFold(StreamFold):
    """Folds a signal's stream."""

    KIND: ClassVar[StreamKind] = "SIGNAL"

    def __init__(self, state: SignalState, reducers: Mapping[str, Reducer]) -> None:
        super().__init__(state, reducers)
        self.signal = self._marked = state.signal
        self.payload_event = state.payload_event

    @property
    def changed(self) -> bool:
        """Whether the signal's row is another than at the last mark."""
        return self.signal is not self._marked

    def mark(self) -> None:
        super().mark()
        self._marked = self.signal

    def freeze(self) -> SignalState:
        """The state so far; the fold has done its work then."""
        return SignalState(
            **self._end(),
            signal=self.signal,
            payload_event=self.payload_event,
        )

    def existing(self, to_state: str) -> Signal:
        if self.signal is None:
            raise StateTransitionError("signal", self.stream_id, None, to_state)
        return self.signal

    def to(self, status: str, **changes: Any) -> None:
        signal = self.existing(status)
        transitions.SIGNAL.check(signal.id, signal.status, status)
        self.signal = msgspec.structs.replace(signal, status=status, **changes)


class RunFold(StreamFold):
    """Folds a run's stream."""

    KIND: ClassVar[StreamKind] = "RUN"

    def __init__(self, state: RunState, reducers: Mapping[str, Reducer]) -> None:
        super().__init__(state, reducers)
        self.run = self._marked = state.run
        self.steps = Rows(state.steps)
        self.latest_steps = dict(state.latest_steps)
        self.open_steps = dict(state.open_steps)
        self.ends = dict(state.ends)
        self.due_attempts = dict(state.due_attempts)
        self.retry_times = dict(state.retry_times)
        self.corrections = Rows(state.corrections)
        self.effects = Rows(state.effects)
        self.open_effects = dict(state.open_effects)
        self.effect_keys = dict(state.effect_keys)
        self.compensations = dict(state.compensations)
        self.compensating = state.compensating
        self.tool_calls = Rows(state.tool_calls)
        self.variables = dict(state.variables)
        self.variable_sets = state.variable_sets
        self.carry = state.carry
        self.continued = state.continued
        self.answers = dict(state.answers)
        self.controls = dict(state.controls)
        self.control_times = state.control_times
        self.denied_times = state.denied_times
        self.unseen_failures = state.unseen_failures
        self.cursor = state.cursor
        self.last_output = state.last_output
        self.created_event = state.created_event
        self.paused_event = state.paused_event
        self.signal_event = state.signal_event
        self.lane = state.lane
        self.lane_limit = state.lane_limit
        self.approval_required = state.approval_required
        self.handler_returned = state.handler_returned
        self.suspended = state.suspended
        self.wake_at = state.wake_at
        self.news_seq = state.news_seq
        self.checkpoints = state.checkpoints
        self.pipeline = PipelineFold(state.pipeline) if state.pipeline else None

    @property
    def run_changed(self) -> bool:
        """Whether the run's own row is another than at the last mark."""
        return self.run is not self._marked

    def mark(self) -> None:
        super().mark()
        self._marked = self.run
        for rows in (self.steps, self.corrections, self.effects, self.tool_calls):
            rows.changed.clear()

    def freeze(self) -> RunState:
        """The state so far; the fold has done its work then."""
        return RunState(
            **self._end(),
            run=self.run,
            steps=self.steps,
            latest_steps=self.latest_steps,
            open_steps=self.open_steps,
            ends=self.ends,
            due_attempts=self.due_attempts,
            retry_times=self.retry_times,
            corrections=self.corrections,
            effects=self.effects,
            open_effects=self.open_effects,
            effect_keys=self.effect_keys,
            compensations=self.compensations,
            compensating=self.compensating,
            tool_calls=self.tool_calls,
            variables=self.variables,
            variable_sets=self.variable_sets,
            carry=self.carry,
            continued=self.continued,
            answers=self.answers,
            controls=self.controls,
            control_times=self.control_times,
            denied_times=self.denied_times,
            unseen_failures=self.unseen_failures,
            cursor=self.cursor,
            last_output=self.last_output,
            created_event=self.created_event,
            paused_event=self.paused_event,
            signal_event=self.signal_event,
            lane=self.lane,
            lane_limit=self.lane_limit,
            approval_required=self.approval_required,
            handler_returned=self.handler_returned,
            suspended=self.suspended,
            wake_at=self.wake_at,
            news_seq=self.news_seq,
            checkpoints=self.checkpoints,
            pipeline=self.pipeline.freeze() if self.pipeline else None,
        )

    def existing(self, to_state: str) -> Run:
        if self.run is None:
            raise StateTransitionError("run", self.stream_id, None, to_state)
        return self.run

    def to(self, status: str, *, origins: Collection[str] = (), **changes: Any) -> Run:
        """Moves the run; `origins` are the states that this event leads from, where the table has more."""
        run = self.existing(status)
        transitions.RUN.check(run.id, run.status, status)
        if origins and run.status not in origins:
            raise StateTransitionError("run", run.id, run.status, status)
        self.run = msgspec.structs.replace(run, status=status, **changes)
        return self.run

    def wake(self, event: Event) -> None:
        """Somebody has to look at this run now."""
        self.suspended = False
        self.wake_at = event.occurred_at

    def sleep(self) -> None:
        """Nothing to do until an event says otherwise."""
        self.suspended = False
        self.wake_at = None


class EntityFold(StreamFold):
    """Folds an entity's stream."""

    KIND: ClassVar[StreamKind] = "ENTITY"

    def __init__(self, state: EntityState, reducers: Mapping[str, Reducer]) -> None:
        super().__init__(state, reducers)
        self.entity: Entity | None = state.entity
        self._marked = state.entity

    @property
    def changed(self) -> bool:
        """Whether the entity's row is another than at the last mark."""
        return self.entity is not self._marked

    @property
    def version(self) -> int:
        """How many changes it has had; none: there is no such entity yet."""
        return 0 if self.entity is None else self.entity.version

    def mark(self) -> None:
        super().mark()
        self._marked = self.entity

    def freeze(self) -> EntityState:
        return EntityState(
            **self._end(),
            entity=self.entity,
        )


class ScheduleFold(StreamFold):
    """Folds a schedule's stream."""

    KIND: ClassVar[StreamKind] = "SCHEDULE"

    def __init__(self, state: ScheduleState, reducers: Mapping[str, Reducer]) -> None:
        super().__init__(state, reducers)
        self.schedule: Schedule | None = state.schedule
        self._marked = state.schedule

    @property
    def changed(self) -> bool:
        """Whether the schedule's row is another than at the last mark."""
        return self.schedule is not self._marked

    @property
    def version(self) -> int:
        """How often it was scheduled; never: there is no such schedule yet."""
        return 0 if self.schedule is None else self.schedule.version

    def mark(self) -> None:
        super().mark()
        self._marked = self.schedule

    def freeze(self) -> ScheduleState:
        return ScheduleState(
            **self._end(),
            schedule=self.schedule,
        )

    def existing(self, to_state: str) -> Schedule:
        if self.schedule is None:
            raise StateTransitionError("schedule", self.stream_id, None, to_state)
        return self.schedule

    def to(self, status: str, event: Event, **changes: Any) -> None:
        """Moves it from where it is due: what is done or cancelled only begins anew."""
        schedule = self.existing(status)
        if schedule.status != "ACTIVE":
            raise StateTransitionError("schedule", schedule.id, schedule.status, status)
        transitions.SCHEDULE.check(schedule.id, schedule.status, status)
        self.schedule = msgspec.structs.replace(
            schedule, status=status, updated_at=event.occurred_at, **changes
        )
