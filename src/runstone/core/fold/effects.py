"""Takes the events of effects in."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from msgspec import Raw, UnsetType
from msgspec.structs import replace

from runstone.core import codec, transitions
from runstone.core.effect import Compensation, Effect
from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, RunFold, utc
from runstone.core.payloads import effects
from runstone.errors import CommandRefused, StateTransitionError


def requested(fold: RunFold, event: Event, data: effects.EffectRequested) -> None:
    if event.aggregate_id in fold.effects:
        raise StateTransitionError("effect", event.aggregate_id, "PENDING", "PENDING")
    if data.step_id not in fold.steps:
        raise CommandRefused(f"Effect {data.effect_key!r} was asked for outside of a step")
    if fold.compensations.pop(event.aggregate_id, None) is not None:
        fold.compensating = event.aggregate_id
    fold.effect_keys[data.effect_key] = event.aggregate_id
    fold.open_effects[event.aggregate_id] = None
    fold.effects[event.aggregate_id] = Effect(
        id=event.aggregate_id,
        tenant_id=fold.tenant_id,
        run_id=fold.stream_id,
        step_id=data.step_id,
        effect_type=data.effect_type,
        effect_spec=fold.keep(event, "effect_spec", data.effect_spec),
        idempotency_key=data.effect_key,
        requested_at=event.occurred_at,
        executed_at=None,
        status="PENDING",
        execution_result=None,
        error_details=None,
        retry_count=0,
        max_retries=data.max_retries,
        next_retry_at=None,
        critical=data.critical,
        delivery=data.delivery,
        correlation_id=event.correlation_id,
        metadata=fold.keep_any(event, "metadata", data.metadata),
    )


def compensation_registered(fold: RunFold, event: Event, data: effects.CompensationRegistered) -> None:
    if event.aggregate_id in fold.effects or event.aggregate_id in fold.compensations:
        raise StateTransitionError("effect", event.aggregate_id, "PENDING", "PENDING")
    if data.step_id not in fold.steps:
        raise CommandRefused(f"Compensation {data.effect_key!r} was registered outside of a step")
    fold.compensations[event.aggregate_id] = Compensation(
        id=event.aggregate_id,
        step_id=data.step_id,
        step_key=event.step_key,
        event_id=event.id,
        effect_type=data.effect_type,
        effect_spec=data.effect_spec,
        idempotency_key=data.effect_key,
        max_retries=data.max_retries,
        delivery=data.delivery,
        metadata=None if isinstance(data.metadata, UnsetType) else data.metadata,
    )


def _existing(fold: RunFold, event: Event, to_state: str) -> Effect:
    effect = fold.effects.get(event.aggregate_id)
    if effect is None:
        raise StateTransitionError("effect", event.aggregate_id, None, to_state)
    return effect


def _to(fold: RunFold, event: Event, status: str, *, origins: Collection[str] = (), **changes: Any) -> None:
    """Moves an effect; `origins` are the states that this event leads from, where the table has more."""
    effect = _existing(fold, event, status)
    transitions.EFFECT.check(effect.id, effect.status, status)
    if origins and effect.status not in origins:
        raise StateTransitionError("effect", effect.id, effect.status, status)
    moved = fold.effects[effect.id] = replace(effect, status=status, **changes)
    if moved.is_open:
        fold.open_effects[effect.id] = None
    else:
        fold.open_effects.pop(effect.id, None)
    fold.news_seq = event.run_seq


def executing(fold: RunFold, event: Event, data: effects.EffectExecuting) -> None:
    _to(fold, event, "EXECUTING", next_retry_at=None)


def completed(fold: RunFold, event: Event, data: effects.EffectCompleted) -> None:
    _to(
        fold,
        event,
        "COMPLETED",
        origins=("EXECUTING",),
        executed_at=event.occurred_at,
        execution_result=fold.keep(event, "execution_result", data.execution_result),
        error_details=None,
    )


def failed(fold: RunFold, event: Event, data: effects.EffectFailed) -> None:
    _to(fold, event, "FAILED", error_details=Raw(codec.encode(data.error)))


def retrying(fold: RunFold, event: Event, data: effects.EffectRetrying) -> None:
    effect = _existing(fold, event, "FAILED")
    if effect.status != "FAILED":
        raise StateTransitionError("effect", effect.id, effect.status, "FAILED")
    fold.effects[effect.id] = replace(
        effect, retry_count=data.retry_count, next_retry_at=utc(data.next_retry_at)
    )


def dead_lettered(fold: RunFold, event: Event, data: effects.EffectDeadLettered) -> None:
    _to(fold, event, "DEAD_LETTER", next_retry_at=None, error_details=Raw(codec.encode(data.error)))


def requeued(fold: RunFold, event: Event, data: effects.EffectRequeued) -> None:
    _to(
        fold,
        event,
        "PENDING",
        origins=("DEAD_LETTER",),
        retry_count=0,
        next_retry_at=None,
        error_details=None,
    )


def cancelled(fold: RunFold, event: Event, data: effects.EffectCancelled) -> None:
    _to(fold, event, "CANCELLED", next_retry_at=None)


def outcome_unknown(fold: RunFold, event: Event, data: effects.EffectOutcomeUnknown) -> None:
    _to(fold, event, "UNKNOWN")


def reconciled(fold: RunFold, event: Event, data: effects.EffectReconciled) -> None:
    if data.sent:
        _to(fold, event, "COMPLETED", origins=("UNKNOWN",), executed_at=event.occurred_at)
    else:
        _to(fold, event, "PENDING", origins=("UNKNOWN",))


def late_outcome(fold: RunFold, event: Event, data: effects.EffectLateOutcome) -> None:
    """Moves nothing; but whoever is about to send it again finds in the ledger that it was done (§OUT-8)."""
    effect = _existing(fold, event, "COMPLETED")
    done = fold.keep_any(event, "execution_result", data.execution_result)
    if done is not None and effect.status not in transitions.EFFECT.terminal:
        fold.effects[effect.id] = replace(effect, execution_result=done)


REDUCERS: Final[dict[str, Reducer]] = {
    "COMPENSATION_REGISTERED": compensation_registered,
    "EFFECT_REQUESTED": requested,
    "EFFECT_EXECUTING": executing,
    "EFFECT_COMPLETED": completed,
    "EFFECT_FAILED": failed,
    "EFFECT_RETRYING": retrying,
    "EFFECT_DEAD_LETTERED": dead_lettered,
    "EFFECT_REQUEUED": requeued,
    "EFFECT_CANCELLED": cancelled,
    "EFFECT_OUTCOME_UNKNOWN": outcome_unknown,
    "EFFECT_RECONCILED": reconciled,
    "EFFECT_LATE_OUTCOME": late_outcome,
}
