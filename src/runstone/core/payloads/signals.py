"""Signals from outside, and control signals to a run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw

from runstone.core.events import AggregateType
from runstone.core.ids import Digest
from runstone.core.payloads.base import ErrorInfo, Moment, Name, OptionalJson, Payload

SignalType: TypeAlias = Literal[
    "EMAIL", "WEBHOOK", "CHAT_MESSAGE", "API_CALL", "SCHEDULED_TASK", "HUMAN_COMMAND"
]
ControlKind: TypeAlias = Literal["APPROVE", "PAUSE", "RESUME", "CANCEL", "RETRY_STEP", "ANSWER"]

NOT_AUTHORIZED: Final = "NOT_AUTHORIZED"
"""The code of a control signal that authorization refused; any other was let through to the run."""


class SignalReceived(Payload, frozen=True, kw_only=True):
    """Input from outside was taken in; opens the signal's stream."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_RECEIVED"
    AGGREGATE: ClassVar[AggregateType] = "SIGNAL"

    signal_type: Annotated[SignalType, Meta(description="What kind of input it is.")]
    source_channel: Annotated[
        str, Meta(min_length=1, max_length=100, description="The door it came through.")
    ]
    source_id: Annotated[str, Meta(min_length=1, max_length=255, description="Its id where it came from.")]
    source_hash: Annotated[Digest, Meta(description="A hash of the raw input.")]
    normalized_payload: Annotated[Raw, Meta(description="The input in the form of its signal type.")]
    received_at: Annotated[Moment, Meta(description="When the outside sent it.")]
    ingested_by: Annotated[Name | None, Meta(description="The service that took it in.")] = None


class SignalProcessingStarted(Payload, frozen=True, kw_only=True):
    """A run began to handle the signal."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_PROCESSING_STARTED"
    AGGREGATE: ClassVar[AggregateType] = "SIGNAL"


class SignalProcessed(Payload, frozen=True, kw_only=True):
    """The signal's run completed."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_PROCESSED"
    AGGREGATE: ClassVar[AggregateType] = "SIGNAL"


class SignalProcessingFailed(Payload, frozen=True, kw_only=True):
    """The signal's run failed or was cancelled."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_PROCESSING_FAILED"
    AGGREGATE: ClassVar[AggregateType] = "SIGNAL"

    exit_reason: Annotated[str, Meta(description="The run's exit reason.")]


class SignalConflict(Payload, frozen=True, kw_only=True):
    """The same source id came again with other content; the first stays."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_CONFLICT"
    AGGREGATE: ClassVar[AggregateType] = "SIGNAL"

    first_hash: Annotated[Digest, Meta(description="The source hash on record.")]
    second_hash: Annotated[Digest, Meta(description="The source hash that was refused.")]


class SignalAccepted(Payload, frozen=True, kw_only=True):
    """A control signal was let through; what it causes follows as events of its own."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_ACCEPTED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    kind: Annotated[ControlKind, Meta(description="What is asked of the run.")]
    sender: Annotated[str, Meta(description="Who asked.")]
    target: Annotated[str | None, Meta(description="The wait it answers or the step it retries.")] = None
    data: Annotated[OptionalJson, Meta(description="What the sender gave along.")] = UNSET


class SignalRejected(Payload, frozen=True, kw_only=True):
    """A control signal was refused; the run is as before."""

    EVENT_TYPE: ClassVar[str] = "SIGNAL_REJECTED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    kind: Annotated[ControlKind, Meta(description="What was asked of the run.")]
    sender: Annotated[str, Meta(description="Who asked.")]
    target: Annotated[str | None, Meta(description="The wait or step it named.")] = None
    error: Annotated[ErrorInfo, Meta(description="Why it was refused.")]
