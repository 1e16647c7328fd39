"""One run as somebody wants to see it who has to decide what to do about it: folded from its log."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Raw

from runstone.audit.doctor import tenant_option
from runstone.core import codec
from runstone.core.effect import EFFECT_WAIT, Effect
from runstone.core.events import Event
from runstone.core.payloads import ErrorInfo, RunPaused, StepFailed
from runstone.core.run import Run
from runstone.core.signal import Signal
from runstone.core.state import RunState
from runstone.core.step import Step
from runstone.core.transitions import RUN

_ADVICE: Final = {
    "PARKED": (
        "put right what the step met with; then `runstone control retry {run} {step}` tries it again, and "
        "`runstone control resume {run}` lets the handler see the failure"
    ),
    "NON_DETERMINISTIC": (
        "the handler asked for something else than the log says: compare what was expected with what it "
        "asked for, put the code right, start the workers again, then `runstone control resume {run}`"
    ),
    "QUARANTINED": (
        "find out what keeps failing the worker when it comes to this run, mend that, then "
        "`runstone control resume {run}`"
    ),
}
"""What to do about a pause that nobody asked for."""


class _View(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Source(_View, frozen=True, kw_only=True):
    """What the run was started by."""

    type: str
    channel: str
    source_id: str


class Failure(_View, frozen=True, kw_only=True):
    """Why it failed, and in which step if it was one."""

    code: str
    message: str
    category: str
    step: str | None = None


class Wait(_View, frozen=True, kw_only=True):
    """A wait that nobody has answered; without a name it is a sleep."""

    step: str
    name: str | None
    until: datetime | None

    @property
    def takes_answer(self) -> bool:
        """Whether a person can end it: sleeps and outcomes of effects are nobody's to answer."""
        return self.name is not None and not self.name.startswith(EFFECT_WAIT)


class Pause(_View, frozen=True, kw_only=True):
    """What stopped the run until somebody resumes it."""

    reason: str
    since: datetime
    by: str
    details: Raw | None = None


class StepView(_View, frozen=True, kw_only=True):
    """The latest attempt at a step."""

    step: str
    type: str
    status: str
    attempts: int
    generation: int
    started_at: datetime
    completed_at: datetime | None
    duration_ms: int | None
    error: Failure | None


class EffectView(_View, frozen=True, kw_only=True):
    """Something the run wants done outside."""

    id: str
    type: str
    status: str
    tries: int
    step: str | None
    next_retry_at: datetime | None
    error: Failure | None


class Overview(_View, frozen=True, kw_only=True):
    """Everything of a run that fits on a page."""

    id: str
    status: str
    handler: str
    code_version: str
    generation: int
    key: str | None
    correlation_id: str
    source: Source | None
    received_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None
    exit_reason: str | None
    result: Raw | None
    error: Failure | None
    paused: Pause | None
    approval_required: bool
    """It waits for somebody to approve it."""
    retryable_steps: tuple[str, ...]
    """Steps whose failure the handler has not seen: they can be tried again."""
    waits: tuple[Wait, ...]
    suspended: bool
    """It has left memory until one of its waits ends."""
    wake_at: datetime | None
    """When a worker is to look at it, or was: none while only an answer or a person can wake it."""
    last_actor: str
    """Who wrote its latest event."""
    last_at: datetime
    last_seq: int
    pipeline_state: str | None
    variables: Mapping[str, Raw]
    steps: tuple[StepView, ...]
    effects: tuple[EffectView, ...]
    to_do: tuple[str, ...]
    """What a person can do now, with the commands."""


def overview(state: RunState, events: Sequence[Event], signal: Signal | None) -> Overview:
    """The page about a run, from the fold of its whole log."""
    run = state.run
    assert run is not None, "a run that was found was created"
    paused = _pause(run, events)
    waits = open_waits(state)
    return Overview(
        id=run.id,
        status=run.status,
        handler=run.plan_id,
        code_version=run.orchestrator_version,
        generation=run.generation,
        key=run.key,
        correlation_id=run.correlation_id,
        source=_source(signal),
        received_at=run.created_at if signal is None else signal.ingested_at,
        started_at=run.started_at,
        completed_at=run.completed_at,
        duration_ms=_milliseconds(run.started_at, run.completed_at),
        exit_reason=run.exit_reason,
        result=None if run.result is None else state.whole(run.result),
        error=_failure(run.error_details, state, _failed_step(run, state, events)),
        paused=paused,
        approval_required=waits_for_approval(state),
        retryable_steps=retryable_steps(state),
        waits=waits,
        suspended=state.suspended,
        wake_at=state.wake_at,
        last_actor=events[-1].actor,
        last_at=events[-1].occurred_at,
        last_seq=state.last_seq,
        pipeline_state=None if state.pipeline is None else state.pipeline.run_state,
        variables=state.variables,
        steps=tuple(_steps(state)),
        effects=tuple(_effect(effect, state) for effect in state.effects.values()),
        to_do=tuple(_to_do(run, state, paused, waits)),
    )


