"""The fold: events in, state out (§ENT-3, §EVT-21).

Each function takes a frozen state and events and gives a new frozen state. Events that were
folded already are passed over; a gap, or an event that cannot be read, stops the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from runstone.core.events import Event, StreamKind
from runstone.core.fold import control, effects, entities, runs, schedules, signals, steps, toolcalls
from runstone.core.fold.streams import (
    INLINE_BYTES,
    EntityFold,
    Reducer,
    RunFold,
    ScheduleFold,
    SignalFold,
    StreamFold,
)
from runstone.core.payloads import Payload, pipeline
from runstone.core.pipeline import PipelineFold
from runstone.core.state import EntityState, RunState, ScheduleState, SignalState, StreamState

__all__ = [
    "INLINE_BYTES",
    "KINDS",
    "EntityFold",
    "RunFold",
    "ScheduleFold",
    "SignalFold",
    "StreamFold",
    "entity_fold",
    "fold_run",
    "fold_signal",
    "fold_stream",
    "new_state",
    "run_fold",
    "schedule_fold",
    "signal_fold",
    "stream_fold",
]


def _pipeline_event(fold: RunFold, event: Event, data: Payload) -> None:
    fold.existing("RUNNING")
    if fold.pipeline is None:
        fold.pipeline = PipelineFold(None)
    fold.pipeline.apply(event, data)


_PIPELINE: Final[dict[str, Reducer]] = {
    kind.EVENT_TYPE: _pipeline_event
    for kind in vars(pipeline).values()
    if isinstance(kind, type) and issubclass(kind, Payload) and kind is not Payload
}

_RUN: Final[dict[str, Reducer]] = {
    **runs.REDUCERS,
    **control.REDUCERS,
    **steps.REDUCERS,
    **toolcalls.REDUCERS,
    **effects.REDUCERS,
    **_PIPELINE,
}


def run_fold(state: RunState) -> RunFold:
    """A fold that goes on from a run's state."""
    return RunFold(state, _RUN)


def signal_fold(state: SignalState) -> SignalFold:
    """A fold that goes on from a signal's state."""
    return SignalFold(state, signals.REDUCERS)


def entity_fold(state: EntityState) -> EntityFold:
    """A fold that goes on from an entity's state."""
    return EntityFold(state, entities.REDUCERS)


def schedule_fold(state: ScheduleState) -> ScheduleFold:
    """A fold that goes on from a schedule's state."""
    return ScheduleFold(state, schedules.REDUCERS)


class Kind(NamedTuple):
    """One kind of stream: the state it begins with, and what folds on from a state."""

    state: type[StreamState]
    fold: Callable[[Any], StreamFold]


KINDS: Final[dict[StreamKind, Kind]] = {
    "SIGNAL": Kind(SignalState, signal_fold),
    "RUN": Kind(RunState, run_fold),
    "ENTITY": Kind(EntityState, entity_fold),
    "SCHEDULE": Kind(ScheduleState, schedule_fold),
}
"""Every kind of stream. What rows each has, `core.rows` says."""


def new_state(kind: StreamKind, stream_id: str, tenant_id: str) -> StreamState:
    """The state of a stream in which nothing has happened."""
    return KINDS[kind].state(stream_id=stream_id, tenant_id=tenant_id)


def stream_fold(state: StreamState) -> StreamFold:
    """A fold that goes on from a state, whatever it is of."""
    return KINDS[state.KIND].fold(state)


def fold_stream(state: StreamState, events: Iterable[Event]) -> StreamState:
    """The state after these events, whatever it is of."""
    fold = stream_fold(state)
    for event in events:
        fold.apply(event)
    return fold.freeze()


def fold_run(state: RunState, events: Iterable[Event]) -> RunState:
    """The run's state after these events."""
    fold = run_fold(state)
    for event in events:
        fold.apply(event)
    return fold.freeze()


def fold_signal(state: SignalState, events: Iterable[Event]) -> SignalState:
    """The signal's state after these events."""
    fold = signal_fold(state)
    for event in events:
        fold.apply(event)
    return fold.freeze()
