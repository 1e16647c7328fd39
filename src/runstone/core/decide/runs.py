"""Decisions about a run: its beginning, its rests, its end."""

from __future__ import annotations

from runstone.core import codec, commands, payloads
from runstone.core.decide import effects, steps
from runstone.core.decide.case import CaseWriter
from runstone.core.payloads import ArtifactRef, ErrorInfo
from runstone.core.transitions import SIGNAL
from runstone.errors import CommandRefused


def create(case: CaseWriter, command: commands.CreateRun) -> None:
    signal = case.signal.fold.existing("PROCESSING")
    if signal.status in SIGNAL.terminal:
        raise CommandRefused(f"Signal {signal.id} has ended ({signal.status}) and is not processed again")
    case.run.plan_version = command.plan_version
    case.run.record(
        payloads.RunCreated(
            signal_id=signal.id,
            run_type=command.run_type,
            plan_id=command.plan_id,
            plan_version=command.plan_version,
            orchestrator_version=command.orchestrator_version,
            project=command.project,
            environment=command.environment,
            key=command.key,
            parent_run_id=command.parent_run_id,
            lane=command.lane,
            lane_limit=command.lane_limit,
            approval_required=command.approval_required,
            metadata=command.metadata,
        ),
        cause=case.signal.fold.payload_event,
    )


def start(case: CaseWriter, command: commands.StartRun) -> None:
    run = case.existing_run()
    if run.status == "PENDING" and case.state.approval_required:
        raise CommandRefused(f"Run {run.id} waits for its approval")
    started = case.run.record(
        payloads.RunStarted(
            signal_id=run.signal_id,
            run_type=run.run_type,
            orchestrator_version=command.orchestrator_version or run.orchestrator_version,
        ),
        cause=case.state.cursor,
    )
    case.start_signal(started.id)


def pause(case: CaseWriter, command: commands.PauseRun) -> None:
    case.existing_run()
    case.run.record(
        payloads.RunPaused(reason=command.reason, details=command.details), cause=case.state.cursor
    )


def suspend(case: CaseWriter, command: commands.SuspendRun) -> None:
    case.handling_run("suspend")
    case.run.record(
        payloads.RunSuspended(wake_at=command.wake_at, waiting=command.waiting), cause=case.state.cursor
    )


def set_variable(case: CaseWriter, command: commands.SetVariable) -> None:
    case.unfinished_run("set a variable")
    case.run.record(payloads.RunVariableSet(name=command.name, value=command.value), cause=case.state.cursor)


def create_checkpoint(case: CaseWriter, command: commands.CreateCheckpoint) -> None:
    case.unfinished_run("be checkpointed")
    case.run.record(
        payloads.RunCheckpointCreated(
            checkpoint_id=command.checkpoint_id,
            checkpoint_index=case.state.checkpoints,
            last_seq=case.state.last_seq,
            head=case.state.seal_head(),
        ),
        cause=case.state.cursor,
    )


def return_handler(case: CaseWriter, command: commands.ReturnHandler) -> None:
    case.existing_run()
    cause = case.state.cursor
    close_open_work(case, "HANDLER_RETURNED", "The handler returned without waiting for it", cause)
    case.run.record(payloads.RunHandlerReturned(result=command.result), cause=cause)


def continue_run(case: CaseWriter, command: commands.ContinueRun) -> None:
    run = case.handling_run("continue as new")
    cause = case.state.cursor
    close_open_work(case, "RUN_CONTINUED", "The run went on in a new generation", cause)
    case.run.record(payloads.RunContinued(generation=run.generation + 1, carry=command.carry), cause=cause)


def fail(case: CaseWriter, command: commands.FailRun) -> None:
    case.unfinished_run("fail")
    cause = case.state.cursor
    close_open_work(case, "RUN_FAILED", "The run failed", cause)
    end_failed(case, command.exit_reason or command.error.code, command.error, cause)


def end_failed(case: CaseWriter, exit_reason: str, error: ErrorInfo, cause: str | None) -> None:
    """The run and its signal end by an error; what it asked for outside goes out all the same."""
    failed = case.run.record(payloads.RunFailed(exit_reason=exit_reason[:100], error=error), cause=cause)
    case.end_signal(failed.id, exit_reason)


def cancel(case: CaseWriter, command: commands.CancelRun) -> None:
    case.unfinished_run("be cancelled")
    end_cancelled(case, command.exit_reason, None, case.state.cursor)


def end_cancelled(
    case: CaseWriter, exit_reason: str, control_signal_id: str | None, cause: str | None
) -> None:
    """Ends the run, shuts its worker out, withdraws the effects nobody has begun (§TRN-19, §TRN-20)."""
    case.raise_fence = True
    close_open_work(case, "RUN_CANCELLED", "The run was cancelled", cause)
    for effect in list(case.state.effects.values()):
        if effect.status == "FAILED":
            withdrawn = ErrorInfo(
                category="CANCELLED", code="RUN_CANCELLED", message="No retry: its run ended"
            )
            case.run.record(payloads.EffectDeadLettered(error=withdrawn), aggregate_id=effect.id, cause=cause)
        if effect.status in ("PENDING", "FAILED"):
            withdrawal = payloads.EffectCancelled(reason="RUN_CANCELLED")
            case.run.record(withdrawal, aggregate_id=effect.id, cause=cause)
    cancelled = case.run.record(
        payloads.RunCancelled(exit_reason=exit_reason[:100]), cause=cause, control_signal_id=control_signal_id
    )
    case.end_signal(cancelled.id, exit_reason)


def close_open_work(case: CaseWriter, code: str, message: str, cause: str | None) -> None:
    """Steps and tool calls that were under way end with what ended their run, and by the same cause."""
    error = ErrorInfo(category="CANCELLED", code=code, message=message)
    now = case.context.now
    for call in list(case.state.tool_calls.values()):
        if call.status == "PENDING":
            failed = payloads.ToolFailed(error=error, duration_ms=steps.elapsed_ms(call.called_at, now))
            case.run.record(failed, aggregate_id=call.id, cause=cause)
    for step_id in list(case.state.open_steps.values()):
        steps.end_failed(case, case.state.steps[step_id], error, cause=cause)


def settle(case: CaseWriter) -> None:
    """What follows from the facts by itself: the run's end, and after a bad one what makes good for it."""
    _end_by_last_fact(case)
    effects.compensate(case)


def _end_by_last_fact(case: CaseWriter) -> None:
    """A run ends by its last fact, whoever writes it: its handler is back, no effect is open (§TRN-14)."""
    state = case.state
    run = state.run
    if run is None or run.status != "RUNNING" or not state.handler_returned or state.open_effects:
        return
    cause = state.last_event
    for effect in state.effects.values():
        if effect.status == "DEAD_LETTER" and effect.critical:
            error = ErrorInfo(
                category="EXTERNAL",
                code="EFFECT_DEAD_LETTERED",
                message=f"Effect {effect.id} ({effect.effect_type}) could not be delivered",
            )
            end_failed(case, "EFFECT_DEAD_LETTERED", error, cause)
            return
    completed = case.run.record(payloads.RunCompleted(artifacts=_artifacts(case)), cause=cause)
    case.end_signal(completed.id, None)


def _artifacts(case: CaseWriter) -> tuple[ArtifactRef, ...]:
    return tuple(
        artifact
        for step in case.state.steps.values()
        if step.artifacts is not None
        for artifact in codec.decode_as(step.artifacts, tuple[ArtifactRef, ...])
    )
