"""The fold: events in, state out (§ENT-3, §EVT-21).

Each function takes a frozen state and events and gives a new frozen state. Events that were
folded already are passed over; a gap, or an event that cannot be read, stops the fold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from runstone.core.events import Event
from runstone.core.fold import control, effects, runs, signals, steps, toolcalls
from runstone.core.fold.streams import INLINE_BYTES, Reducer, RunFold, SignalFold
from runstone.core.payloads import Payload, pipeline
from runstone.core.pipeline import PipelineFold
from runstone.core.state import RunState, SignalState

__all__ = ["INLINE_BYTES", "RunFold", "SignalFold", "fold_run", "fold_signal", "run_fold", "signal_fold"]


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
