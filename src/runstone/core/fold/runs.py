"""Takes the events of the run itself in."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, UnsetType
from msgspec.structs import replace

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, RunFold, utc
from runstone.core.payloads import runs
from runstone.core.run import Run
from runstone.core.state import FOLD_VERSION
from runstone.errors import CommandRefused, StateTransitionError


def created(fold: RunFold, event: Event, data: runs.RunCreated) -> None:
    if fold.run is not None:
        raise StateTransitionError("run", fold.stream_id, fold.run.status, "PENDING")
    fold.run = Run(
        id=fold.stream_id,
        tenant_id=fold.tenant_id,
        signal_id=data.signal_id,
        run_type=data.run_type,
        project=data.project,
        environment=data.environment,
        plan_id=data.plan_id,
        plan_version=data.plan_version,
        run_request_id=data.signal_id,
        key=data.key,
        created_at=event.occurred_at,
        started_at=None,
        completed_at=None,
        status="PENDING",
        exit_reason=None,
        error_details=None,
        result=None,
        correlation_id=event.correlation_id,
        causation_id=data.parent_run_id,
        orchestrator_version=data.orchestrator_version,
        engine_run_ref=_reference(event),
        generation=1,
        total_steps=0,
        failed_steps=0,
        fold_version=FOLD_VERSION,
        metadata=fold.keep_any(event, "metadata", data.metadata),
    )
    fold.cursor = fold.created_event = event.id
    fold.signal_event = event.causation_id
    fold.lane = data.lane
    fold.lane_limit = data.lane_limit
    fold.approval_required = data.approval_required
    if not data.approval_required:
        fold.wake(event)


def _reference(event: Event) -> Raw | None:
    return None if event.engine_run_ref is None else Raw(codec.encode(event.engine_run_ref))


def approved(fold: RunFold, event: Event, data: runs.RunApproved) -> None:
    fold.to("APPROVED")
    fold.cursor = event.id
    fold.wake(event)


def started(fold: RunFold, event: Event, data: runs.RunStarted) -> None:
    changes: dict[str, Any] = {"orchestrator_version": data.orchestrator_version}
    if event.engine_run_ref is not None:
        changes["engine_run_ref"] = _reference(event)
    fold.to("RUNNING", origins=("PENDING", "APPROVED"), started_at=event.occurred_at, **changes)
    fold.cursor = event.id
    fold.wake(event)


def paused(fold: RunFold, event: Event, data: runs.RunPaused) -> None:
    fold.to("PAUSED")
    fold.news_seq = event.run_seq
    fold.unseen_failures = _parked(data)
    fold.paused_event = event.id
    fold.sleep()


def _parked(data: runs.RunPaused) -> frozenset[str]:
    """The step that parked the run, by the pause's own word."""
    if data.reason != "PARKED" or isinstance(data.details, UnsetType):
        return frozenset()
    details = msgspec.json.decode(data.details)
    step = details.get("step") if isinstance(details, dict) else None
    return frozenset({step} if isinstance(step, str) else ())


def resumed(fold: RunFold, event: Event, data: runs.RunResumed) -> None:
    fold.to("RUNNING", origins=("PAUSED",))
    fold.unseen_failures = frozenset()
    fold.paused_event = None
    fold.cursor = event.id
    fold.news_seq = event.run_seq
    if not fold.handler_returned:
        fold.wake(event)


def suspended(fold: RunFold, event: Event, data: runs.RunSuspended) -> None:
    run = fold.existing("RUNNING")
    if run.status != "RUNNING" or fold.handler_returned:
        raise CommandRefused(f"Run {run.id} is {run.status}: only a running handler suspends")
    fold.suspended = True
    fold.wake_at = utc(data.wake_at)


def variable_set(fold: RunFold, event: Event, data: runs.RunVariableSet) -> None:
    fold.existing("RUNNING")
    fold.variables[data.name] = data.value
    fold.variable_sets += 1


def checkpointed(fold: RunFold, event: Event, data: runs.RunCheckpointCreated) -> None:
    fold.existing("RUNNING")
    fold.checkpoints = data.checkpoint_index + 1


def returned(fold: RunFold, event: Event, data: runs.RunHandlerReturned) -> None:
    run = fold.existing("RUNNING")
    if run.status != "RUNNING" or fold.handler_returned:
        raise CommandRefused(f"Run {run.id} is {run.status} and its handler cannot return again")
    fold.run = replace(run, result=fold.keep(event, "result", data.result))
    fold.handler_returned = True
    fold.cursor = event.id
    fold.sleep()


def continued(fold: RunFold, event: Event, data: runs.RunContinued) -> None:
    run = fold.existing("RUNNING")
    if run.status != "RUNNING" or fold.handler_returned or data.generation != run.generation + 1:
        raise CommandRefused(f"Run {run.id} cannot continue as generation {data.generation}")
    fold.run = replace(run, generation=data.generation)
    fold.carry = data.carry
    fold.continued = (event.occurred_at, event.id)
    fold.variables = {}
    fold.variable_sets = 0
    fold.latest_steps = {}
    fold.due_attempts = {}
    fold.retry_times = {}
    fold.last_output = None
    fold.cursor = event.id
    fold.wake(event)


def completed(fold: RunFold, event: Event, data: runs.RunCompleted) -> None:
    fold.to("COMPLETED", completed_at=event.occurred_at)
    fold.sleep()


def failed(fold: RunFold, event: Event, data: runs.RunFailed) -> None:
    fold.to(
        "FAILED",
        completed_at=event.occurred_at,
        exit_reason=data.exit_reason,
        error_details=Raw(codec.encode(data.error)),
    )
    fold.sleep()


def cancelled(fold: RunFold, event: Event, data: runs.RunCancelled) -> None:
    fold.to("CANCELLED", completed_at=event.occurred_at, exit_reason=data.exit_reason)
    fold.news_seq = event.run_seq
    fold.sleep()


REDUCERS: Final[dict[str, Reducer]] = {
    "RUN_CREATED": created,
    "RUN_APPROVED": approved,
    "RUN_STARTED": started,
    "RUN_PAUSED": paused,
    "RUN_RESUMED": resumed,
    "RUN_SUSPENDED": suspended,
    "RUN_VARIABLE_SET": variable_set,
    "RUN_CHECKPOINT_CREATED": checkpointed,
    "RUN_HANDLER_RETURNED": returned,
    "RUN_CONTINUED": continued,
    "RUN_COMPLETED": completed,
    "RUN_FAILED": failed,
    "RUN_CANCELLED": cancelled,
}
