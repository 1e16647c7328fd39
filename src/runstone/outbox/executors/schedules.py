"""`SCHEDULE_TASK`: a task for later, in our own store, in the transaction of its outcome (§OUT-55)."""

from __future__ import annotations

from runstone.core.commit import StreamWriter
from runstone.core.decide.schedules import schedule
from runstone.core.effect_specs import ScheduleTask
from runstone.core.events import StreamKind
from runstone.core.fold import ScheduleFold
from runstone.core.keys import schedule_stream
from runstone.ports.calendar import next_due
from runstone.ports.executor import EffectCall, Outcome, Succeeded


class TaskSchedules:
    """Schedules tasks, of whatever app and version: whoever asked has them (§OUT-62)."""

    def place(self, call: EffectCall) -> tuple[StreamKind, str]:
        return "SCHEDULE", schedule_stream(call.tenant_id, _name(call))

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
        )
        return Succeeded(
            {
                "stream_id": done.stream_id,
                "event_id": done.id,
                "name": _name(call),
                "version": stream.fold.version,
                "next_at": due,
            }
        )


def _name(call: EffectCall) -> str:
    """What the schedule is known by: without a name, each effect is a schedule of its own."""
    return _asked(call).name or call.key


def _asked(call: EffectCall) -> ScheduleTask:
    assert isinstance(call.spec, ScheduleTask), "it is registered for that"
    return call.spec
