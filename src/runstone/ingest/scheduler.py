"""The scheduler: when a task's time has come, its run is created, once, whoever looks first (§OUT-68).

    due? ─► TASK_FIRED, signal and run ─► one commit

Nobody claims anything. The commit stands on the head of the schedule's stream: whoever loses finds that
it was fired and does nothing, so as many may look as like. Who lost gives way: from then on it leaves that
task to the others, unless one of its schedules is overdue by a look. What was missed while nobody looked
is fired once, for its latest time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from runstone.core import codec
from runstone.core.catalogue import CATALOGUE
from runstone.core.commands import ReceiveSignal
from runstone.core.commit import Commit, Context, StreamWriter, stream_write
from runstone.core.decide import Case, decide
from runstone.core.decide.schedules import fire
from runstone.core.events import Event
from runstone.core.fold import schedule_fold
from runstone.core.ids import NewId
from runstone.core.keys import content_hash
from runstone.core.payloads import TaskScheduled
from runstone.core.run import code_rank
from runstone.core.schedule import CHANNEL, Schedule, source_id
from runstone.errors import (
    OutcomeUnknown,
    RunstoneError,
    StaleFence,
    StaleSequence,
    StoreCorrupt,
    StoreUnusable,
)
from runstone.ingest.signals import ScheduledTask
from runstone.ports.bell import Bell
from runstone.ports.calendar import latest_due, next_due
from runstone.ports.cases import make_durable
from runstone.ports.clock import Clock
from runstone.ports.store import DueSchedule, Host
from runstone.ports.tasks import Tasks

POLL: Final = 1.0
"""About how many seconds pass between two looks; what is due sooner is fired in time."""
AT_ONCE: Final = 100
TROUBLE: Final = timedelta(minutes=5)
"""How long at most a schedule rests that cannot be fired here; a second at first."""
TROUBLES_KEPT: Final = 10_000
IN_A_ROW: Final = 3
"""So many that the store would not take, one after the other, are its own trouble: the rest wait."""

_log = logging.getLogger("runstone.scheduler")


class _Newer(Exception):
    """It was asked for by newer code, which others have."""


class Scheduler:
    """Fires the schedules of the tasks that this process has handlers for, as new as who asked has them."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        *,
        worker_id: str,
        clock: Clock,
        new_id: NewId,
        bell: Bell,
        jitter: Callable[[], float],
        version: str = "",
        poll: float = POLL,
    ) -> None:
        self.id = worker_id
        self._host = host
        self._tasks = tasks
        self._clock = clock
        self._new_id = new_id
        self._bell = bell
        self._jitter = jitter
        self._version = version
        self._poll = poll
        self._wake = asyncio.Event()
        self._stopping = False
        self._troubles: dict[str, tuple[int, datetime]] = {}
        """What could not be fired here: how often, and until when it is left alone."""
        self._patience: dict[str, tuple[datetime, timedelta]] = {}
        """Tasks that another was faster to fire: when, and for how long what is due is left to others."""

    def wake(self) -> None:
        """Something was scheduled: it may be due before the next look."""
        self._wake.set()

    async def run(self) -> None:
        """Looks until it is stopped."""
        while not self._stopping:
            self._wake.clear()
            pause = await self.run_once()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def drain(self, deadline: timedelta = timedelta(0)) -> None:
        """Fires no more; what is on its way to the store gets there."""
        self._stopping = True
        self._wake.set()

    async def run_once(self) -> float:
        """Fires everything that is due; for how many seconds there is nothing to do then."""
        pause = self._about_a_look()
        tasks = self._tasks.names
        after: tuple[datetime, str] | None = None
        refused = 0
        while tasks:
            until = self._clock.now() + timedelta(seconds=pause)
            try:
                page = await self._host.due_schedules(tasks=tasks, until=until, after=after, limit=AT_ONCE)
            except RunstoneError as error:
                _log.warning("cannot look for schedules that are due: %s", error)
                return pause
            for found in page:
                next_at = _next_at(found.schedule)
                ahead = (next_at - self._clock.now()).total_seconds()
                if ahead > 0:
                    return self._until_next_try(min(pause, ahead))
                after = (next_at, found.schedule.id)
                left = self._left_to_others(found.schedule)
                if left > 0:
                    pause = min(pause, left)
                    continue
                refused = 0 if await self._try(found) else refused + 1
                if self._stopping or refused == IN_A_ROW:
                    return pause
            if len(page) < AT_ONCE:
                break
        return self._until_next_try(pause)

    def _until_next_try(self, pause: float) -> float:
        """Or sooner, if something may be tried again before."""
        now = self._clock.now()
        rests = [(until - now).total_seconds() for _, until in self._troubles.values() if until > now]
        return min([pause, *rests])

    async def _try(self, found: DueSchedule) -> bool:
        """Fires one; what is wrong with it holds up no other. False: it is the store that cannot."""
        schedule_id, now = found.schedule.id, self._clock.now()
        times, until = self._troubles.get(schedule_id, (0, now))
        if now < until <= now + TROUBLE:  # later only for a clock that was set back
            return True
        try:
            if await self._fire(found):
                self._patience.pop(found.schedule.task, None)
        except _Newer as newer:
            _log.warning("the schedule %r is left to others: %s", found.schedule.name, newer)
            self._leave_alone(schedule_id, times, now)
            return True
        except Exception as error:
            if isinstance(error, StoreUnusable | OutcomeUnknown) and not isinstance(error, StoreCorrupt):
                _log.warning("cannot fire the schedule %r yet: %s", found.schedule.name, error)
                return False
            _log.error("the schedule %r cannot be fired: %s", found.schedule.name, error, exc_info=error)
            self._leave_alone(schedule_id, times, now)
            return True
        self._troubles.pop(schedule_id, None)
        return True

    def _leave_alone(self, schedule_id: str, times: int, now: datetime) -> None:
        if len(self._troubles) >= TROUBLES_KEPT:
            self._troubles.clear()
        rest = min(TROUBLE, timedelta(seconds=2**times))
        self._troubles[schedule_id] = (min(times + 1, 30), now + rest)

    def _about_a_look(self) -> float:
        return self._poll * (0.5 + self._jitter())

    def _left_to_others(self, one: Schedule) -> float:
        """For how many seconds more; who has just lost leaves them what is overdue as well."""
        now = self._clock.now()
        since, patience = self._patience.get(one.task, (now, timedelta(0)))
        if since > now:  # the clock was set back: nobody waits until it is there again
            return 0.0
        return (max(since, _next_at(one)) + patience - now).total_seconds()

    async def _give_way(self, lost: Schedule) -> None:
        """Somebody was faster. One who fired it will be so again: let him, as long as he is there."""
        now = await self._host.get_schedule(lost.tenant_id, lost.id)
        if now is not None and now.fired > lost.fired:
            patience = timedelta(seconds=self._about_a_look())
            self._patience[lost.task] = (self._clock.now(), patience)

    async def _fire(self, found: DueSchedule) -> bool:
        """One commit: that it was fired, the signal that says so, and the run that comes of it.

        False if that was for another to do, or is not to be done.
        """
        one = found.schedule
        scheduled = await self._scheduled(one)
        now = self._clock.now()
        if scheduled is None or _next_at(one) > now:
            return False  # it was replaced a moment ago, or the clock was set back
        asked = CATALOGUE.read(scheduled, TaskScheduled)
        if code_rank(asked.orchestrator_version) > code_rank(self._version):
            raise _Newer(f"version {asked.orchestrator_version!r} asked for it, this is {self._version!r}")
        due_at, next_at = _times(found, now)
        signal_id, run_id, correlation_id = self._new_id(), self._new_id(), self._new_id()
        context = Context(
            now=now,
            new_id=self._new_id,
            actor=f"scheduler:{self.id}",
            trace_id=correlation_id.replace("-", ""),
        )
        writer = StreamWriter(schedule_fold(found.state), context, correlation_id=one.id)
        fired = fire(
            writer,
            due_at=due_at,
            next_at=next_at,
            signal_id=signal_id,
            run_id=run_id,
            cause=scheduled.id,
        )
        write = stream_write(writer.fold, writer.events, found.head.fence)
        payload = codec.canonical(
            ScheduledTask(
                schedule_id=one.id,
                task=one.task,
                scheduled_for=due_at,
                arguments=msgspec.json.decode(asked.arguments),
            )
        )
        decision = decide(
            Case.new(one.tenant_id, signal_id, run_id),
            ReceiveSignal(
                signal_type=ScheduledTask.SIGNAL_TYPE,
                source_channel=CHANNEL,
                source_id=source_id(fired),
                source_hash=content_hash(payload),
                normalized_payload=payload,
                received_at=due_at,
                ingested_by=context.actor,
                cause=fired.id,
                correlation_id=correlation_id,
            ),
            self._tasks.create(one.task, payload, asked.arguments),
            context=msgspec.structs.replace(context, span_id=fired.span_id),  # the commit is one span
        )
        try:
            await make_durable(self._host, Commit.of(Commit((write,), write.events), decision.commit))
        except (StaleSequence, StaleFence):
            await self._give_way(one)  # it was fired, replaced or taken back
            return False
        self._bell.ring(run_id)
        return True

    async def _scheduled(self, one: Schedule) -> Event | None:
        """The event that scheduled it: it holds the arguments whole, and is the cause of each firing."""
        events = await self._host.fetch(one.tenant_id, one.id, after_seq=one.scheduled_seq - 1, limit=1)
        return next((event for event in events if event.event_type == "TASK_SCHEDULED"), None)


def _times(found: DueSchedule, now: datetime) -> tuple[datetime, datetime | None]:
    """The time that has come, and the next; never one that was fired before, whatever the clock says."""
    one = found.schedule
    due_at = _next_at(one)
    if one.cron is None:
        return due_at, None
    now = max(now, found.head.last_at)
    due_at = latest_due(one.cron, one.timezone, due_at, now)
    return due_at, next_due(one.cron, one.timezone, max(now, due_at))


def _next_at(schedule: Schedule) -> datetime:
    assert schedule.next_at is not None, "only what is active is due"
    return schedule.next_at
