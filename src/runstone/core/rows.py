"""From state to rows: what a commit writes beside its events (§ENT-2, §ENT-3).

Rows are the entities of the state as they are. One commit writes those that its events
touched; `all_rows` gives every row of a stream, for the audit and for rebuilding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, TypeVar

from runstone.core.effect import Effect, OutboxEntry, outbox_entry
from runstone.core.fold import RunFold
from runstone.core.run import QueueEntry, Run, code_rank
from runstone.core.signal import Signal
from runstone.core.state import RunState, SignalState
from runstone.core.step import Step, StepCorrection
from runstone.core.toolcall import ToolCall
from runstone.core.transitions import RUN

_T = TypeVar("_T")

Row: TypeAlias = Signal | Run | Step | StepCorrection | Effect | OutboxEntry | ToolCall | QueueEntry

TABLES: Final[dict[type[Row], str]] = {
    Signal: "signals",
    Run: "runs",
    Step: "steps",
    StepCorrection: "step_corrections",
    Effect: "effects",
    OutboxEntry: "outbox_events",
    ToolCall: "tool_calls",
    QueueEntry: "run_queue",
}
"""The table of each kind of row, parents before children."""


def queue_entry(state: RunState | RunFold) -> QueueEntry | None:
    """The run's place in the queue; none once it has ended."""
    run = state.run
    if run is None or run.status in RUN.terminal:
        return None
    return QueueEntry(
        run_id=run.id,
        tenant_id=run.tenant_id,
        handler=run.plan_id,
        code_rank=code_rank(run.orchestrator_version),
        lane=state.lane,
        lane_limit=state.lane_limit,
        started=run.status not in ("PENDING", "APPROVED"),
        wake_at=state.wake_at,
        news_seq=state.news_seq,
    )


def changed_rows(before: RunState, after: RunFold) -> tuple[Row, ...]:
    """The rows that differ now from what they were before."""
    rows: list[Row] = []
    if after.run is not None and after.run is not before.run:
        rows.append(after.run)
    for entity_id in after.touched:
        if (step := after.steps.get(entity_id)) is not before.steps.get(entity_id) and step:
            rows.append(step)
        if (correction := after.corrections.get(entity_id)) and entity_id not in before.corrections:
            rows.append(correction)
        if (call := after.tool_calls.get(entity_id)) is not before.tool_calls.get(entity_id) and call:
            rows.append(call)
        if (effect := after.effects.get(entity_id)) is not before.effects.get(entity_id) and effect:
            rows.append(effect)
            rows.append(outbox_entry(effect))
    return tuple(rows)


def all_rows(state: SignalState | RunState) -> tuple[Row, ...]:
    """Every row of a stream, in a fixed order."""
    if isinstance(state, SignalState):
        return (state.signal,) if state.signal else ()
    rows: list[Row] = [state.run] if state.run else []
    effects = _by_id(state.effects)
    rows += state.steps.values()
    rows += _by_id(state.corrections)
    rows += effects
    rows += map(outbox_entry, effects)
    rows += _by_id(state.tool_calls)
    if queued := queue_entry(state):
        rows.append(queued)
    return tuple(rows)


def _by_id(entities: Mapping[str, _T]) -> list[_T]:
    return [entities[entity_id] for entity_id in sorted(entities)]