def open_waits(state: RunState) -> tuple[Wait, ...]:
    """The waits that are open, the oldest first."""
    steps = (state.steps[step_id] for step_id in state.open_steps.values())
    return tuple(
        Wait(step=step.step_key, name=step.wait_name, until=step.wait_deadline)
        for step in steps
        if step.step_type == "WAIT"
    )


def waits_for_approval(state: RunState) -> bool:
    return state.run is not None and state.run.status == "PENDING" and state.approval_required


def retryable_steps(state: RunState) -> tuple[str, ...]:
    """The steps that can be tried again (§ENG-29)."""
    if state.run is None or state.run.status in RUN.terminal or state.handler_returned:
        return ()
    return tuple(sorted(state.unseen_failures))


def _source(signal: Signal | None) -> Source | None:
    if signal is None:
        return None
    return Source(type=signal.signal_type, channel=signal.source_channel, source_id=signal.source_id)


def _pause(run: Run, events: Sequence[Event]) -> Pause | None:
    if run.status != "PAUSED":
        return None
    event = next(event for event in reversed(events) if event.event_type == "RUN_PAUSED")
    data = codec.decode_as(event.event_data, RunPaused)
    details = data.details if isinstance(data.details, Raw) else None
    return Pause(reason=data.reason, since=event.occurred_at, by=event.actor, details=details)


def _failed_step(run: Run, state: RunState, events: Sequence[Event]) -> str | None:
    """The step that failed the run, itself or by an effect it asked for; none if the handler's own error did.

    What caused the run's failure is no help: it is what let the handler go on (§ORD-42).
    """
    if run.error_details is None:
        return None
    error = codec.decode_as(state.whole(run.error_details), ErrorInfo)
    if state.handler_returned:
        return next((_key_of(one, state) for one in state.effects.values() if one.id in error.message), None)
    latest = set(state.latest_steps.values())
    for event in reversed(events):
        if event.event_type == "STEP_FAILED" and event.aggregate_id in latest:
            told = codec.decode_as(event.event_data, StepFailed).error
            if (told.code, told.message) == (error.code, error.message):
                return event.step_key
    return None


def _key_of(effect: Effect, state: RunState) -> str | None:
    step = state.steps.get(effect.step_id)
    return None if step is None else step.step_key


def _failure(details: Raw | None, state: RunState, step: str | None = None) -> Failure | None:
    if details is None:
        return None
    error = codec.decode_as(state.whole(details), ErrorInfo)
    return Failure(code=error.code, message=error.message, category=error.category, step=step)


def _steps(state: RunState) -> Iterator[StepView]:
    """One line a step; the attempts before its latest are only counted."""
    latest: dict[tuple[int, str], Step] = {}
    for step in state.steps.values():
        latest[step.generation, step.step_key] = step
    for step in latest.values():
        yield StepView(
            step=step.step_key,
            type=step.step_type,
            status=step.status,
            attempts=step.logical_attempt,
            generation=step.generation,
            started_at=step.started_at,
            completed_at=step.completed_at,
            duration_ms=_milliseconds(step.started_at, step.completed_at),
            error=_failure(step.error_details, state, step.step_key),
        )


def _effect(effect: Effect, state: RunState) -> EffectView:
    key = _key_of(effect, state)
    return EffectView(
        id=effect.id,
        type=effect.effect_type,
        status=effect.status,
        tries=effect.retry_count + (effect.status != "PENDING"),
        step=key,
        next_retry_at=effect.next_retry_at,
        error=_failure(effect.error_details, state, key),
    )


def _to_do(run: Run, state: RunState, paused: Pause | None, waits: Sequence[Wait]) -> Iterator[str]:
    option = tenant_option(run.tenant_id)
    named = f"{run.id}{option}"
    if waits_for_approval(state):
        yield f"it waits for approval: `runstone control approve {named}`"
    if paused is not None:
        parked = retryable_steps(state)
        advice = _ADVICE.get(paused.reason, "`runstone control resume {run}` lets it go on")
        if paused.reason != "PARKED" and parked:
            advice = _ADVICE["PARKED"]
        yield advice.format(run=named, step=shlex.quote(parked[0]) if parked else "STEP")
    for wait in waits:
        if wait.takes_answer:
            yield f"answer a wait: `runstone control answer {named} {shlex.quote(wait.name or '')} JSON`"
    for effect in state.effects.values():
        if effect.status == "DEAD_LETTER":
            yield f"a dead letter: `runstone outbox requeue {effect.id}{option}`, or `discard`"
        if effect.status == "UNKNOWN":
            yield (
                "nobody knows whether it was sent: look at its receiver, then "
                f"`runstone effects reconcile {effect.id}{option} --sent` or `--not-sent`"
            )
    if state.pipeline is not None:
        yield f"its graph: `runstone pipeline status {named}`"


def _milliseconds(started: datetime | None, ended: datetime | None) -> int | None:
    if started is None or ended is None:
        return None
    return (ended - started) // timedelta(milliseconds=1)
