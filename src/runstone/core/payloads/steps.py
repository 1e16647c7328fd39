"""Steps and the tool calls inside them.

Input and output are kept whole in these two events, so that the log alone is enough to show
what any step got and gave (§ENT-14 to §ENT-18).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw

from runstone.core.events import AggregateType
from runstone.core.ids import Digest, Id
from runstone.core.payloads.base import ArtifactRef, ErrorInfo, EventRef, Moment, Name, OptionalJson, Payload

StepType: TypeAlias = Literal[
    "DECISION", "SPECIALIST_CALL", "TOOL_SEQUENCE", "EFFECT_REQUEST", "CHECKPOINT", "WAIT"
]


class EntityRef(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A record in the user's system of record."""

    entity_id: str
    entity_type: str


class InputContext(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a step received. What the log holds already is referred to, not copied."""

    arguments: Annotated[OptionalJson, Meta(description="The call's own arguments.")] = UNSET
    signal_data: Annotated[EventRef | None, Meta(description="The signal's normalized payload.")] = None
    prior_step_output: Annotated[EventRef | None, Meta(description="What the step before it produced.")] = (
        None
    )
    sor_entities: Annotated[tuple[EntityRef, ...], Meta(description="The records it is about.")] = ()
    specialist_context: Annotated[OptionalJson, Meta(description="The specialist's own state.")] = UNSET


class OutputResult(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a step produced, under the one key of its type."""

    decision: Annotated[OptionalJson, Meta(description="DECISION: the value decided on.")] = UNSET
    specialist_reasoning: Annotated[OptionalJson, Meta(description="SPECIALIST_CALL: what it returned.")] = (
        UNSET
    )
    tool_results: Annotated[tuple[Raw, ...], Meta(description="TOOL_SEQUENCE: what each tool returned.")] = ()
    effect_spec: Annotated[OptionalJson, Meta(description="EFFECT_REQUEST: the effect asked for.")] = UNSET
    answer: Annotated[OptionalJson, Meta(description="WAIT: what it waited for.")] = UNSET
    next_step_hint: Annotated[str | None, Meta(description="Where to go next, if the step says so.")] = None


class WaitSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a WAIT step waits for: an answer by name, a deadline, or whichever comes first."""

    name: Annotated[str | None, Meta(description="The answer's name; none: a sleep.")] = None
    deadline: Annotated[Moment | None, Meta(description="When it stops waiting.")] = None
    answer_schema: Annotated[OptionalJson, Meta(description="The JSON Schema that an answer has to fit.")] = (
        UNSET
    )


class StepStarted(Payload, frozen=True, kw_only=True):
    """A step began."""

    EVENT_TYPE: ClassVar[str] = "STEP_STARTED"
    AGGREGATE: ClassVar[AggregateType] = "STEP"

    step_index: Annotated[int, Meta(ge=0, description="0-based, contiguous in the order of start.")]
    step_type: Annotated[StepType, Meta(description="What kind of work it is.")]
    input_context: Annotated[Raw, Meta(description="What it received, as an InputContext.")]
    input_digest: Annotated[Digest, Meta(description="Over what the caller gave; replay compares it.")]
    specialist_id: Annotated[Name | None, Meta(description="The specialist called.")] = None
    retry_count: Annotated[int, Meta(ge=0, description="How many attempts went before.")] = 0
    wait: Annotated[WaitSpec | None, Meta(description="Only for a WAIT.")] = None
    metadata: Annotated[OptionalJson, Meta(description="Whatever the caller added.")] = UNSET


class StepCompleted(Payload, frozen=True, kw_only=True):
    """A step succeeded."""

    EVENT_TYPE: ClassVar[str] = "STEP_COMPLETED"
    AGGREGATE: ClassVar[AggregateType] = "STEP"

    step_index: Annotated[int, Meta(ge=0, description="As in its STEP_STARTED.")]
    step_type: Annotated[StepType, Meta(description="What kind of work it is.")]
    output_result: Annotated[Raw, Meta(description="What it produced, as an OutputResult.")]
    duration_ms: Annotated[int, Meta(ge=0, description="From its start to its end.")]
    artifacts: Annotated[tuple[ArtifactRef, ...], Meta(description="What it left outside of the log.")] = ()


class StepFailed(Payload, frozen=True, kw_only=True):
    """A step ended by an error."""

    EVENT_TYPE: ClassVar[str] = "STEP_FAILED"
    AGGREGATE: ClassVar[AggregateType] = "STEP"

    step_index: Annotated[int, Meta(ge=0, description="As in its STEP_STARTED.")]
    step_type: Annotated[StepType, Meta(description="What kind of work it is.")]
    error: Annotated[ErrorInfo, Meta(description="What went wrong.")]
    duration_ms: Annotated[int, Meta(ge=0, description="From its start to its end.")]
    artifacts: Annotated[tuple[ArtifactRef, ...], Meta(description="What it left outside of the log.")] = ()


class StepSkipped(Payload, frozen=True, kw_only=True):
    """A step turned out not to be needed."""

    EVENT_TYPE: ClassVar[str] = "STEP_SKIPPED"
    AGGREGATE: ClassVar[AggregateType] = "STEP"

    step_index: Annotated[int, Meta(ge=0, description="As in its STEP_STARTED.")]
    step_type: Annotated[StepType, Meta(description="What kind of work it is.")]
    reason: Annotated[str, Meta(description="Why it was not needed.")]


class StepRetried(Payload, frozen=True, kw_only=True):
    """A failed step is to be tried again, as a new step with the next logical attempt."""

    EVENT_TYPE: ClassVar[str] = "STEP_RETRIED"
    AGGREGATE: ClassVar[AggregateType] = "STEP"

    next_attempt: Annotated[int, Meta(ge=2, description="The logical attempt to come.")]
    retry_at: Annotated[Moment | None, Meta(description="Not before then.")] = None
    reason: Annotated[str, Meta(description="POLICY or OPERATOR.")] = "POLICY"


class StepCorrected(Payload, frozen=True, kw_only=True):
    """A person put a finished step's output right; both versions stay, and the cause is the one before."""

    EVENT_TYPE: ClassVar[str] = "STEP_CORRECTED"
    AGGREGATE: ClassVar[AggregateType] = "STEP"

    version: Annotated[int, Meta(ge=2, description="The version that begins; the output itself is 1.")]
    original_output: Annotated[Raw, Meta(description="The version before.")]
    corrected_output: Annotated[Raw, Meta(description="The version that holds from now on.")]
    reason: Annotated[str, Meta(description="Why it was wrong.")]


class ToolCalled(Payload, frozen=True, kw_only=True):
    """A step called a tool."""

    EVENT_TYPE: ClassVar[str] = "TOOL_CALLED"
    AGGREGATE: ClassVar[AggregateType] = "TOOL_CALL"

    step_id: Annotated[Id, Meta(description="The step it belongs to.")]
    tool_name: Annotated[str, Meta(min_length=1, max_length=100, description="The tool.")]
    tool_args: Annotated[Raw, Meta(description="What it was given.")]
    metadata: Annotated[OptionalJson, Meta(description="Whatever the caller added.")] = UNSET


class ToolCompleted(Payload, frozen=True, kw_only=True):
    """A tool returned."""

    EVENT_TYPE: ClassVar[str] = "TOOL_COMPLETED"
    AGGREGATE: ClassVar[AggregateType] = "TOOL_CALL"

    result: Annotated[Raw, Meta(description="What it returned.")]
    duration_ms: Annotated[int, Meta(ge=0, description="From its start to its end.")]
    cache_hit: Annotated[bool, Meta(description="Whether the result was remembered, not computed.")] = False


class ToolFailed(Payload, frozen=True, kw_only=True):
    """A tool raised."""

    EVENT_TYPE: ClassVar[str] = "TOOL_FAILED"
    AGGREGATE: ClassVar[AggregateType] = "TOOL_CALL"

    error: Annotated[ErrorInfo, Meta(description="What went wrong.")]
    duration_ms: Annotated[int, Meta(ge=0, description="From its start to its end.")]
