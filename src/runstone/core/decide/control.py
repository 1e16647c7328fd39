"""Decisions about control signals: approve, pause, resume, cancel, retry a step, answer a wait (§ENG-25)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from runstone.core import codec, commands, payloads
from runstone.core.decide import runs, steps
from runstone.core.decide.case import CaseWriter
from runstone.core.effect import EFFECT_WAIT
from runstone.core.payloads import NOT_AUTHORIZED, ErrorInfo
from runstone.core.state import CONTROLS_A_MINUTE
from runstone.core.step import Step
from runstone.core.transitions import RUN
from runstone.errors import TooManyControls

_MINUTE: Final = timedelta(minutes=1)
_NAMED: Final = 10
"""How many keys of steps a refusal names at most."""


def refuse(case: CaseWriter, command: commands.RefuseControl) -> None:
    case.existing_run()
    if command.control_signal_id in case.state.controls:
        return
    denied = command.error.code == NOT_AUTHORIZED
    _check_rate(case, case.state.denied_times if denied else case.state.control_times)
    _rejected(case, command, command.error)


def control(case: CaseWriter, command: commands.Control) -> None:
    """Accepts the signal and does what it asks, or records why that cannot be; once for each id."""
    if command.control_signal_id in case.state.controls:
        return
    _check_rate(case, case.state.control_times)
    objection = _objection(case, command)
    if objection is not None:
        error = ErrorInfo(category="VALIDATION", code="NOT_APPLICABLE", message=objection)
        _rejected(case, command, error)
        return
    accepted = case.run.record(
        payloads.SignalAccepted(
            kind=command.kind, sender=command.sender, target=command.target, data=command.data
        ),
        cause=_occasion(case, command),
        control_signal_id=command.control_signal_id,
    )
    _carry_out(case, command, accepted.id)


def _check_rate(case: CaseWriter, times: tuple[datetime, ...]) -> None:
    """One too many is refused and not recorded, or it would be a way to fill the log (§ENG-27).

    The log itself says how many there were, so the limit holds whichever process they came through.
    """
    if len(times) < CONTROLS_A_MINUTE:
        return
    wait = times[-CONTROLS_A_MINUTE] + _MINUTE - case.context.now
    if wait > timedelta(0):
        raise TooManyControls(
            f"A run takes at most {CONTROLS_A_MINUTE} control signals a minute: "
            f"try again in {wait.total_seconds():.0f} s",
            retry_after=wait,
        )


def _objection(case: CaseWriter, command: commands.Control) -> str | None:
    run = case.existing_run()
    if run.status in RUN.terminal:
        return f"the run has ended ({run.status})"
    if command.kind == "APPROVE" and not (run.status == "PENDING" and case.state.approval_required):
        return f"the run is {run.status} and waits for no approval"
    if command.kind == "PAUSE" and run.status != "RUNNING":
        return f"the run is {run.status}, not running"
    if command.kind == "RESUME" and run.status != "PAUSED":
        return f"the run is {run.status}, not paused"
    if command.kind == "ANSWER" and not command.target:
        return "an answer names the wait it is for"
    if command.kind == "ANSWER" and (command.target or "").startswith(EFFECT_WAIT):
        return "an effect's outcome comes from the outbox"
    if command.kind == "RETRY_STEP":
        return _retry_objection(case, command.target)
    return None


def _retry_objection(case: CaseWriter, step_key: str | None) -> str | None:
    if case.state.handler_returned:
        return "its handler has returned"
    step_id = case.state.latest_steps.get(step_key or "")
    if step_id is None:
        return f"there is no step {step_key!r}{_retriable(case)}"
    status = case.state.steps[step_id].status
    if status != "FAILED":
        return f"step {step_key!r} is {status}, not failed"
    if step_key in case.state.due_attempts:
        return f"step {step_key!r} is to be tried again already"
    if step_key not in case.state.unseen_failures:
        return (
            f"the handler has dealt with the failure of {step_key!r}: "
            "only a step that parked its run, or failed while the run was paused, is tried again"
        )
    return None


def _retriable(case: CaseWriter) -> str:
    """Which steps somebody may have meant: a key has a number, which is easily forgotten."""
    keys = sorted(case.state.unseen_failures)
    more = ", …" if len(keys) > _NAMED else ""
    return f"; those that can be retried: {', '.join(keys[:_NAMED])}{more}" if keys else ""


def _carry_out(case: CaseWriter, command: commands.Control, cause: str) -> None:
    signal_id = command.control_signal_id
    match command.kind:
        case "APPROVE":
            case.run.record(
                payloads.RunApproved(approved_by=command.sender), cause=cause, control_signal_id=signal_id
            )
        case "PAUSE":
            case.run.record(
                payloads.RunPaused(reason=command.reason or "OPERATOR"),
                cause=cause,
                control_signal_id=signal_id,
            )
        case "RESUME":
            _resume(case, signal_id, cause)
        case "CANCEL":
            runs.end_cancelled(case, command.reason or "CANCELLED_BY_OPERATOR", signal_id, cause)
        case "RETRY_STEP":
            assert command.target is not None
            steps.record_retry(case, command.target, "OPERATOR", None, signal_id, cause)
            if not case.state.unseen_failures:  # the handler would see another's failure, for good
                _resume(case, signal_id, cause)
        case _:
            _answer(case, command, cause)


def _resume(case: CaseWriter, control_signal_id: str, cause: str) -> None:
    case.run.record(payloads.RunResumed(), cause=cause, control_signal_id=control_signal_id)


def _answer(case: CaseWriter, command: commands.Control, cause: str) -> None:
    """The oldest open wait of that name takes it; without one it is kept for the wait to come (§ENG-24)."""
    step = _open_wait(case, command.target)
    if step is not None:
        data = command.data or codec.NULL
        steps.complete_wait(case, step, data, command.control_signal_id, cause)


def _open_wait(case: CaseWriter, name: str | None) -> Step | None:
    open_steps = (case.state.steps[step_id] for step_id in case.state.open_steps.values())
    return next((step for step in open_steps if name and step.wait_name == name), None)


def _rejected(case: CaseWriter, command: commands.Control | commands.RefuseControl, error: ErrorInfo) -> None:
    case.run.record(
        payloads.SignalRejected(kind=command.kind, sender=command.sender, target=command.target, error=error),
        cause=_occasion(case, command),
        control_signal_id=command.control_signal_id,
    )


def _occasion(case: CaseWriter, command: commands.Control | commands.RefuseControl) -> str | None:
    """What somebody outside reacts to: what the signal refers to, or else that the run is there (§ORD-41)."""
    state = case.state
    referred: str | None = None
    match command.kind:
        case "ANSWER":
            wait = _open_wait(case, command.target)
            referred = state.causes[wait.id] if wait else None
        case "RETRY_STEP":
            referred = state.causes.get(state.latest_steps.get(command.target or "", ""))
        case "RESUME":
            referred = state.paused_event
    return referred or state.created_event
