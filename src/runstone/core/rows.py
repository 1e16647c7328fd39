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

CHANGING: Final[dict[type[Row], tuple[str, ...]]] = {
    Signal: ("processed_at", "status"),
    Run: (
        *("started_at", "completed_at", "status", "exit_reason", "error_details", "result"),
        *("orchestrator_version", "engine_run_ref", "generation", "total_steps", "failed_steps"),
        "fold_version",
    ),
    Step: ("completed_at", "status", "output_result", "error_details", "skip_reason", "artifacts"),
    StepCorrection: (),
    Effect: ("executed_at", "status", "execution_result", "error_details", "retry_count", "next_retry_at"),
    OutboxEntry: ("processed_at", "status", "retry_count", "next_retry_at", "result", "error_details"),
    ToolCall: ("completed_at", "status", "result", "error_details", "execution_duration_ms", "cache_hit"),
    QueueEntry: ("code_rank", "started", "wake_at", "news_seq"),
}
"""What events, or a newer fold of them, can change of a row that is there, in the order of its fields: a
store need not write the rest again, nor its indexes."""


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


def changed_rows(fold: RunFold) -> tuple[Row, ...]:
    """The rows that were made or changed since the fold's last mark."""
    rows: list[Row] = []
    if fold.run is not None and fold.run_changed:
        rows.append(fold.run)
    rows += map(fold.steps.__getitem__, fold.steps.changed)
    rows += map(fold.corrections.__getitem__, fold.corrections.changed)
    rows += map(fold.tool_calls.__getitem__, fold.tool_calls.changed)
    for effect_id in fold.effects.changed:
        effect = fold.effects[effect_id]
        rows += (effect, outbox_entry(effect))
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
