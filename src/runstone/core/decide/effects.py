"""Decisions about effects: asked for by a run, carried out by the dispatcher, put right by people.

Whoever records an outcome also tells the handler that waits for it, and asks for the next
compensation of a run that did not complete: all of it in the same commit.
"""

from __future__ import annotations

from msgspec import UNSET, Raw

from runstone.core import codec, commands, payloads
from runstone.core.decide import steps
from runstone.core.decide.case import CaseWriter
from runstone.core.effect import Effect
from runstone.core.keys import effect_key
from runstone.core.retry import effect_retries
from runstone.errors import CommandRefused, InvalidPayload


def request(case: CaseWriter, command: commands.RequestEffect) -> None:
    run = case.unfinished_run("ask for an effect")
    step_id = case.state.open_steps.get(command.step_key)
    if step_id is None:
        raise CommandRefused(f"There is no open step {command.step_key!r} to ask for an effect from")
    if "idempotency_key" in command.spec and command.effect_key is None:
        raise InvalidPayload("/idempotency_key", "name the key of an effect as its key, not inside its spec")
    key = command.effect_key or effect_key(
        run.tenant_id,
        run.id,
        command.step_key if run.generation == 1 else f"g{run.generation}:{command.step_key}",
        command.ordinal,
        command.effect_type,
        codec.canonical(command.spec),
    )
    spec = codec.canonical({**command.spec, "idempotency_key": key})
    if key in case.state.effect_keys:
        _check_same(case, case.state.effects[case.state.effect_keys[key]], command.effect_type, spec)
        return
    retries = command.max_retries
    kind = payloads.CompensationRegistered if command.compensation else payloads.EffectRequested
    more = {} if command.compensation else {"critical": command.critical}
    case.run.record(
        kind(
            step_id=step_id,
            effect_type=command.effect_type,
            effect_spec=spec,
            effect_key=key,
            max_retries=effect_retries(command.effect_type).max_retries if retries is None else retries,
            delivery=command.delivery,
            metadata=command.metadata,
            **more,
        ),
        aggregate_id=command.effect_id or case.context.new_id(),
        cause=case.state.causes[step_id],
        step_key=command.step_key,
    )


def compensate(case: CaseWriter) -> None:
    """A run that did not complete takes back what it did: the latest first, one after the other (§OUT-44).

    The next is asked for in the commit that ends the one before it, well or badly.
    """
    state = case.state
    if not state.compensations or state.run is None or state.run.status not in ("FAILED", "CANCELLED"):
        return
    under_way = state.effects[state.compensating].status if state.compensating else None
    if under_way in ("PENDING", "EXECUTING", "FAILED"):
        return
    next_one = state.compensations[next(reversed(state.compensations))]
    case.run.record(
        payloads.EffectRequested(
            step_id=next_one.step_id,
            effect_type=next_one.effect_type,
            effect_spec=next_one.effect_spec,
            effect_key=next_one.idempotency_key,
            max_retries=next_one.max_retries,
            critical=False,
            delivery=next_one.delivery,
            metadata=UNSET if next_one.metadata is None else next_one.metadata,
        ),
        aggregate_id=next_one.id,
        cause=state.last_event,
        step_key=next_one.step_key,
    )


def _check_same(case: CaseWriter, known: Effect, effect_type: str, spec: Raw) -> None:
    """The same key again is the same effect; for something else it is a mistake (§IDM-27)."""
    if (known.effect_type, bytes(case.state.whole(known.effect_spec))) != (effect_type, bytes(spec)):
        raise CommandRefused(f"The key {known.idempotency_key!r} stands for another effect of this run")


def begin(case: CaseWriter, command: commands.BeginEffect) -> None:
    _existing(case, command.effect_id)
    _executing(case, command.effect_id, command.executor, command.fence)


def complete(case: CaseWriter, command: commands.CompleteEffect) -> None:
    _begun(case, command.effect_id, command.executor, command.fence)
    case.run.record(payloads.EffectCompleted(execution_result=command.result), aggregate_id=command.effect_id)
    steps.tell_effect_wait(case, command.effect_id)


def fail(case: CaseWriter, command: commands.FailEffect) -> None:
    """One more failure: a retry is due, or the letter is dead."""
    effect = _begun(case, command.effect_id, command.executor, command.fence)
    case.run.record(
        payloads.EffectFailed(
            effect_type=effect.effect_type, error=command.error, retry_count=effect.retry_count
        ),
        aggregate_id=effect.id,
    )
    if command.error.retryable and effect.retry_count < effect.max_retries:
        case.run.record(
            payloads.EffectRetrying(retry_count=effect.retry_count + 1, next_retry_at=command.next_retry_at),
            aggregate_id=effect.id,
        )
    else:
        case.run.record(payloads.EffectDeadLettered(error=command.error), aggregate_id=effect.id)
        steps.tell_effect_wait(case, effect.id)


def lose(case: CaseWriter, command: commands.LoseEffect) -> None:
    effect = _existing(case, command.effect_id)
    if effect.delivery != "at_most_once":
        raise CommandRefused(f"Effect {effect.id} is delivered {effect.delivery}: it is simply sent again")
    case.run.record(
        payloads.EffectOutcomeUnknown(executor=command.executor, error=command.error), aggregate_id=effect.id
    )


def reconcile(case: CaseWriter, command: commands.ReconcileEffect) -> None:
    effect = _existing(case, command.effect_id)
    if effect.status != "UNKNOWN":
        raise CommandRefused(f"Effect {effect.id} is {effect.status}: only an unknown outcome is reconciled")
    case.run.record(
        payloads.EffectReconciled(sent=command.sent, evidence=command.evidence), aggregate_id=effect.id
    )
    steps.tell_effect_wait(case, effect.id)


def requeue(case: CaseWriter, command: commands.RequeueEffect) -> None:
    effect = _dead_letter(case, command.effect_id)
    case.run.record(payloads.EffectRequeued(reason=command.reason), aggregate_id=effect.id)


def discard(case: CaseWriter, command: commands.DiscardEffect) -> None:
    effect = _dead_letter(case, command.effect_id)
    case.run.record(payloads.EffectCancelled(reason=command.reason), aggregate_id=effect.id)
    steps.tell_effect_wait(case, effect.id)


def report_late_outcome(case: CaseWriter, command: commands.ReportLateOutcome) -> None:
    effect = _existing(case, command.effect_id)
    case.run.record(
        payloads.EffectLateOutcome(
            executor=command.executor, execution_result=command.result, error=command.error
        ),
        aggregate_id=effect.id,
    )


def _begun(case: CaseWriter, effect_id: str, executor: str, fence: int) -> Effect:
    """The beginning rides with the outcome, unless it had to be durable first (§OUT-7)."""
    if _existing(case, effect_id).status != "EXECUTING":
        _executing(case, effect_id, executor, fence)
    return case.state.effects[effect_id]


def _executing(case: CaseWriter, effect_id: str, executor: str, fence: int) -> None:
    case.run.record(payloads.EffectExecuting(executor=executor, fence=fence), aggregate_id=effect_id)


def _existing(case: CaseWriter, effect_id: str) -> Effect:
    effect = case.state.effects.get(effect_id)
    if effect is None:
        raise CommandRefused(f"There is no effect {effect_id} in run {case.state.stream_id}")
    return effect


def _dead_letter(case: CaseWriter, effect_id: str) -> Effect:
    effect = _existing(case, effect_id)
    if effect.status != "DEAD_LETTER":
        raise CommandRefused(f"Effect {effect.id} is {effect.status}: it is no dead letter")
    return effect
