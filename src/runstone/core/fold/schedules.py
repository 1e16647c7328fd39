"""Takes the events of a schedule in."""

from __future__ import annotations

from datetime import UTC
from typing import Final

from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, ScheduleFold, utc
from runstone.core.keys import schedule_stream
from runstone.core.payloads import schedules
from runstone.core.schedule import Schedule
from runstone.core.transitions import SCHEDULE
from runstone.errors import CommandRefused


def scheduled(fold: ScheduleFold, event: Event, data: schedules.TaskScheduled) -> None:
    if data.version != fold.version + 1:
        raise CommandRefused(
            f"Schedule {fold.stream_id} has version {fold.version}: its next cannot be {data.version}"
        )
    if schedule_stream(fold.tenant_id, data.name, data.generation) != fold.stream_id:
        raise CommandRefused(f"Stream {fold.stream_id} is not that of the schedule {data.name!r}")
    before = fold.schedule
    if before is not None:
        SCHEDULE.check(before.id, before.status, "ACTIVE")
    fold.large.clear()  # what was scheduled before, no row says any more
    fold.schedule = Schedule(
        id=fold.stream_id,
        tenant_id=fold.tenant_id,
        name=data.name,
        version=data.version,
        task=data.task,
        cron=data.cron,
        timezone=data.timezone,
        arguments=fold.keep(event, "arguments", data.arguments),
        status="ACTIVE",
        next_at=data.next_at.astimezone(UTC),
        fired=before.fired if before else 0,
        last_fired_at=before.last_fired_at if before else None,
        last_run_id=before.last_run_id if before else None,
        run_id=data.run_id,
        effect_id=data.effect_id,
        scheduled_seq=event.run_seq,
        created_at=before.created_at if before else event.occurred_at,
        updated_at=event.occurred_at,
    )


def fired(fold: ScheduleFold, event: Event, data: schedules.TaskFired) -> None:
    status = "DONE" if data.next_at is None else "ACTIVE"
    schedule = fold.existing(status)
    if data.fired != schedule.fired + 1:
        raise CommandRefused(
            f"Schedule {schedule.id} has fired {schedule.fired} times: its next cannot be number {data.fired}"
        )
    if schedule.next_at is not None and data.due_at < schedule.next_at:
        raise CommandRefused(f"Schedule {schedule.id} is not due before {schedule.next_at.isoformat()}")
    if data.next_at is not None and data.next_at <= data.due_at:
        raise CommandRefused(f"Schedule {schedule.id} cannot be due next before it was due last")
    fold.to(
        status,
        event,
        next_at=utc(data.next_at),
        fired=data.fired,
        last_fired_at=event.occurred_at,
        last_run_id=data.run_id,
    )


def cancelled(fold: ScheduleFold, event: Event, data: schedules.ScheduleCancelled) -> None:
    fold.to("CANCELLED", event, next_at=None)


REDUCERS: Final[dict[str, Reducer]] = {
    "TASK_SCHEDULED": scheduled,
    "TASK_FIRED": fired,
    "SCHEDULE_CANCELLED": cancelled,
}
