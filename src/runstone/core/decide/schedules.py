"""Decisions about a schedule: it is made, its time comes, it is taken back."""

from __future__ import annotations

from datetime import datetime

from runstone.core import codec, payloads
from runstone.core.commit import StreamWriter
from runstone.core.effect_specs import ScheduleTask
from runstone.core.events import Event
from runstone.core.fold import ScheduleFold
from runstone.errors import CommandRefused


def schedule(
    stream: StreamWriter[ScheduleFold],
    asked: ScheduleTask,
    *,
    name: str,
    next_at: datetime,
    run_id: str,
    effect_id: str,
    cause: str,
    generation: int = 0,
    orchestrator_version: str = "",
) -> Event:
    """Records it, in the place of what had its name. No stream takes the same effect twice (§OUT-56)."""
    return stream.record(
        payloads.TaskScheduled(
            name=name,
            version=stream.fold.version + 1,
            task=asked.task,
            run_at=asked.run_at,
            cron=asked.cron,
            timezone=asked.timezone,
            arguments=codec.canonical(asked.arguments),
            next_at=next_at,
            run_id=run_id,
            effect_id=effect_id,
            generation=generation,
            orchestrator_version=orchestrator_version,
        ),
        cause=cause,
        occurrence=effect_id,
    )


def fire(
    stream: StreamWriter[ScheduleFold],
    *,
    due_at: datetime,
    next_at: datetime | None,
    signal_id: str,
    run_id: str,
    cause: str,
) -> Event:
    """Records that its time has come. Its key is the count: nobody fires it twice for the same time."""
    known = stream.fold.existing("DONE")
    return stream.record(
        payloads.TaskFired(
            due_at=due_at, fired=known.fired + 1, signal_id=signal_id, run_id=run_id, next_at=next_at
        ),
        cause=cause,
        occurrence=str(known.fired + 1),
    )


def cancel(stream: StreamWriter[ScheduleFold], reason: str, *, cause: str | None = None) -> Event:
    """Takes it back; whoever schedules the same name again begins it anew."""
    known = stream.fold.schedule
    if known is None:
        raise CommandRefused(f"There is no schedule {stream.fold.stream_id}")
    if known.status != "ACTIVE":
        raise CommandRefused(f"The schedule {known.name!r} is {known.status}: there is nothing to cancel")
    return stream.record(
        payloads.ScheduleCancelled(reason=reason), cause=cause, occurrence=str(known.version)
    )
