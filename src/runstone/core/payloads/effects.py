"""Effects: from the request, which is also the outbox entry, to their last known outcome."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw

from runstone.core.events import AggregateType
from runstone.core.ids import Id
from runstone.core.payloads.base import ErrorInfo, Moment, OptionalJson, Payload

EffectType: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        description="SEND_EMAIL, SEND_CHAT_MESSAGE, API_CALL, SOR_UPDATE, NOTIFY_USER, SCHEDULE_TASK, "
        "WEBHOOK_CALL, or a user's own.",
    ),
]
DeliveryMode: TypeAlias = Literal["at_least_once", "at_most_once"]


class EffectRequested(Payload, frozen=True, kw_only=True):
    """A run asked for something to be done outside."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_REQUESTED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    step_id: Annotated[Id, Meta(description="The step that asked.")]
    effect_type: EffectType
    effect_spec: Annotated[Raw, Meta(description="What to do, `idempotency_key` included.")]
    effect_key: Annotated[str, Meta(max_length=255, description="The idempotency key, unique in its tenant.")]
    max_retries: Annotated[int, Meta(ge=0, description="Tries after the first.")] = 3
    critical: Annotated[bool, Meta(description="Whether its dead letter fails the run.")] = True
    delivery: Annotated[DeliveryMode, Meta(description="How often it may be done when in doubt.")] = (
        "at_least_once"
    )
    metadata: Annotated[OptionalJson, Meta(description="Whatever the caller added.")] = UNSET


class CompensationRegistered(Payload, frozen=True, kw_only=True):
    """A run said what is to be done outside if it fails or is cancelled."""

    EVENT_TYPE: ClassVar[str] = "COMPENSATION_REGISTERED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    step_id: Annotated[Id, Meta(description="The step that said so.")]
    effect_type: EffectType
    effect_spec: Annotated[Raw, Meta(description="What to do, `idempotency_key` included.")]
    effect_key: Annotated[str, Meta(max_length=255, description="The idempotency key it will have.")]
    max_retries: Annotated[int, Meta(ge=0, description="Tries after the first.")] = 3
    delivery: Annotated[DeliveryMode, Meta(description="How often it may be done when in doubt.")] = (
        "at_least_once"
    )
    metadata: Annotated[OptionalJson, Meta(description="Whatever the caller added.")] = UNSET


class EffectExecuting(Payload, frozen=True, kw_only=True):
    """An executor is about to act. Durable before the act only for `at_most_once`."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_EXECUTING"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    executor: Annotated[str, Meta(description="Who acts.")]
    fence: Annotated[int, Meta(ge=0, description="The token of its lease.")] = 0


class EffectCompleted(Payload, frozen=True, kw_only=True):
    """It was done."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_COMPLETED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    execution_result: Annotated[Raw, Meta(description="What the outside answered.")]


class EffectFailed(Payload, frozen=True, kw_only=True):
    """It was tried and did not work."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_FAILED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    effect_type: EffectType
    error: Annotated[ErrorInfo, Meta(description="What went wrong.")]
    retry_count: Annotated[int, Meta(ge=0, description="Retries used up so far.")]


class EffectRetrying(Payload, frozen=True, kw_only=True):
    """It will be tried again."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_RETRYING"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    retry_count: Annotated[int, Meta(ge=1, description="The retry to come.")]
    next_retry_at: Annotated[Moment, Meta(description="Not before then.")]


class EffectDeadLettered(Payload, frozen=True, kw_only=True):
    """Its retries are used up, or the error cannot be retried: a person has to look."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_DEAD_LETTERED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    error: Annotated[ErrorInfo, Meta(description="The last error.")]


class EffectRequeued(Payload, frozen=True, kw_only=True):
    """A person sent a dead letter back to be tried."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_REQUEUED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    reason: Annotated[str, Meta(description="Why.")] = ""


class EffectCancelled(Payload, frozen=True, kw_only=True):
    """It will not be done: withdrawn with its run, or a dead letter was discarded."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_CANCELLED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    reason: Annotated[str, Meta(description="RUN_CANCELLED, DISCARDED, or what a person wrote.")]


class EffectOutcomeUnknown(Payload, frozen=True, kw_only=True):
    """The executor of an `at_most_once` effect died between acting and recording, or lost its answer."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_OUTCOME_UNKNOWN"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    executor: Annotated[str, Meta(description="Who was acting.")]
    error: Annotated[ErrorInfo | None, Meta(description="What it saw of it, if it still lived.")] = None


class EffectReconciled(Payload, frozen=True, kw_only=True):
    """A person found out what an unknown outcome was."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_RECONCILED"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    sent: Annotated[bool, Meta(description="True: it was done. False: it was not, and is queued again.")]
    evidence: Annotated[str, Meta(description="How that is known.")] = ""


class EffectLateOutcome(Payload, frozen=True, kw_only=True):
    """A stale executor reported: refused as the outcome, kept as a fact."""

    EVENT_TYPE: ClassVar[str] = "EFFECT_LATE_OUTCOME"
    AGGREGATE: ClassVar[AggregateType] = "EFFECT"

    executor: Annotated[str, Meta(description="Who reported.")]
    execution_result: Annotated[OptionalJson, Meta(description="If it had been done.")] = UNSET
    error: Annotated[ErrorInfo | None, Meta(description="If it had failed.")] = None
