"""Runs: from their creation to their end."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw

from runstone.core.events import AggregateType
from runstone.core.ids import Digest, Id
from runstone.core.payloads.base import ArtifactRef, ErrorInfo, Moment, OptionalJson, Payload

RunType: TypeAlias = Literal["SIGNAL_PROCESSING", "SCHEDULED_TASK", "HUMAN_TRIGGERED", "CONTINUATION"]


class RunCreated(Payload, frozen=True, kw_only=True):
    """A run was asked for; opens the run's stream."""

    EVENT_TYPE: ClassVar[str] = "RUN_CREATED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    signal_id: Annotated[Id, Meta(description="The signal it handles.")]
    run_type: Annotated[RunType, Meta(description="What set it off.")]
    plan_id: Annotated[str, Meta(description="The handler's name.")]
    plan_version: Annotated[str, Meta(description="The handler's declared version.")] = ""
    orchestrator_version: Annotated[str, Meta(description="The version of the app that may run it.")] = ""
    project: Annotated[str, Meta(description="The project it runs in.")] = "default"
    environment: Annotated[str, Meta(description="The environment its secrets come from.")] = "default"
    key: Annotated[str | None, Meta(description="The user's own name for the run, unique in its tenant.")] = (
        None
    )
    parent_run_id: Annotated[Id | None, Meta(description="The run whose child it is, if any.")] = None
    lane: Annotated[str | None, Meta(description="Runs of one lane take turns.")] = None
    lane_limit: Annotated[int, Meta(ge=1, description="How many of its lane may be under way at once.")] = 1
    approval_required: Annotated[bool, Meta(description="Whether it waits for RUN_APPROVED.")] = False
    metadata: Annotated[OptionalJson, Meta(description="Tags, priority and the like.")] = UNSET


class RunApproved(Payload, frozen=True, kw_only=True):
    """Somebody allowed the run to start."""

    EVENT_TYPE: ClassVar[str] = "RUN_APPROVED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    approved_by: Annotated[str, Meta(description="Who allowed it.")]


class RunStarted(Payload, frozen=True, kw_only=True):
    """A worker began to execute the run."""

    EVENT_TYPE: ClassVar[str] = "RUN_STARTED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    signal_id: Annotated[Id, Meta(description="The signal it handles.")]
    run_type: Annotated[RunType, Meta(description="What set it off.")]
    orchestrator_version: Annotated[str, Meta(description="The version of the app that runs it.")] = ""


class RunPaused(Payload, frozen=True, kw_only=True):
    """The run was stopped until somebody resumes it."""

    EVENT_TYPE: ClassVar[str] = "RUN_PAUSED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    reason: Annotated[
        str, Meta(description="A code, such as OPERATOR, PARKED, NON_DETERMINISTIC, QUARANTINED.")
    ]
    details: Annotated[OptionalJson, Meta(description="What helps to fix the cause.")] = UNSET


class RunResumed(Payload, frozen=True, kw_only=True):
    """A paused run may go on."""

    EVENT_TYPE: ClassVar[str] = "RUN_RESUMED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"


class RunSuspended(Payload, frozen=True, kw_only=True):
    """The handler can do nothing before a wait is answered or a deadline passes: the run leaves memory."""

    EVENT_TYPE: ClassVar[str] = "RUN_SUSPENDED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    wake_at: Annotated[
        Moment | None, Meta(description="The earliest deadline; none: only an answer wakes it.")
    ] = None
    waiting: Annotated[tuple[str, ...], Meta(description="The step keys it waits for.")] = ()


class RunVariableSet(Payload, frozen=True, kw_only=True):
    """The handler set one of the run's variables."""

    EVENT_TYPE: ClassVar[str] = "RUN_VARIABLE_SET"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    name: Annotated[str, Meta(min_length=1, description="Its name, unique in the run.")]
    value: Annotated[Raw, Meta(description="What it is from now on.")]


class RunCheckpointCreated(Payload, frozen=True, kw_only=True):
    """A checkpoint of the run was stored."""

    EVENT_TYPE: ClassVar[str] = "RUN_CHECKPOINT_CREATED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    checkpoint_id: Annotated[Id, Meta(description="The checkpoint's row.")]
    checkpoint_index: Annotated[int, Meta(ge=0, description="0-based, contiguous in its run.")]
    last_seq: Annotated[int, Meta(ge=1, description="The run_seq it covers.")]
    head: Annotated[Digest, Meta(description="The hash of the event at last_seq.")]


class RunHandlerReturned(Payload, frozen=True, kw_only=True):
    """The handler returned; the run completes once no effect of it is open."""

    EVENT_TYPE: ClassVar[str] = "RUN_HANDLER_RETURNED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    result: Annotated[Raw, Meta(description="What it returned.")]


class RunContinued(Payload, frozen=True, kw_only=True):
    """The handler starts afresh in a new generation of the same run; replay begins here."""

    EVENT_TYPE: ClassVar[str] = "RUN_CONTINUED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    generation: Annotated[int, Meta(ge=2, description="The generation that begins; the first is 1.")]
    carry: Annotated[Raw, Meta(description="What the next generation gets.")]


class RunCompleted(Payload, frozen=True, kw_only=True):
    """The handler has returned and no effect is open."""

    EVENT_TYPE: ClassVar[str] = "RUN_COMPLETED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    artifacts: Annotated[tuple[ArtifactRef, ...], Meta(description="All artifacts of its steps.")] = ()


class RunFailed(Payload, frozen=True, kw_only=True):
    """The run ended by an error."""

    EVENT_TYPE: ClassVar[str] = "RUN_FAILED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    exit_reason: Annotated[str, Meta(min_length=1, max_length=100, description="A code or a short sentence.")]
    error: Annotated[ErrorInfo, Meta(description="The root cause.")]


class RunCancelled(Payload, frozen=True, kw_only=True):
    """A person or the system ended the run."""

    EVENT_TYPE: ClassVar[str] = "RUN_CANCELLED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    exit_reason: Annotated[str, Meta(min_length=1, max_length=100, description="Why.")]
