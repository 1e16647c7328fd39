"""Effect: something a run wants done outside, and its entry in the outbox (§ENT-20, §ENT-21)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw

from runstone.core.payloads import DeliveryMode
from runstone.core.transitions import EffectStatus

EFFECT_WAIT: Final = "effect:"
"""How the name of a wait begins that an effect's outcome ends; the effect's id follows."""


def effect_wait(effect_id: str) -> str:
    """The name of the wait for an effect's outcome."""
    return EFFECT_WAIT + effect_id


class Effect(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `effects`."""

    id: str
    tenant_id: str
    run_id: str
    step_id: str
    effect_type: str
    effect_spec: Raw
    idempotency_key: str
    requested_at: datetime
    executed_at: datetime | None
    status: EffectStatus
    execution_result: Raw | None
    error_details: Raw | None
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    critical: bool
    delivery: DeliveryMode
    correlation_id: str
    metadata: Raw | None

    @property
    def is_open(self) -> bool:
        """Whether its run has to wait for it before it can end."""
        return self.status in ("PENDING", "EXECUTING", "FAILED", "UNKNOWN")

    @property
    def has_outcome(self) -> bool:
        """Whether who waits for it can be told: done, given up, or withdrawn."""
        return self.status in ("COMPLETED", "DEAD_LETTER", "CANCELLED")


class Compensation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An effect that is asked for only if its run fails or is cancelled (§OUT-43)."""

    id: str
    step_id: str
    step_key: str | None
    event_id: str
    effect_type: str
    effect_spec: Raw
    idempotency_key: str
    max_retries: int
    delivery: DeliveryMode
    metadata: Raw | None


class OutboxEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `outbox_events`, its lease columns apart."""

    id: str
    tenant_id: str
    event_type: str
    payload: Raw
    idempotency_key: str
    created_at: datetime
    processed_at: datetime | None
    status: str
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    result: Raw | None
    error_details: Raw | None
    correlation_id: str
    aggregate_type: str
    aggregate_id: str


def outbox_entry(effect: Effect) -> OutboxEntry:
    """An effect as the dispatcher sees it: the outbox is a view of effects, written with them."""
    return OutboxEntry(
        id=effect.id,
        tenant_id=effect.tenant_id,
        event_type=effect.effect_type,
        payload=effect.effect_spec,
        idempotency_key=effect.idempotency_key,
        created_at=effect.requested_at,
        processed_at=effect.executed_at,
        status="PROCESSING" if effect.status == "EXECUTING" else effect.status,
        retry_count=effect.retry_count,
        max_retries=effect.max_retries,
        next_retry_at=effect.next_retry_at,
        result=effect.execution_result,
        error_details=effect.error_details,
        correlation_id=effect.correlation_id,
        aggregate_type="EFFECT",
        aggregate_id=effect.id,
    )
