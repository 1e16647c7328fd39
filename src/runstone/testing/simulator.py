"""Try an app out in virtual time: signals in, effects out, crashes and years on request.

    >>> import runstone as rs
    >>> from runstone.testing import Simulator, virtual_time
    >>> app = rs.App("desk")
    >>> @app.on()
    ... async def ask(run: rs.Run, who: str) -> str:
    ...     await run.effect(rs.NotifyUser(user_id=who, message="May I?"))
    ...     try:
    ...         return str(await run.wait("answer", timeout=rs.days(2)))
    ...     except rs.WaitTimeout:
    ...         return "nobody answered"
    >>> @virtual_time
    ... async def test_nobody_answers() -> None:
    ...     async with Simulator(app) as sim:
    ...         handle = await sim.start(ask, "ann")
    ...         (notice,) = sim.effects
    ...         await sim.deliver(notice)
    ...         await sim.crash()
    ...         await sim.advance(days=3)
    ...         assert await handle.result() == "nobody answered"
    >>> test_nobody_answers()

Nothing sleeps, nothing is written to a disk, and plain functions run inline, so a test of three days
takes milliseconds and does the same thing each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw

from runstone.app import App
from runstone.core.commands import Command, CompleteEffect, FailEffect
from runstone.core.commit import Commit, Context
from runstone.core.effect import Effect
from runstone.core.effect_specs import ScheduleTask
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ErrorInfo
from runstone.core.rows import Row
from runstone.core.schedule import Schedule
from runstone.core.state import RunState
from runstone.engine.functions import A, Handler, R
from runstone.engine.values import write
from runstone.handle import Handle
from runstone.ingest.signals import SignalSpec
from runstone.outbox.builtin import inner_services
from runstone.ports.cases import carry_out
from runstone.ports.clock import Clock
from runstone.ports.store import Committed
from runstone.runtime import Runtime
from runstone.testing.alarm import Alarm
from runstone.testing.clock import START, SeededIds
from runstone.testing.golden import write_histories
from runstone.testing.loop import LoopClock, Node, Stuck, virtual_loop
from runstone.testing.memory import MemoryData, MemoryStore
from runstone.testing.memory_claims import ready_at
from runstone.testing.memory_data import MemoryStream
from runstone.testing.waits import awaited

REST: Final = timedelta(days=1000)
"""How long leases last, and nobody looks for work: the alarm says when there is some. A crash ends leases."""

PATIENCE: Final = timedelta(days=400)
"""Who waits this long for a run that is due, or never will be, waits for nothing."""


class RequestedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run asked for outside."""

    id: str
    run_id: str
    tenant_id: str
    effect_type: str
    spec: dict[str, Any]
    status: str


