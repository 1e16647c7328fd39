"""`SCHEDULE_TASK`: a task for later, in our own store, in the transaction of its outcome (§OUT-55)."""

from __future__ import annotations

from datetime import datetime
from itertools import count

from runstone.core import codec
from runstone.core.commit import StreamWriter
from runstone.core.decide.schedules import schedule
from runstone.core.effect_specs import ScheduleTask
from runstone.core.events import Event, StreamKind
from runstone.core.fold import ScheduleFold
from runstone.core.keys import schedule_stream
from runstone.core.payloads import TaskScheduled
from runstone.ports.calendar import next_due
from runstone.ports.executor import EffectCall, Outcome, Succeeded

_read = codec.reader(TaskScheduled)


class TaskSchedules:
    """Schedules tasks, of whatever app and version: whoever asked has them (§OUT-62)."""

    def place(self, call: EffectCall, generation: int = 0) -> tuple[StreamKind, str]:
        return "SCHEDULE", schedule_stream(call.tenant_id, _name(call), generation)

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
            generation=next(n for n in count() if self.place(call, n)[1] == stream.fold.stream_id),
            orchestrator_version=call.orchestrator_version,
        )
        return _done(done, _name(call), stream.fold.version, due)

    def recall(self, event: Event) -> Outcome:
        said = _read(event.event_data)
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


def _name(call: EffectCall) -> str:
    """What the schedule is known by: without a name, each effect is a schedule of its own."""
    return _asked(call).name or call.key


def _asked(call: EffectCall) -> ScheduleTask:
    assert isinstance(call.spec, ScheduleTask), "it is registered for that"
    return call.spec
