"""The snapshot of a run: what a reader wants to see of it, derived and never the truth (§STO-8 to §STO-11).

It is made from rows, so that a store can build it from its tables and the fold from the log;
both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.fold import fold_run
from runstone.core.payloads import ArtifactRef, ErrorInfo
from runstone.core.run import Run
from runstone.core.state import RunState
from runstone.core.step import Step
from runstone.core.transitions import RunStatus, StepStatus

SnapshotStepStatus: TypeAlias = Literal["PENDING", "RUNNING", "SUCCESS", "FAILED", "SKIPPED"]

STEP_STATUS: Final[dict[StepStatus, SnapshotStepStatus]] = {
    "RUNNING": "RUNNING",
    "COMPLETED": "SUCCESS",
    "FAILED": "FAILED",
    "SKIPPED": "SKIPPED",
}
"""A snapshot says SUCCESS where the row says COMPLETED."""


class _View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class ArtifactView(_View, frozen=True, kw_only=True, rename="camel"):
    """Points at what a step left outside of the log."""

    uri: str
    kind: str
    sha256: str | None = None
    size_bytes: int | None = None
    expires_at: datetime | None = None


class StepErrorView(_View, frozen=True, kw_only=True, rename="camel"):
    """Why a step failed."""

    category: str
    code: str
    message: str
    retryable: bool


class StepSnapshot(_View, frozen=True, kw_only=True, rename="camel"):
    """The latest attempt at one step."""

    step_id: str
    status: SnapshotStepStatus
    logical_attempt_id: str
    engine_attempt_id: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: int | None = None
    artifacts: tuple[ArtifactView, ...]
    error: StepErrorView | None = None


class RunSnapshot(_View, frozen=True, kw_only=True, rename="camel"):
    """A run and the latest attempt at each of its steps."""

    run_id: str
    status: RunStatus
    last_event_seq: int
    steps: tuple[StepSnapshot, ...]
    artifacts: tuple[ArtifactView, ...]
    started_at: datetime | None = None
    completed_at: datetime | None = None
    total_duration_ms: int | None = None


def run_snapshot(run: Run, steps: Iterable[Step], last_seq: int) -> RunSnapshot:
    """The snapshot of a run's rows; `steps` come in the order of their index."""
    latest: dict[tuple[int, str], Step] = {}
    for step in steps:
        latest[step.generation, step.step_key] = step
    views = tuple(map(_step_snapshot, latest.values()))
    return RunSnapshot(
        run_id=run.id,
        status=run.status,
        last_event_seq=last_seq,
        steps=views,
        artifacts=tuple(artifact for view in views for artifact in view.artifacts),
        started_at=run.started_at,
        completed_at=run.completed_at,
        total_duration_ms=_duration(run.started_at, run.completed_at),
    )


def project(state: RunState) -> RunSnapshot | None:
    """The snapshot of a folded run."""
    if state.run is None:
        return None
    return run_snapshot(state.run, state.steps.values(), state.last_seq)


def project_run(run_id: str, tenant_id: str, events: Iterable[Event]) -> RunSnapshot | None:
    """The snapshot of a run's whole log."""
    return project(fold_run(RunState(stream_id=run_id, tenant_id=tenant_id), events))


def _step_snapshot(step: Step) -> StepSnapshot:
    return StepSnapshot(
        step_id=step.step_key,
        status=STEP_STATUS[step.status],
        logical_attempt_id=str(step.logical_attempt),
        engine_attempt_id=None if step.engine_attempt is None else str(step.engine_attempt),
        started_at=step.started_at,
        completed_at=step.completed_at,
        duration_ms=_duration(step.started_at, step.completed_at),
        artifacts=_artifacts(step),
        error=_error(step),
    )


def _artifacts(step: Step) -> tuple[ArtifactView, ...]:
    if step.artifacts is None:
        return ()
    references = codec.decode_as(step.artifacts, tuple[ArtifactRef, ...])
    return tuple(ArtifactView(**msgspec.structs.asdict(reference)) for reference in references)


def _error(step: Step) -> StepErrorView | None:
    if step.error_details is None:
        return None
    return StepErrorView(**msgspec.structs.asdict(codec.decode_as(step.error_details, ErrorInfo)))


def _duration(started: datetime | None, ended: datetime | None) -> int | None:
    if started is None or ended is None:
        return None
    return (ended - started) // timedelta(milliseconds=1)
