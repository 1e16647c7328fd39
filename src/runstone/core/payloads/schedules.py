"""Schedules: what was asked for, and each time that it came true."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Raw

from runstone.core.events import AggregateType
from runstone.core.ids import Id
from runstone.core.payloads.base import Moment, Payload


class TaskScheduled(Payload, frozen=True, kw_only=True):
    """An effect of a run scheduled a task; the first opens the schedule's stream, a later one replaces it."""

    EVENT_TYPE: ClassVar[str] = "TASK_SCHEDULED"
    VERSION: ClassVar[int] = 2
    AGGREGATE: ClassVar[AggregateType] = "SCHEDULE"

    name: Annotated[str, Meta(min_length=1, max_length=255, description="What it is known by in its tenant.")]
    version: Annotated[int, Meta(ge=1, description="How often it was scheduled, this time among them.")]
    task: Annotated[str, Meta(min_length=1, max_length=200, description="The handler that will be started.")]
    run_at: Annotated[Moment | None, Meta(description="When, if once.")] = None
    cron: Annotated[str | None, Meta(description="When, if again and again.")] = None
    timezone: Annotated[str, Meta(description="Where the clock hangs that `cron` is read by.")] = "UTC"
    arguments: Annotated[Raw, Meta(description="What the handler is started with; null is nothing.")]
    next_at: Annotated[Moment, Meta(description="When it is due first.")]
    run_id: Annotated[Id, Meta(description="The run that asked for it.")]
    effect_id: Annotated[Id, Meta(description="The effect that it is the outcome of.")]
    generation: Annotated[int, Meta(ge=0, description="How often a schedule of its name was archived.")] = 0
    orchestrator_version: Annotated[
        str, Meta(description="The version of the app that asked: an older one does not fire it.")
    ] = ""


class TaskFired(Payload, frozen=True, kw_only=True):
    """Its time had come, and a run of its task was created in the same commit."""

    EVENT_TYPE: ClassVar[str] = "TASK_FIRED"
    AGGREGATE: ClassVar[AggregateType] = "SCHEDULE"

    due_at: Annotated[Moment, Meta(description="The time that had come; of several, the latest.")]
    fired: Annotated[int, Meta(ge=1, description="How often it has fired, this time among them.")]
    signal_id: Annotated[Id, Meta(description="The signal that says so to the task.")]
    run_id: Annotated[Id, Meta(description="The run that was created.")]
    next_at: Annotated[Moment | None, Meta(description="When it is due next; none: never again.")] = None


class ScheduleCancelled(Payload, frozen=True, kw_only=True):
    """Somebody took it back: it fires no more."""

    EVENT_TYPE: ClassVar[str] = "SCHEDULE_CANCELLED"
    AGGREGATE: ClassVar[AggregateType] = "SCHEDULE"

    reason: Annotated[str, Meta(max_length=1000, description="Why, for people.")] = ""
