"""From state to rows: what a commit writes beside its events (§ENT-2, §ENT-3).

Rows are what the state holds, as it holds them. One commit writes those that its events
touched; `all_rows` gives every row of a stream, for the audit and for rebuilding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from runstone.core.effect import Effect, OutboxEntry, outbox_entry
from runstone.core.entity import Entity
from runstone.core.events import StreamKind
from runstone.core.fold import EntityFold, RunFold, ScheduleFold, SignalFold, StreamFold
from runstone.core.run import QueueEntry, Run, code_rank
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.state import EntityState, RunState, ScheduleState, SignalState, StreamState
from runstone.core.step import Step, StepCorrection
from runstone.core.toolcall import ToolCall
from runstone.core.transitions import RUN

_T = TypeVar("_T")

Row: TypeAlias = (
    Signal | Run | Step | StepCorrection | Effect | OutboxEntry | ToolCall | QueueEntry | Entity | Schedule
)

TABLES: Final[dict[type[Row], str]] = {
    Signal: "signals",
    Run: "runs",
    Step: "steps",
    StepCorrection: "step_corrections",
    Effect: "effects",
    OutboxEntry: "outbox_events",
    ToolCall: "tool_calls",
    QueueEntry: "run_queue",
    Entity: "entities",
    Schedule: "schedules",
}
"""The table of each kind of row, parents before children."""

STREAM_TABLES: Final = frozenset({"signals", "runs", "entities", "schedules"})
"""Tables whose rows are their stream themselves and have its id. Rows of others have the id of their run."""

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
    Entity: (
        *("version", "data", "evidence_pack", "source_id", "source_hash", "timestamp", "inference"),
        *("run_id", "effect_id", "updated_at"),
    ),
    Schedule: (
        *("version", "task", "cron", "timezone", "arguments", "status", "next_at", "fired"),
        *("last_fired_at", "last_run_id", "run_id", "effect_id", "scheduled_seq", "updated_at"),
    ),
}
"""What events, or a newer fold of them, can change of a row that is there, in the order of its fields: a
store need not write the rest again, nor its indexes."""

RISING: Final[dict[type[Row], str]] = {Entity: "version"}
"""What has to be more than it was whenever such a row is written again; only a rebuild may do otherwise."""


NEVER_LESS: Final[dict[type[Row], tuple[str, ...]]] = {Schedule: ("version", "fired")}
"""What must not be less than it was when such a row is written again; only a rebuild may do otherwise."""


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


def row_id(row: Row) -> str:
    """What a row is known by in its table."""
    return row.run_id if isinstance(row, QueueEntry) else row.id


def changed_rows(fold: StreamFold) -> tuple[Row, ...]:
    """The rows that were made or changed since the fold's last mark; a queue row is not among them."""
    return _ROWS[fold.KIND].changed(fold)


def all_rows(state: StreamState) -> tuple[Row, ...]:
    """Every row of a stream, in a fixed order."""
    return _ROWS[state.KIND].all(state)


def _changed_signal(fold: SignalFold) -> tuple[Row, ...]:
    return (fold.signal,) if fold.changed and fold.signal else ()


def _changed_entity(fold: EntityFold) -> tuple[Row, ...]:
    return (fold.entity,) if fold.changed and fold.entity else ()


def _changed_schedule(fold: ScheduleFold) -> tuple[Row, ...]:
    return (fold.schedule,) if fold.changed and fold.schedule else ()


def _changed_run(fold: RunFold) -> tuple[Row, ...]:
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


def _all_of_signal(state: SignalState) -> tuple[Row, ...]:
    return (state.signal,) if state.signal else ()


def _all_of_entity(state: EntityState) -> tuple[Row, ...]:
    return (state.entity,) if state.entity else ()


def _all_of_schedule(state: ScheduleState) -> tuple[Row, ...]:
    return (state.schedule,) if state.schedule else ()


def _all_of_run(state: RunState) -> tuple[Row, ...]:
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


def _by_id(rows: Mapping[str, _T]) -> list[_T]:
    return [rows[row_id] for row_id in sorted(rows)]


class _Rows(NamedTuple):
    """How the rows of one kind of stream are found: those that changed, and all."""

    changed: Callable[[Any], tuple[Row, ...]]
    all: Callable[[Any], tuple[Row, ...]]


_ROWS: Final[dict[StreamKind, _Rows]] = {
    "SIGNAL": _Rows(_changed_signal, _all_of_signal),
    "RUN": _Rows(_changed_run, _all_of_run),
    "ENTITY": _Rows(_changed_entity, _all_of_entity),
    "SCHEDULE": _Rows(_changed_schedule, _all_of_schedule),
}
