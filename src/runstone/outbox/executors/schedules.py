"""`SCHEDULE_TASK`: a task for later, in our own store, in the transaction of its outcome (§OUT-55)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import StreamWriter
from runstone.core.decide.schedules import schedule
from runstone.core.effect_specs import ScheduleTask
from runstone.core.events import Event, StreamKind
from runstone.core.fold import ScheduleFold
from runstone.core.keys import schedule_stream
from runstone.core.payloads import TaskScheduled
from runstone.errors import StoreCorrupt
from runstone.ports.calendar import next_due
from runstone.ports.executor import EffectCall, Outcome, Succeeded

GENERATIONS: Final = 10_000
"""More than a name can have: each rested for as long as runs are kept."""


class TaskSchedules:
    """Schedules tasks, of whatever app and version: whoever asked has them (§OUT-62)."""

    def place(self, call: EffectCall) -> tuple[StreamKind, str]:
        return "SCHEDULE", schedule_stream(call.tenant_id, _name(call))

    def schedule(self, call: EffectCall) -> str | None:
        return _name(call)

    def perform(self, call: EffectCall, stream: StreamWriter[ScheduleFold], cause: str) -> Outcome:
        asked = _asked(call)
        # A clock that was set back must not have it due before what it stands behind.
        now = max(stream.context.now, stream.fold.last_at or stream.context.now)
        due = asked.run_at or next_due(asked.cron or "", asked.timezone, now)
        done = schedule(
            stream,
            asked,
            name=_name(call),
            next_at=due,
            run_id=call.run_id,
            effect_id=call.effect_id,
            cause=cause,
            generation=_generation(call, stream.fold.stream_id),
            orchestrator_version=call.orchestrator_version,
        )
        return _done(done, _name(call), stream.fold.version, due)

    def written_at(self, call: EffectCall) -> int | None:
        return None  # it replaces whatever it finds

    def recall(self, event: Event) -> Outcome:
        said = CATALOGUE.read(event, TaskScheduled)
        return _done(event, said.name, said.version, said.next_at)


def _done(event: Event, name: str, version: int, next_at: datetime) -> Outcome:
    return Succeeded(
        {
            "stream_id": event.stream_id,
            "event_id": event.id,
            "name": name,
            "version": version,
            "next_at": next_at,
        }
    )


def _generation(call: EffectCall, stream_id: str) -> int:
    """Which of its name's streams this is."""
    name = _name(call)
    for generation in range(GENERATIONS):
        if schedule_stream(call.tenant_id, name, generation) == stream_id:
            return generation
    raise StoreCorrupt(f"The schedule {name!r} is in stream {stream_id}, which is another's")


def _name(call: EffectCall) -> str:
    """What the schedule is known by: without a name, each effect is a schedule of its own."""
    return _asked(call).name or call.key


def _asked(call: EffectCall) -> ScheduleTask:
    assert isinstance(call.spec, ScheduleTask), "it is registered for that"
    return call.spec
