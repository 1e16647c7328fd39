"""How long a run's history has become: every step of it is read again when the run is taken up (§ENG-42).

The size is an estimate, from the rows of what was there and the events that came since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from runstone.core.events import Event
from runstone.core.fold import RunFold

MANY_STEPS: Final = 50
MANY_BYTES: Final = 1024 * 1024


class History:
    """One generation's, as one execution sees it grow."""

    def __init__(self, state: RunFold) -> None:
        self._bytes = _estimate(state) if state.steps else 0
        self._long = self._is_long(state)

    def has_become_long(self, state: RunFold, events: Sequence[Event]) -> bool:
        """Whether these events, which the state has, made it too long; said once."""
        self._bytes += sum(memoryview(event.event_data).nbytes for event in events)
        before, self._long = self._long, self._is_long(state)
        return self._long and not before

    def _is_long(self, state: RunFold) -> bool:
        return len(state.latest_steps) >= MANY_STEPS or self._bytes >= MANY_BYTES


def _estimate(state: RunFold) -> int:
    assert state.run is not None, "what has steps is a run"
    return sum(
        _size(state.whole(payload))
        for step in state.steps.values()
        if step.generation == state.run.generation
        for payload in (step.input_context, step.output_result, step.error_details)
        if payload is not None
    )


def _size(payload: Raw) -> int:
    return memoryview(payload).nbytes
