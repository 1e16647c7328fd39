"""Takes the events of steps in."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import replace

from runstone.core import codec, transitions
from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, RunFold, utc
from runstone.core.payloads import steps
from runstone.core.step import Step, StepCorrection
from runstone.errors import CommandRefused, StateTransitionError


def _existing(fold: RunFold, event: Event, to_state: str) -> Step:
    step = fold.steps.get(event.aggregate_id)
    if step is None:
        raise StateTransitionError("step", event.aggregate_id, None, to_state)
    return step


def started(fold: RunFold, event: Event, data: steps.StepStarted) -> None:
    run = fold.existing("RUNNING")
    key = event.step_key or ""
    if run.status != "RUNNING" or fold.handler_returned:
        state = "has returned" if fold.handler_returned else f"is {run.status}"
        raise CommandRefused(f"Run {run.id} {state}: step {key!r} cannot start")
    if key in fold.open_steps or event.aggregate_id in fold.steps:
        raise StateTransitionError("step", event.aggregate_id, "RUNNING", "RUNNING")
    if data.step_index != len(fold.steps):
        raise CommandRefused(f"Step {key!r} has index {data.step_index}, not {len(fold.steps)}")
    wait = data.wait
    fold.steps[event.aggregate_id] = Step(
        id=event.aggregate_id,
        tenant_id=fold.tenant_id,
        run_id=fold.stream_id,
        step_index=data.step_index,
        step_type=data.step_type,
        step_key=key,
        generation=run.generation,
        logical_attempt=event.logical_attempt or 1,
        engine_attempt=event.engine_attempt,
        started_at=event.occurred_at,
        completed_at=None,
        status="RUNNING",
        input_context=fold.keep(event, "input_context", data.input_context),
        input_digest=data.input_digest,
        output_result=None,
        specialist_id=data.specialist_id,
        error_details=None,
        skip_reason=None,
        retry_count=data.retry_count,
        artifacts=None,
        wait_name=wait.name if wait else None,
        wait_deadline=utc(wait.deadline) if wait else None,
        correlation_id=event.correlation_id,
        metadata=fold.keep_any(event, "metadata", data.metadata),
    )
    fold.open_steps[key] = event.aggregate_id
    fold.latest_steps[key] = event.aggregate_id
    fold.due_attempts.pop(key, None)
    fold.retry_times.pop(key, None)


def _ended(fold: RunFold, event: Event, status: str, **changes: Any) -> Step:
    """What every end of a step has in common: counters, and waking a run that waited for it."""
    step = _existing(fold, event, status)
    transitions.STEP.check(step.id, step.status, status)
    run = fold.existing("RUNNING")
    ended = replace(step, status=status, completed_at=event.occurred_at, **changes)
    fold.steps[step.id] = ended
    fold.open_steps.pop(step.step_key, None)
    fold.ends[step.id] = event.run_seq
    fold.run = replace(
        run,
        total_steps=run.total_steps + 1,
        failed_steps=run.failed_steps + (status == "FAILED"),
    )
    fold.cursor = event.id
    if event.control_signal_id is not None:
        fold.news_seq = event.run_seq
    if fold.suspended:
        fold.wake(event)
    return ended


def completed(fold: RunFold, event: Event, data: steps.StepCompleted) -> None:
    step = _ended(
        fold,
        event,
        "COMPLETED",
        output_result=fold.keep(event, "output_result", data.output_result),
        artifacts=Raw(codec.encode(data.artifacts)) if data.artifacts else None,
    )
    fold.last_output = (event.id, "output_result")
    if step.wait_name in fold.answers and event.control_signal_id is not None:
        _take_answer(fold, step.wait_name, event.control_signal_id)


def _take_answer(fold: RunFold, name: str, control_signal_id: str) -> None:
    left = tuple(kept for kept in fold.answers[name] if kept.control_signal_id != control_signal_id)
    if left:
        fold.answers[name] = left
    else:
        del fold.answers[name]


def failed(fold: RunFold, event: Event, data: steps.StepFailed) -> None:
    step = _ended(
        fold,
        event,
        "FAILED",
        error_details=Raw(codec.encode(data.error)),
        artifacts=Raw(codec.encode(data.artifacts)) if data.artifacts else None,
    )
    if fold.existing("RUNNING").status == "PAUSED":
        fold.unseen_failures |= {step.step_key}


def skipped(fold: RunFold, event: Event, data: steps.StepSkipped) -> None:
    _ended(fold, event, "SKIPPED", skip_reason=data.reason)


def retried(fold: RunFold, event: Event, data: steps.StepRetried) -> None:
    step = _existing(fold, event, "RUNNING")
    if fold.handler_returned:
        raise CommandRefused(f"The handler has returned: step {step.step_key!r} is not tried again")
    if step.status != "FAILED" or fold.latest_steps.get(step.step_key) != step.id:
        raise CommandRefused(f"Step {step.step_key!r} is {step.status}: only its last failure is retried")
    if data.next_attempt != step.logical_attempt + 1:
        raise CommandRefused(f"Attempt {data.next_attempt} of {step.step_key!r} does not come next")
    fold.due_attempts[step.step_key] = data.next_attempt
    fold.unseen_failures -= {step.step_key}
    if data.retry_at is not None:
        fold.retry_times[step.step_key] = data.retry_at.astimezone(UTC)
    fold.cursor = event.id


def corrected(fold: RunFold, event: Event, data: steps.StepCorrected) -> None:
    step = _existing(fold, event, "COMPLETED")
    if step.status != "COMPLETED":
        raise CommandRefused(f"Step {step.step_key!r} is {step.status}: there is no output to correct")
    fold.corrections[event.id] = StepCorrection(
        id=event.id,
        tenant_id=fold.tenant_id,
        run_id=fold.stream_id,
        step_id=step.id,
        version=data.version,
        output_result=fold.keep(event, "corrected_output", data.corrected_output),
        reason=data.reason,
        corrected_at=event.occurred_at,
        corrected_by=event.actor,
        correlation_id=event.correlation_id,
    )


REDUCERS: Final[dict[str, Reducer]] = {
    "STEP_STARTED": started,
    "STEP_COMPLETED": completed,
    "STEP_FAILED": failed,
    "STEP_SKIPPED": skipped,
    "STEP_RETRIED": retried,
    "STEP_CORRECTED": corrected,
}