class Simulator:
    """An app, a worker and a store, all inside of a test that is decorated with `@virtual_time`."""

    def __init__(self, app: App, *, start: datetime = START, seed: int = 0) -> None:
        self.app = app
        self._begins = start
        self._random = Random(seed)
        self._data = MemoryData()
        self._changes: dict[str, asyncio.Event] = {}

    async def __aenter__(self) -> Simulator:
        self._loop = virtual_loop()
        self.clock = LoopClock(self._loop, self._begins, jumped=lambda: alarm.reset())
        alarm = self._alarm = Alarm(self._loop, self.clock)
        self._ids = SeededIds(self._random.getrandbits(64), self.clock)
        self._store = self._open_store()
        self._client = _Client(self, self._store)
        self._client.bell.listen(self._ring)
        self.app.attach(self._client)
        self._boot()
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._node.state == "alive":
                self._stop.set()
                await self._serving
        finally:
            self._alarm.stop_all()
            self.app.attach(None)

    # In

    async def start(
        self,
        handler: Handler[A, R],
        value: A | None = None,
        *,
        key: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
    ) -> Handle[R]:
        """Starts a run, and lets happen what happens at once."""
        given: Any = value
        handle = await self.app.start(handler, given, key=key, tenant_id=tenant_id)
        await self.settle()
        return handle

    async def send(
        self,
        signal: SignalSpec,
        *,
        channel: str = "test",
        source_id: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
    ) -> Handle[Any]:
        """Sends a signal, and lets happen what happens at once."""
        source_id = source_id or self._ids()
        handle = await self.app.send(signal, channel=channel, source_id=source_id, tenant_id=tenant_id)
        await self.settle()
        return handle

    # Out

    @property
    def effects(self) -> list[RequestedEffect]:
        """What the runs asked for outside, the earliest first."""
        found = [
            (effect, stream.state().whole(effect.effect_spec))
            for stream in self._data.streams.values()
            for effect in stream.of(Effect)
        ]
        found.sort(key=lambda one: (one[0].requested_at, one[0].id))
        return [_requested(effect, spec) for effect, spec in found]

    async def deliver(self, effect: RequestedEffect, result: object = None) -> None:
        """Lets an effect succeed."""
        await self._report(
            effect, CompleteEffect(effect_id=effect.id, executor="simulator", result=write(result))
        )

    async def fail(
        self, effect: RequestedEffect, message: str = "As the test wants it", *, retryable: bool = False
    ) -> None:
        """Lets an effect fail: for good, unless it is `retryable` and has a retry left."""
        error = ErrorInfo(category="EXTERNAL", code="SIMULATED", message=message, retryable=retryable)
        failure = FailEffect(
            effect_id=effect.id, executor="simulator", error=error, next_retry_at=self.clock.now()
        )
        await self._report(effect, failure)

    async def _report(self, effect: RequestedEffect, outcome: Command) -> None:
        context = Context(now=self.clock.now(), new_id=self._ids, actor="simulator")
        await carry_out(self._store, effect.tenant_id, effect.run_id, outcome, context=context)
        self._ring(effect.run_id)
        await self.settle()

    # Time and chance

    async def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Lets time pass, with everything that happens meanwhile."""
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        await asyncio.sleep(span.total_seconds())
        await self.settle()

    async def settle(self) -> None:
        """Lets happen what happens without time passing."""
        await self._loop.calm()

    async def crash(self, *, down: timedelta = timedelta(seconds=30)) -> None:
        """Kills the worker as `kill -9` would, and starts another when its lease is over.

        Nothing of the dead one ever runs again, not even a `finally`.
        """
        victim = self._node
        victim.kill()
        victim.seal()
        self._worker_store.cut_off()
        await asyncio.sleep(down.total_seconds())
        if self._node is victim:  # nobody who waited for the same has started another
            self._data.end_leases()
            self._look_around()
            self._boot()
        await self.settle()

    # Histories

    def record(self, folder: str | Path) -> None:
        """Keeps the histories of all runs, for `assert_replays` to try new code on."""
        write_histories([stream.whole() for stream in self._data.streams.values()], Path(folder))

    # Inside

    def _boot(self) -> None:
        self._node = Node("worker")
        self._stop = asyncio.Event()
        self._worker_store = self._open_store()
        own = {service.effect_type for service in self.app.services}
        self._runtime = Runtime(
            self._worker_store,
            self.app.handlers,
            version=self.app.version,
            clock=self.clock,
            ids=self._ids,
            lease=REST,
            poll=REST.total_seconds(),
            threads=False,
            jitter=self._random.random,
            worker_id=self._ids(),
            services=[one for one in inner_services() if one.effect_type not in own],
            check_tasks=ScheduleTask.EFFECT_TYPE not in own,
        )
        self._serving = self._node.spawn(_serve(self.app, self._runtime, self._stop))

    def _ring(self, run_id: str) -> None:
        self._node.call(self._runtime.bell.ring, run_id)

    def _open_store(self) -> _WatchedStore:
        return _WatchedStore(self._data, self.clock, self._committed, self._look_around)

    def _committed(self, commit: Commit) -> None:
        for written in commit.writes:
            self._set_alarm(self._data.streams[written.stream_id], written.rows)
            if written.stream_id in self._changes:
                self._changes.pop(written.stream_id).set()

    def _look_around(self) -> None:
        """What somebody had, nobody has now; it is not due again yet if the clock was set back meanwhile."""
        for stream in self._data.streams.values():
            self._set_alarm(stream, list(stream.rows.values()))

    def _set_alarm(self, stream: MemoryStream, rows: Iterable[Row]) -> None:
        """For whatever is due because of these, now or later."""
        if stream.head.kind == "RUN":
            run_id = stream.head.stream_id
            waits = None if stream.owner in self._data.workers else stream.queue
            self._alarm.set(run_id, None if waits is None else waits.wake_at, partial(self._ring, run_id))
        for row in rows:
            if isinstance(row, Schedule):
                self._alarm.set(row.id, row.next_at, self._wake_scheduler)
            elif isinstance(row, Effect) and row.effect_type in self._runtime.served:
                self._alarm.set(row.id, ready_at(row, stream.lease_of(row)), self._wake_dispatcher)

    def _wake_dispatcher(self) -> None:
        if self._runtime.dispatcher is not None:
            self._node.call(self._runtime.dispatcher.wake)

    def _wake_scheduler(self) -> None:
        if self._runtime.scheduler is not None:
            self._node.call(self._runtime.scheduler.wake)

    async def changed(self, stream_id: str) -> bool:
        """Waits until a commit touches the stream; false if none did, long after it was due."""
        event = self._changes.setdefault(stream_id, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), self._patience(stream_id).total_seconds())
            return True
        return False

    def _patience(self, stream_id: str) -> timedelta:
        stream = self._data.streams.get(stream_id)
        now = self.clock.now()
        wake_at = stream.queue.wake_at if stream is not None and stream.queue is not None else None
        return PATIENCE if wake_at is None else PATIENCE + max(timedelta(0), wake_at - now)


async def _serve(app: App, runtime: Runtime, stop: asyncio.Event) -> None:
    async with app.lifespans():
        runtime.start()
        try:
            await stop.wait()
        finally:
            await runtime.stop(timedelta(0))


class _WatchedStore(MemoryStore):
    """Tells of all that makes work for somebody: commits, and what was put back."""

    def __init__(
        self,
        data: MemoryData,
        clock: Clock,
        committed: Callable[[Commit], None],
        put_back: Callable[[], None],
    ) -> None:
        super().__init__(data, clock=clock)
        self._committed = committed
        self._put_back = put_back

    def cut_off(self) -> None:
        """Lets go of the data and of who watches: the dead are kept, and need not keep these."""
        self.data = MemoryData()
        self._committed = lambda commit: None
        self._put_back = lambda: None

    async def commit(self, commit: Commit) -> Committed:
        result = await super().commit(commit)
        self._committed(commit)
        return result

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        count = await super().release(worker_id, run_ids)
        self._put_back()
        return count

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        count = await super().release_effects(worker_id, effect_ids, until=until)
        self._put_back()
        return count

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        count = await super().release_stray_effects(worker_id, keeping=keeping, since=since)
        self._put_back()
        return count


class _Client(Runtime):
    """The test's own way in: no worker, and it hears of every change."""

    def __init__(self, simulator: Simulator, store: MemoryStore) -> None:
        super().__init__(
            store,
            simulator.app.handlers,
            version=simulator.app.version,
            clock=simulator.clock,
            ids=simulator._ids,
            worker=False,
            threads=False,
        )
        self._simulator = simulator

    async def changed(self, run_id: str, most: float) -> None:
        if not await self._simulator.changed(run_id):
            raise Stuck(f"Run {run_id} has not changed for {PATIENCE.days} days: {self._awaited(run_id)}")

    def _awaited(self, run_id: str) -> str:
        stream = self._simulator._data.streams.get(run_id)
        state = None if stream is None else stream.state()
        return awaited(state) if isinstance(state, RunState) else "there is no such run"


def _requested(effect: Effect, spec: Raw) -> RequestedEffect:
    return RequestedEffect(
        id=effect.id,
        run_id=effect.run_id,
        tenant_id=effect.tenant_id,
        effect_type=effect.effect_type,
        spec=msgspec.json.decode(spec),
        status=effect.status,
    )
