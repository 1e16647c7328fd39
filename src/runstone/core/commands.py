"""Commands: what somebody wants to happen; `decide` says which events that makes, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw

from runstone.core.payloads import (
    ArtifactRef,
    ControlKind,
    DeliveryMode,
    EntityRef,
    ErrorInfo,
    OptionalJson,
    OutputResult,
    RunType,
    SignalType,
    StepType,
    WaitSpec,
)


class _Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    pass


# Signals


class ReceiveSignal(_Command, frozen=True, kw_only=True):
    """Take input in."""

    signal_type: SignalType
    source_channel: str
    source_id: str
    source_hash: str
    normalized_payload: Raw
    received_at: datetime
    ingested_by: str | None = None
    cause: str | None = None
    """The event of a parent run that sent it, if one did."""
    correlation_id: str | None = None
    """The parent's, which a child inherits; none: a new one."""


class ReportConflict(_Command, frozen=True, kw_only=True):
    """The same source id came with other content."""

    source_hash: str


# Runs


class CreateRun(_Command, frozen=True, kw_only=True):
    """Queue a run for the signal."""

    plan_id: str
    run_type: RunType = "SIGNAL_PROCESSING"
    plan_version: str = ""
    orchestrator_version: str = ""
    project: str = "default"
    environment: str = "default"
    key: str | None = None
    parent_run_id: str | None = None
    lane: str | None = None
    lane_limit: int = 1
    approval_required: bool = False
    metadata: OptionalJson = UNSET


class StartRun(_Command, frozen=True, kw_only=True):
    """A worker begins."""

    orchestrator_version: str = ""


class PauseRun(_Command, frozen=True, kw_only=True):
    """Stop until somebody resumes: the engine's own decision, such as NON_DETERMINISTIC."""

    reason: str
    details: OptionalJson = UNSET


class SuspendRun(_Command, frozen=True, kw_only=True):
    """The handler waits, and leaves memory."""

    wake_at: datetime | None = None
    waiting: tuple[str, ...] = ()


class SetVariable(_Command, frozen=True, kw_only=True):
    """Remember a value with the run."""

    name: str
    value: Raw


class CreateCheckpoint(_Command, frozen=True, kw_only=True):
    """Say that a checkpoint of the run as it is was stored."""

    checkpoint_id: str


class ReturnHandler(_Command, frozen=True, kw_only=True):
    """The handler returned."""

    result: Raw


class ContinueRun(_Command, frozen=True, kw_only=True):
    """Start afresh in a new generation."""

    carry: Raw


class FailRun(_Command, frozen=True, kw_only=True):
    """The handler raised."""

    error: ErrorInfo
    exit_reason: str | None = None


class CancelRun(_Command, frozen=True, kw_only=True):
    """End it now."""

    exit_reason: str


class Control(_Command, frozen=True, kw_only=True):
    """A control signal that authorization let through."""

    control_signal_id: str
    kind: ControlKind
    sender: str
    target: str | None = None
    data: OptionalJson = UNSET
    reason: str = ""


class RefuseControl(_Command, frozen=True, kw_only=True):
    """A control signal that authorization did not let through."""

    control_signal_id: str
    kind: ControlKind
    sender: str
    error: ErrorInfo
    target: str | None = None


# Steps


class StartStep(_Command, frozen=True, kw_only=True):
    """Begin a step."""

    step_key: str
    step_type: StepType
    arguments: OptionalJson = UNSET
    sor_entities: tuple[EntityRef, ...] = ()
    specialist_context: OptionalJson = UNSET
    specialist_id: str | None = None
    wait: WaitSpec | None = None
    metadata: OptionalJson = UNSET
    step_id: str | None = None
    cause: str | None = None
    """The event its branch saw last; none: the latest that lets the handler go on."""


class CompleteStep(_Command, frozen=True, kw_only=True):
    """End a step well."""

    step_key: str
    output: OutputResult
    artifacts: tuple[ArtifactRef, ...] = ()


class FailStep(_Command, frozen=True, kw_only=True):
    """End a step by an error."""

    step_key: str
    error: ErrorInfo
    artifacts: tuple[ArtifactRef, ...] = ()


class SkipStep(_Command, frozen=True, kw_only=True):
    """End a step that is not needed."""

    step_key: str
    reason: str


class RetryStep(_Command, frozen=True, kw_only=True):
    """Try a failed step again, by its policy."""

    step_key: str
    retry_at: datetime | None = None


class CorrectStep(_Command, frozen=True, kw_only=True):
    """Put a finished step's output right."""

    step_id: str
    output: OutputResult
    reason: str


class CallTool(_Command, frozen=True, kw_only=True):
    """Call a tool inside an open step."""

    step_key: str
    tool_name: str
    tool_args: Raw
    tool_call_id: str | None = None
    metadata: OptionalJson = UNSET


class CompleteTool(_Command, frozen=True, kw_only=True):
    """The tool returned."""

    tool_call_id: str
    result: Raw
    duration_ms: int
    cache_hit: bool = False


class FailTool(_Command, frozen=True, kw_only=True):
    """The tool raised."""

    tool_call_id: str
    error: ErrorInfo
    duration_ms: int


# Effects


class RequestEffect(_Command, frozen=True, kw_only=True):
    """Ask for something outside, from an open step."""

    step_key: str
    effect_type: str
    spec: Mapping[str, object]
    effect_key: str | None = None
    ordinal: int = 0
    effect_id: str | None = None
    max_retries: int | None = None
    critical: bool = True
    delivery: DeliveryMode = "at_least_once"
    metadata: OptionalJson = UNSET
    compensation: bool = False
    """Only if the run fails or is cancelled."""


class BeginEffect(_Command, frozen=True, kw_only=True):
    """An executor is about to act."""

    effect_id: str
    executor: str
    fence: int = 0


class CompleteEffect(_Command, frozen=True, kw_only=True):
    """It was done."""

    effect_id: str
    executor: str
    result: Raw
    fence: int = 0


class FailEffect(_Command, frozen=True, kw_only=True):
    """It did not work; `next_retry_at` is when to try again, if there is a retry left."""

    effect_id: str
    executor: str
    error: ErrorInfo
    next_retry_at: datetime
    fence: int = 0


class LoseEffect(_Command, frozen=True, kw_only=True):
    """Nobody knows whether it was done."""

    effect_id: str
    executor: str
    error: ErrorInfo | None = None


class ReconcileEffect(_Command, frozen=True, kw_only=True):
    """Somebody found out."""

    effect_id: str
    sent: bool
    evidence: str = ""


class RequeueEffect(_Command, frozen=True, kw_only=True):
    """Try a dead letter again."""

    effect_id: str
    reason: str = ""


class DiscardEffect(_Command, frozen=True, kw_only=True):
    """Give a dead letter up."""

    effect_id: str
    reason: str = "DISCARDED"


class ReportLateOutcome(_Command, frozen=True, kw_only=True):
    """A stale executor says what came of it."""

    effect_id: str
    executor: str
    result: OptionalJson = UNSET
    error: ErrorInfo | None = None


Command: TypeAlias = _Command
