"""What the fold of a stream gives: everything `decide` may look at, frozen.

What it holds by id are the rows themselves. A payload over 2 KB stands in its row as a reference
to its event; `whole` gives the value back (§PAY-16).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Final

import msgspec
from msgspec import Raw

from runstone.core.chain import GENESIS
from runstone.core.effect import Compensation, Effect
from runstone.core.entity import Entity
from runstone.core.events import StreamKind
from runstone.core.ids import Id
from runstone.core.pipeline import PipelineState
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.step import Step, StepCorrection
from runstone.core.toolcall import ToolCall

CONTROLS_A_MINUTE: Final = 60
"""How many control signals a run takes within a minute (§ENG-27)."""

FOLD_VERSION: Final = 1
"""Rises when the same events give other rows; `runstone db rebuild` then makes them again."""


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream stands: what the next commit is decided on."""

    KIND: ClassVar[StreamKind]

    stream_id: Id
    tenant_id: Id
    last_seq: int = 0
    head: str = GENESIS
    last_at: datetime | None = None
    last_event: str | None = None
    causes: Mapping[str, str] = {}
    """The last event of each aggregate: what the next about it was caused by."""
    large: Mapping[str, Raw] = {}
    """Payloads over 2 KB, by `event id/field`."""

    def whole(self, payload: Raw) -> Raw:
        """A row's payload in full: itself, or what its reference leads to."""
        return whole(payload, self.large)


class SignalState(StreamState, frozen=True, kw_only=True):
    """The fold of a signal's stream."""

    KIND: ClassVar[StreamKind] = "SIGNAL"

    signal: Signal | None = None
    payload_event: str | None = None
    """The event that holds the signal's payload."""


class EntityState(StreamState, frozen=True, kw_only=True):
    """The fold of an entity's stream."""

    KIND: ClassVar[StreamKind] = "ENTITY"

    entity: Entity | None = None


class ScheduleState(StreamState, frozen=True, kw_only=True):
    """The fold of a schedule's stream."""

    KIND: ClassVar[StreamKind] = "SCHEDULE"

    schedule: Schedule | None = None


class Answer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An answer that came before its wait."""

    control_signal_id: str
    event_id: str
    data: Raw


class RunState(StreamState, frozen=True, kw_only=True):
    """The fold of a run's stream."""

    KIND: ClassVar[StreamKind] = "RUN"

    run: Run | None = None
    steps: Mapping[str, Step] = {}
    """By id, in the order of start."""
    latest_steps: Mapping[str, str] = {}
    """The id of the latest attempt, by step key, in the current generation."""
    open_steps: Mapping[str, str] = {}
    """The ids of the steps that have not ended, by step key."""
    ends: Mapping[str, int] = {}
    """The `run_seq` at which each step ended, by its id: replay delivers outcomes in this order."""
    due_attempts: Mapping[str, int] = {}
    """The logical attempt that STEP_RETRIED asked for, by step key, until it starts."""
    retry_times: Mapping[str, datetime] = {}
    """When that attempt may start, where STEP_RETRIED said so."""
    corrections: Mapping[str, StepCorrection] = {}
    effects: Mapping[str, Effect] = {}
    open_effects: Mapping[str, None] = {}
    """The ids of those that the run has to wait for before it can end."""
    effect_keys: Mapping[str, str] = {}
    """The effect that each idempotency key stands for."""
    compensations: Mapping[str, Compensation] = {}
    """What is asked for if the run does not complete, by the id it will have, in the order of registering."""
    compensating: str | None = None
    """The compensation that was asked for last."""
    tool_calls: Mapping[str, ToolCall] = {}
    variables: Mapping[str, Raw] = {}
    variable_sets: int = 0
    """How often the current generation has set a variable."""
    carry: Raw | None = None
    """What the generation before handed over."""
    continued: tuple[datetime, str] | None = None
    """When the current generation began, and by which event; none for the first."""
    answers: Mapping[str, tuple[Answer, ...]] = {}
    """Answers that no wait has taken yet, by name, the oldest first."""
    controls: Mapping[str, str] = {}
    """The event that answered each control signal, by the signal's id."""
    control_times: tuple[datetime, ...] = ()
    """When the latest control signals came that authorization let through, as many as a minute may have."""
    denied_times: tuple[datetime, ...] = ()
    """The same of those it did not let through: nobody uses up what others may send."""
    unseen_failures: frozenset[str] = frozenset()
    """Steps whose failure came as their run paused: the handler has not seen it, so it may be undone."""
    cursor: str | None = None
    """The event that lets the handler go on: what its next step was caused by."""
    last_output: tuple[str, str] | None = None
    """Where the latest step's output stands: the event and the field."""
    created_event: str | None = None
    """The event that the run began with."""
    paused_event: str | None = None
    """The event that paused it, until it is resumed."""
    signal_event: str | None = None
    """The event that holds the signal's payload."""
    lane: str | None = None
    lane_limit: int = 1
    approval_required: bool = False
    handler_returned: bool = False
    suspended: bool = False
    wake_at: datetime | None = None
    news_seq: int = 0
    """The latest event that the handler did not write itself."""
    checkpoints: int = 0
    pipeline: PipelineState | None = None


def whole(payload: Raw, large: Mapping[str, Raw]) -> Raw:
    """The payload itself, or the large one that it refers to."""
    return large.get(_reference_key(payload), payload) if large else payload


def _reference_key(payload: Raw) -> str:
    """Where a reference leads; empty for a payload that is none."""
    if not bytes(payload).startswith(b'{"$event":'):
        return ""
    reference = msgspec.json.decode(payload)
    return f"{reference['$event']}/{reference.get('field')}"
