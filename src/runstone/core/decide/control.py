"""Decisions about control signals: approve, pause, resume, cancel, retry a step, answer a wait (§ENG-25)."""

from __future__ import annotations

from runstone.core import codec, commands, payloads
from runstone.core.decide import runs, steps
from runstone.core.decide.case import CaseWriter
from runstone.core.payloads import ErrorInfo
from runstone.core.transitions import RUN


def refuse(case: CaseWriter, command: commands.RefuseControl) -> None:
    case.existing_run()
    if command.control_signal_id not in case.state.controls:
        _rejected(case, command, command.error)


def control(case: CaseWriter, command: commands.Control) -> None:
    """Accepts the signal and does what it asks, or records why that cannot be; once for each id."""
    if command.control_signal_id in case.state.controls:
        return
    objection = _objection(case, command)
    if objection is not None:
        error = ErrorInfo(category="VALIDATION", code="NOT_APPLICABLE", message=objection)
        _rejected(case, command, error)
        return
    accepted = case.run.record(
        payloads.SignalAccepted(
            kind=command.kind, sender=command.sender, target=command.target, data=command.data
        ),
        control_signal_id=command.control_signal_id,
    )
    _carry_out(case, command, accepted.id)


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
    if command.kind == "RETRY_STEP":
        return _retry_objection(case, command.target)
    return None


def _retry_objection(case: CaseWriter, step_key: str | None) -> str | None:
    if case.state.handler_returned:
        return "its handler has returned"
    step_id = case.state.latest_steps.get(step_key or "")
    if step_id is None:
        return f"there is no step {step_key!r}"
    status = case.state.steps[step_id].status
    if status != "FAILED":
        return f"step {step_key!r} is {status}, not failed"
    if step_key in case.state.due_attempts:
        return f"step {step_key!r} is to be tried again already"
    return None


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
            runs.end_cancelled(case, command.reason or "CANCELLED_BY_OPERATOR", signal_id)
        case "RETRY_STEP":
            assert command.target is not None
            steps.record_retry(case, command.target, "OPERATOR", None, signal_id, cause)
            if case.existing_run().status == "PAUSED":
                _resume(case, signal_id, cause)
        case _:
            _answer(case, command, cause)


def _resume(case: CaseWriter, control_signal_id: str, cause: str) -> None:
    case.run.record(payloads.RunResumed(), cause=cause, control_signal_id=control_signal_id)


def _answer(case: CaseWriter, command: commands.Control, cause: str) -> None:
    """The oldest open wait of that name takes it; without one it is kept for the wait to come (§ENG-24)."""
    for step_id in case.state.open_steps.values():
        step = case.state.steps[step_id]
        if step.wait_name == command.target:
            data = command.data or codec.NULL
            steps.complete_wait(case, step, data, command.control_signal_id, cause)
            return


def _rejected(case: CaseWriter, command: commands.Control | commands.RefuseControl, error: ErrorInfo) -> None:
    case.run.record(
        payloads.SignalRejected(kind=command.kind, sender=command.sender, target=command.target, error=error),
        control_signal_id=command.control_signal_id,
    )
