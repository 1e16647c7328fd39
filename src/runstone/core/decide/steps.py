"""Decisions about steps and the tool calls inside them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import UNSET, Raw

from runstone.core import codec, commands, payloads
from runstone.core.decide.case import CaseWriter
from runstone.core.effect import EFFECT_WAIT, Effect, effect_wait
from runstone.core.keys import content_hash
from runstone.core.payloads import ErrorInfo, EventRef, InputContext, OptionalJson, OutputResult
from runstone.core.step import Step
from runstone.errors import CommandRefused

_MILLISECOND: Final = timedelta(milliseconds=1)


def start(case: CaseWriter, command: commands.StartStep) -> None:
    run = case.unfinished_run(f"start step {command.step_key!r}")
    state = case.state
    before = state.latest_steps.get(command.step_key)
    attempt, retries = _attempt(
        state.due_attempts.get(command.step_key), state.steps[before] if before else None
    )
    step_id = command.step_id or case.context.new_id()
    case.run.record(
        payloads.StepStarted(
            step_index=len(state.steps),
            step_type=command.step_type,
            input_context=Raw(codec.encode(_input_context(case, command))),
            input_digest=input_digest(command.arguments, command.sor_entities, command.specialist_context),
            specialist_id=command.specialist_id,
            retry_count=retries,
            wait=command.wait,
            metadata=command.metadata,
        ),
        aggregate_id=step_id,
        cause=command.cause or state.cursor,
        step_key=command.step_key,
        logical_attempt=attempt,
        generation=run.generation,
    )
    if command.wait is not None and command.wait.name in state.answers:
        answer = state.answers[command.wait.name][0]
        complete_wait(case, state.steps[step_id], answer.data, answer.control_signal_id, answer.event_id)
    elif command.wait is not None and (command.wait.name or "").startswith(EFFECT_WAIT):
        tell_effect_wait(case, (command.wait.name or "").removeprefix(EFFECT_WAIT))


def _attempt(due: int | None, before: Step | None) -> tuple[int, int]:
    if before is None:
        return 1, 0
    if due is None:
        raise CommandRefused(f"Step {before.step_key!r} has been done ({before.status}) and is not due again")
    return due, before.retry_count + 1


def _input_context(case: CaseWriter, command: commands.StartStep) -> InputContext:
    state = case.state
    prior = state.last_output
    return InputContext(
        arguments=command.arguments,
        signal_data=EventRef(event=state.signal_event, field="normalized_payload")
        if state.signal_event
        else None,
        prior_step_output=EventRef(event=prior[0], field=prior[1]) if prior else None,
        sor_entities=command.sor_entities,
        specialist_context=command.specialist_context,
    )


def input_digest(
    arguments: OptionalJson,
    sor_entities: tuple[payloads.EntityRef, ...] = (),
    specialist_context: OptionalJson = UNSET,
) -> str:
    """What replay compares: all that the caller gave, and nothing the log added (§ENT-16)."""
    given = InputContext(
        arguments=arguments, sor_entities=sor_entities, specialist_context=specialist_context
    )
    return content_hash(codec.encode(given))


def complete(case: CaseWriter, command: commands.CompleteStep) -> None:
    step = _open(case, command.step_key)
    _complete(case, step, command.output, artifacts=command.artifacts)


def complete_wait(
    case: CaseWriter, step: Step, answer: Raw, control_signal_id: str | None, cause: str
) -> None:
    """A wait gets its answer, whichever of the two came first."""
    _complete(case, step, OutputResult(answer=answer), control_signal_id=control_signal_id, cause=cause)


def tell_effect_wait(case: CaseWriter, effect_id: str) -> None:
    """Ends the wait for an effect that has an outcome, whichever of the two came first (§OUT-41)."""
    effect = case.state.effects.get(effect_id)
    if effect is None or not effect.has_outcome:
        return
    name, cause = effect_wait(effect_id), case.state.causes[effect_id]
    waiting = (case.state.steps[step_id] for step_id in case.state.open_steps.values())
    for step in [step for step in waiting if step.wait_name == name]:
        if effect.status == "COMPLETED":
            answer = (
                codec.NULL if effect.execution_result is None else case.state.whole(effect.execution_result)
            )
            complete_wait(case, step, answer, None, cause)
        else:
            end_failed(case, step, _effect_error(effect), cause=cause)


def _effect_error(effect: Effect) -> ErrorInfo:
    """What a handler is told of an effect that was not done."""
    if effect.status == "CANCELLED" or effect.error_details is None:
        return ErrorInfo(category="CANCELLED", code="EFFECT_CANCELLED", message="It was withdrawn")
    error = codec.decode_as(effect.error_details, ErrorInfo)
    return ErrorInfo(category=error.category, code=error.code, message=error.message)


def _complete(
    case: CaseWriter,
    step: Step,
    output: OutputResult,
    *,
    artifacts: tuple[payloads.ArtifactRef, ...] = (),
    control_signal_id: str | None = None,
    cause: str | None = None,
) -> None:
    case.run.record(
        payloads.StepCompleted(
            step_index=step.step_index,
            step_type=step.step_type,
            output_result=Raw(codec.encode(output)),
            duration_ms=elapsed_ms(step.started_at, case.context.now),
            artifacts=artifacts,
        ),
        aggregate_id=step.id,
        cause=cause,
        step_key=step.step_key,
        logical_attempt=step.logical_attempt,
        control_signal_id=control_signal_id,
        generation=step.generation,
    )


def fail(case: CaseWriter, command: commands.FailStep) -> None:
    end_failed(case, _open(case, command.step_key), command.error, command.artifacts)


def end_failed(
    case: CaseWriter,
    step: Step,
    error: payloads.ErrorInfo,
    artifacts: tuple[payloads.ArtifactRef, ...] = (),
    cause: str | None = None,
) -> None:
    case.run.record(
        payloads.StepFailed(
            step_index=step.step_index,
            step_type=step.step_type,
            error=error,
            duration_ms=elapsed_ms(step.started_at, case.context.now),
            artifacts=artifacts,
        ),
        aggregate_id=step.id,
        cause=cause,
        step_key=step.step_key,
        logical_attempt=step.logical_attempt,
        generation=step.generation,
    )


def skip(case: CaseWriter, command: commands.SkipStep) -> None:
    step = _open(case, command.step_key)
    case.run.record(
        payloads.StepSkipped(step_index=step.step_index, step_type=step.step_type, reason=command.reason),
        aggregate_id=step.id,
        step_key=step.step_key,
        logical_attempt=step.logical_attempt,
        generation=step.generation,
    )


def retry(case: CaseWriter, command: commands.RetryStep) -> None:
    case.handling_run(f"retry step {command.step_key!r}")
    record_retry(case, command.step_key, "POLICY", command.retry_at, None, None)


def record_retry(
    case: CaseWriter,
    step_key: str,
    reason: str,
    retry_at: datetime | None,
    control_signal_id: str | None,
    cause: str | None,
) -> None:
    step_id = case.state.latest_steps.get(step_key)
    if step_id is None:
        raise CommandRefused(f"There is no step {step_key!r} to retry")
    if step_key in case.state.due_attempts:
        raise CommandRefused(f"Step {step_key!r} is to be tried again already")
    step = case.state.steps[step_id]
    case.run.record(
        payloads.StepRetried(next_attempt=step.logical_attempt + 1, retry_at=retry_at, reason=reason),
        aggregate_id=step.id,
        cause=cause,
        step_key=step_key,
        logical_attempt=step.logical_attempt,
        control_signal_id=control_signal_id,
        generation=step.generation,
    )


def correct(case: CaseWriter, command: commands.CorrectStep) -> None:
    step = case.state.steps.get(command.step_id)
    if step is None or step.output_result is None:
        raise CommandRefused(f"Step {command.step_id} has no output to correct")
    earlier = [kept for kept in case.state.corrections.values() if kept.step_id == step.id]
    latest = earlier[-1].output_result if earlier else step.output_result
    case.run.record(
        payloads.StepCorrected(
            version=len(earlier) + 2,
            original_output=case.state.whole(latest),
            corrected_output=Raw(codec.encode(command.output)),
            reason=command.reason,
        ),
        aggregate_id=step.id,
        step_key=step.step_key,
        logical_attempt=step.logical_attempt,
    )


def call_tool(case: CaseWriter, command: commands.CallTool) -> None:
    step = _open(case, command.step_key)
    case.run.record(
        payloads.ToolCalled(
            step_id=step.id,
            tool_name=command.tool_name,
            tool_args=command.tool_args,
            metadata=command.metadata,
        ),
        aggregate_id=command.tool_call_id or case.context.new_id(),
        cause=case.state.causes[step.id],
        step_key=step.step_key,
        logical_attempt=step.logical_attempt,
    )


def complete_tool(case: CaseWriter, command: commands.CompleteTool) -> None:
    case.run.record(
        payloads.ToolCompleted(
            result=command.result, duration_ms=command.duration_ms, cache_hit=command.cache_hit
        ),
        aggregate_id=command.tool_call_id,
    )


def fail_tool(case: CaseWriter, command: commands.FailTool) -> None:
    case.run.record(
        payloads.ToolFailed(error=command.error, duration_ms=command.duration_ms),
        aggregate_id=command.tool_call_id,
    )


def _open(case: CaseWriter, step_key: str) -> Step:
    step_id = case.state.open_steps.get(step_key)
    if step_id is None:
        raise CommandRefused(f"There is no open step {step_key!r}")
    return case.state.steps[step_id]


def elapsed_ms(since: datetime, now: datetime) -> int:
    """Whole milliseconds, and none if a clock went back."""
    return max(0, (now - since) // _MILLISECOND)
