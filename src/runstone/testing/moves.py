"""What could legally happen next to a case: the moves that a random history chooses from.

Every move names the ids of what it creates, so that moves decided one by one can be decided
again as one commit. The simplest move of a state stands first: a tape of zeros is the dullest
history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias, get_args

from runstone.core import codec, commands
from runstone.core.commands import Command
from runstone.core.decide import Case
from runstone.core.effect import Effect, effect_wait
from runstone.core.payloads import ControlKind, EntityRef, RunType, SignalType, StepType, WaitSpec
from runstone.core.run import Run
from runstone.core.state import CONTROLS_A_MINUTE, RunState
from runstone.core.step import Step
from runstone.core.transitions import EFFECT, RUN
from runstone.testing.pen import Pen

Move: TypeAlias = tuple[int, Callable[[], Command]]
"""How likely a command is beside the others, and how to make it."""

STEP_KEYS: Final = ("plan", "draft", "größe/1", "a'b\"c", "👩‍👩‍👧#2", "wait", "send", "check")
WAITS: Final = ("approval", "größe?", None)
EFFECTS: Final = ("SEND_EMAIL", "SOR_UPDATE", "CUSTOM")


def moves(case: Case, pen: Pen) -> list[Move]:
    """Everything that `decide` has to allow now."""
    if case.signal.signal is None:
        return [(1, partial(_receive, pen))]
    found = [*_beginnings(case, pen)]
    run = case.run.run
    if run is not None:
        if run.status not in RUN.terminal:
            found += _steps(case.run, run, pen)
            found += _tools(case.run, pen)
            found += _rests(case.run, run, pen)
            found += _ends(case.run, run, pen)
        found += _effects(case.run, pen)
        found += _controls(case.run, run, pen)
        found += _corrections(case.run, pen)
    found.append((1, partial(_conflict, pen)))
    return found


def _receive(pen: Pen) -> Command:
    return commands.ReceiveSignal(
        signal_type=pen.pick(get_args(SignalType)),
        source_channel=pen.text(),
        source_id=pen.new_id(),
        source_hash="0" * 64,
        normalized_payload=pen.payload(),
        received_at=pen.later(),
        ingested_by=pen.pick((None, "gateway")),
    )


def _conflict(pen: Pen) -> Command:
    return commands.ReportConflict(source_hash="f" * 64)


def _beginnings(case: Case, pen: Pen) -> Iterator[Move]:
    run = case.run.run
    if run is None:
        yield 20, partial(_create, pen)
    elif run.status == "APPROVED" or (run.status == "PENDING" and not case.run.approval_required):
        yield 40, partial(commands.StartRun, orchestrator_version="1.10")


def _create(pen: Pen) -> Command:
    return commands.CreateRun(
        plan_id="handler",
        run_type=pen.pick(get_args(RunType)),
        plan_version=pen.pick(("", "1", "größe")),
        orchestrator_version=pen.pick(("", "1.9")),
        project=pen.text(),
        key=pen.pick((None, pen.new_id())),
        approval_required=pen.chance.below(3) == 2,
        metadata=pen.maybe_payload(),
    )


# The handler at work


def _steps(state: RunState, run: Run, pen: Pen) -> Iterator[Move]:
    if run.status == "RUNNING" and not state.handler_returned:
        for key in STEP_KEYS:
            if key not in state.latest_steps or key in state.due_attempts:
                yield 40, partial(_start_step, pen, key, tuple(map(effect_wait, state.effects)))
                break
    for key, step_id in state.open_steps.items():
        yield 20, partial(_complete_step, pen, state.steps[step_id])
        yield 12, partial(_fail_step, pen, key)
        yield 3, partial(_skip_step, pen, key)
        yield 8, partial(_call_tool, pen, key)
        yield 15, partial(_request_effect, pen, key, len(state.effects))
    for key in _failed(state):
        yield 15, partial(_retry_step, pen, key)


def _failed(state: RunState) -> list[str]:
    """Steps that may be tried again."""
    return [
        key
        for key, step_id in state.latest_steps.items()
        if state.steps[step_id].status == "FAILED"
        and key not in state.due_attempts
        and not state.handler_returned
    ]


def _start_step(pen: Pen, key: str, effects: tuple[str, ...]) -> Command:
    step_type: StepType = pen.pick(get_args(StepType))
    wait = None
    if step_type == "WAIT":
        wait = WaitSpec(name=pen.pick((*WAITS, *effects)), deadline=pen.pick((None, pen.later())))
    return commands.StartStep(
        step_key=key,
        step_id=pen.new_id(),
        step_type=step_type,
        arguments=pen.maybe_payload(),
        sor_entities=pen.pick(((), (EntityRef(entity_id="1", entity_type=pen.text()),))),
        specialist_context=pen.maybe_payload(),
        specialist_id="expert" if step_type == "SPECIALIST_CALL" else None,
        wait=wait,
        metadata=pen.maybe_payload(),
    )


def _complete_step(pen: Pen, step: Step) -> Command:
    output = pen.output(step.step_type)
    return commands.CompleteStep(step_key=step.step_key, output=output, artifacts=pen.artifacts())


def _fail_step(pen: Pen, key: str) -> Command:
    return commands.FailStep(step_key=key, error=pen.error(), artifacts=pen.artifacts())


def _skip_step(pen: Pen, key: str) -> Command:
    return commands.SkipStep(step_key=key, reason=pen.text())


def _retry_step(pen: Pen, key: str) -> Command:
    return commands.RetryStep(step_key=key, retry_at=pen.pick((None, pen.later())))


def _call_tool(pen: Pen, key: str) -> Command:
    return commands.CallTool(
        step_key=key,
        tool_call_id=pen.new_id(),
        tool_name=pen.text(),
        tool_args=pen.payload(),
        metadata=pen.maybe_payload(),
    )


def _tools(state: RunState, pen: Pen) -> Iterator[Move]:
    for call in state.tool_calls.values():
        if call.status == "PENDING":
            yield 10, partial(_complete_tool, pen, call.id)
            yield 5, partial(_fail_tool, pen, call.id)


def _complete_tool(pen: Pen, call_id: str) -> Command:
    hit = bool(pen.chance.below(2))
    return commands.CompleteTool(tool_call_id=call_id, result=pen.payload(), duration_ms=7, cache_hit=hit)


def _fail_tool(pen: Pen, call_id: str) -> Command:
    return commands.FailTool(tool_call_id=call_id, error=pen.error(), duration_ms=2**53 - 1)


def _corrections(state: RunState, pen: Pen) -> Iterator[Move]:
    for step in state.steps.values():
        if step.status == "COMPLETED":
            yield 1, partial(_correct, pen, step)


def _correct(pen: Pen, step: Step) -> Command:
    return commands.CorrectStep(step_id=step.id, output=pen.output(step.step_type), reason=pen.text())


def _rests(state: RunState, run: Run, pen: Pen) -> Iterator[Move]:
    if run.status != "RUNNING" or state.handler_returned:
        return
    yield 4, partial(_set_variable, pen)
    yield 3, partial(_create_checkpoint, pen)
    yield 5, partial(_suspend, pen, tuple(state.open_steps))
    yield 3, partial(_pause, pen)
    for key in _failed(state):
        yield 5, partial(_park, key)


def _set_variable(pen: Pen) -> Command:
    return commands.SetVariable(name=pen.text(), value=pen.payload())


def _create_checkpoint(pen: Pen) -> Command:
    return commands.CreateCheckpoint(checkpoint_id=pen.new_id())


def _suspend(pen: Pen, waiting: tuple[str, ...]) -> Command:
    return commands.SuspendRun(wake_at=pen.pick((None, pen.later())), waiting=waiting)


def _pause(pen: Pen) -> Command:
    return commands.PauseRun(reason="PARKED", details=pen.maybe_payload())


def _park(key: str) -> Command:
    return commands.PauseRun(reason="PARKED", details=codec.canonical({"step": key}))


def _ends(state: RunState, run: Run, pen: Pen) -> Iterator[Move]:
    if run.status == "RUNNING" and not state.handler_returned:
        yield 4, partial(_return_handler, pen)
        yield 1, partial(_continue_run, pen)
    if not state.handler_returned:
        yield 1, partial(_fail_run, pen)
    yield 1, partial(commands.CancelRun, exit_reason="TEST")


def _return_handler(pen: Pen) -> Command:
    return commands.ReturnHandler(result=pen.payload())


def _continue_run(pen: Pen) -> Command:
    return commands.ContinueRun(carry=pen.payload())


def _fail_run(pen: Pen) -> Command:
    return commands.FailRun(error=pen.error(), exit_reason=pen.pick((None, pen.text())))


# Others: dispatchers and people


def _request_effect(pen: Pen, key: str, ordinal: int) -> Command:
    return commands.RequestEffect(
        step_key=key,
        effect_id=pen.new_id(),
        effect_type=pen.pick(EFFECTS),
        spec={"body": pen.text() * pen.pick((1, 100)), "to": [pen.text()]},
        effect_key=pen.pick((None, pen.new_id())),
        ordinal=ordinal,
        max_retries=pen.pick((None, 0, 1)),
        critical=bool(pen.chance.below(2)),
        delivery=pen.pick(("at_least_once", "at_most_once")),
        metadata=pen.maybe_payload(),
        compensation=pen.chance.below(5) == 4,
    )


def _effects(state: RunState, pen: Pen) -> Iterator[Move]:
    for effect in state.effects.values():
        if effect.status in ("PENDING", "EXECUTING", "FAILED"):
            yield 10, partial(_complete_effect, pen, effect)
            yield 10, partial(_fail_effect, pen, effect)
        if effect.status in ("PENDING", "FAILED"):
            yield 10, partial(commands.BeginEffect, effect_id=effect.id, executor="d1", fence=1)
        if effect.status == "EXECUTING" and effect.delivery == "at_most_once":
            yield 20, partial(commands.LoseEffect, effect_id=effect.id, executor="d1")
        if effect.status == "UNKNOWN":
            yield 20, partial(_reconcile, pen, effect)
        if effect.status == "DEAD_LETTER":
            yield 10, partial(_requeue, pen, effect)
            yield 5, partial(_discard, pen, effect)
        if effect.status in EFFECT.terminal or effect.delivery == "at_most_once":
            yield 1, partial(_late_outcome, pen, effect)


def _complete_effect(pen: Pen, effect: Effect) -> Command:
    return commands.CompleteEffect(effect_id=effect.id, executor="d1", result=pen.payload())


def _fail_effect(pen: Pen, effect: Effect) -> Command:
    return commands.FailEffect(
        effect_id=effect.id, executor="d1", error=pen.error(), next_retry_at=pen.later()
    )


def _reconcile(pen: Pen, effect: Effect) -> Command:
    return commands.ReconcileEffect(effect_id=effect.id, sent=bool(pen.chance.below(2)), evidence=pen.text())


def _requeue(pen: Pen, effect: Effect) -> Command:
    return commands.RequeueEffect(effect_id=effect.id, reason=pen.text())


def _discard(pen: Pen, effect: Effect) -> Command:
    return commands.DiscardEffect(effect_id=effect.id, reason=pen.text())


def _late_outcome(pen: Pen, effect: Effect) -> Command:
    result = pen.maybe_payload()
    error = None if result else pen.error()
    return commands.ReportLateOutcome(effect_id=effect.id, executor="d0", result=result, error=error)


def _controls(state: RunState, run: Run, pen: Pen) -> Iterator[Move]:
    if len(state.control_times) == CONTROLS_A_MINUTE or len(state.denied_times) == CONTROLS_A_MINUTE:
        return
    control = partial(_control, pen)
    if run.status == "PENDING" and state.approval_required:
        yield 20, partial(control, "APPROVE")
    if run.status == "PAUSED":
        yield 40, partial(control, "RESUME")
    for step_id in state.open_steps.values():
        if (name := state.steps[step_id].wait_name) is not None:
            yield 20, partial(control, "ANSWER", name)
    for key in _failed(state):
        yield 5, partial(control, "RETRY_STEP", key)
    yield 1, partial(control, "PAUSE")
    yield 1, partial(control, "ANSWER", "approval")
    yield 1, partial(control, "CANCEL")
    yield 1, partial(control, "RETRY_STEP", "no such step")
    yield 1, partial(_refuse, pen)


def _control(pen: Pen, kind: ControlKind, target: str | None = None) -> Command:
    return commands.Control(
        control_signal_id=pen.new_id(), kind=kind, sender=pen.text(), target=target, data=pen.maybe_payload()
    )


def _refuse(pen: Pen) -> Command:
    return commands.RefuseControl(
        control_signal_id=pen.new_id(), kind="CANCEL", sender=pen.text(), error=pen.error()
    )
