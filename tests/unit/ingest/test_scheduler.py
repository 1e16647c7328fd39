"""The scheduler on the reference store: each time is fired once, whoever dies, is late, or looks as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

import runstone as rs
from runstone.audit.verify import verify_all
from runstone.core.bundle import import_commit, pack, unpack
from runstone.core.commit import Commit
from runstone.core.events import Event
from runstone.core.keys import schedule_stream
from runstone.core.schedule import CHANNEL, Schedule
from runstone.core.state import ScheduleState
from runstone.core.verify import verify_causes, verify_stream
from runstone.engine.tasks import HandlerTasks
from runstone.errors import (
    CommandRefused,
    NotFound,
    OutcomeUnknown,
    StaleSequence,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
)
from runstone.ingest import scheduler as module
from runstone.ingest.scheduler import Scheduler
from runstone.ingest.schedules import cancel_schedule
from runstone.ports.bell import Bell
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.scene import Scene
from runstone.testing.conformance.schedules import put, scheduled
from runstone.testing.conformance.walks import FAULTS, walk_faults
from runstone.testing.memory import MemoryData, MemoryStore

app = rs.App("desk", version="2")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MARCH = datetime.fromisoformat("2024-03-01T00:00Z")


@app.on()
async def nightly(run: rs.Run, what: dict[str, Any] | None = None) -> None: ...


@app.on()
async def weekly(run: rs.Run, what: dict[str, Any] | None = None) -> None: ...


class Desk:
    """A store, and schedulers on it."""

    def __init__(self) -> None:
        self.data = MemoryData()
        self.rung: list[str] = []
        self.scene = Scene(self.open_store, None)  # type: ignore[arg-type]
        self.scene.store = MemoryStore(self.data, clock=self.scene.clock)

    async def open_store(self, clock: Any) -> MemoryStore:
        return MemoryStore(self.data, clock=clock)

    @property
    def clock(self) -> VirtualClock:
        return self.scene.clock

    def scheduler(
        self, name: str = "s1", *, store: Any = None, poll: float = 1.0, version: str = app.version
    ) -> Scheduler:
        bell = Bell()
        bell.listen(self.rung.append)
        return schedule_on(self.scene, store or self.scene.store, name, bell, poll, version)

    async def put(self, at: datetime | None = None, **given: Any) -> Schedule:
        state = await put(self.scene, at or self.clock.now(), **{"task": "nightly", **given})
        assert state.schedule is not None
        return state.schedule

    async def row(self, name: str = "report") -> Schedule:
        stream_id = schedule_stream(self.scene.tenant_id, name)
        row = await self.scene.store.get_schedule(self.scene.tenant_id, stream_id)
        assert row is not None
        return row

    def fired(self, name: str = "report") -> list[dict[str, Any]]:
        stream = self.data.streams[schedule_stream(self.scene.tenant_id, name)]
        told = [event for event in stream.events if event.event_type == "TASK_FIRED"]
        return [msgspec.json.decode(event.event_data) for event in told]


def schedule_on(
    scene: Scene,
    store: Any,
    name: str = "s1",
    bell: Bell | None = None,
    poll: float = 1.0,
    version: str = app.version,
) -> Scheduler:
    return Scheduler(
        store,
        HandlerTasks(app.handlers, version),
        worker_id=name,
        clock=scene.clock,
        new_id=scene.new_id,
        bell=bell or Bell(),
        jitter=lambda: 0.5,
        version=version,
        poll=poll,
    )


async def prove(scene: Scene) -> int:
    """Each firing has one signal and one run, and each of these one firing; how many there are."""
    store = scene.store
    streams = [
        stream
        async for tenant_id, correlation_id in store.correlations(scene.tenant_id)
        for stream in await store.correlation(tenant_id, correlation_id)
    ]
    by_correlation: dict[str, list[Any]] = {}
    events: list[Event] = []
    for stream in streams:
        assert verify_stream(stream, await store.rows(scene.tenant_id, stream.head.stream_id)) == []
        by_correlation.setdefault(stream.events[0].correlation_id, []).append(stream)
        events += stream.events
    for together in by_correlation.values():
        assert verify_causes(together) == []
    data = {event.id: msgspec.json.decode(event.event_data) for event in events}
    fired = {event.id: data[event.id] for event in events if event.event_type == "TASK_FIRED"}
    received = {
        event.stream_id: event
        for event in events
        if event.event_type == "SIGNAL_RECEIVED" and data[event.id]["source_channel"] == CHANNEL
    }
    created = {event.stream_id: data[event.id] for event in events if event.event_type == "RUN_CREATED"}
    assert sorted(told["signal_id"] for told in fired.values()) == sorted(received)
    assert sorted(told["run_id"] for told in fired.values()) == sorted(created)
    for event_id, told in fired.items():
        assert received[told["signal_id"]].causation_id == event_id
        assert created[told["run_id"]]["signal_id"] == told["signal_id"]
    return len(fired)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_a_time_that_has_come_is_one_commit_with_its_signal_and_its_run(desk: Desk) -> None:
    """§OUT-66, §OUT-68, §ORD-40"""
    due_at = desk.clock.now()
    one = await desk.put(due_at, cron=None, arguments={"text": "x" * 3000})
    before = desk.data.commits
    assert await desk.scheduler().run_once() == 1.0
    assert desk.data.commits == before + 1
    row = await desk.row()
    assert (row.status, row.fired, row.next_at) == ("DONE", 1, None)
    assert desk.rung == [row.last_run_id]
    run = await desk.scene.store.get_run(desk.scene.tenant_id, row.last_run_id or "")
    assert run is not None
    assert (run.plan_id, run.run_type, run.orchestrator_version) == ("nightly", "SCHEDULED_TASK", "2")
    scheduled, fired = desk.data.streams[one.id].events
    signal = await desk.scene.store.find_signal(desk.scene.tenant_id, CHANNEL, f"{one.id}:2:{fired.id}")
    assert signal is not None
    assert (signal.id, signal.signal_type, signal.received_at) == (run.signal_id, "SCHEDULED_TASK", due_at)
    stream = desk.data.streams[signal.id]
    assert msgspec.json.decode(stream.state().whole(signal.normalized_payload)) == {
        "schedule_id": one.id,
        "task": "nightly",
        "scheduled_for": due_at.isoformat().replace("+00:00", "Z"),
        "arguments": {"text": "x" * 3000},
    }
    assert fired.causation_id == scheduled.id
    assert fired.correlation_id == one.id != signal.correlation_id
    assert {(e.trace_id, e.span_id) for e in (fired, *stream.events)} == {(fired.trace_id, fired.span_id)}
    assert fired.trace_id == signal.correlation_id.replace("-", "")
    assert await prove(desk.scene) == 1
    assert await desk.scheduler().run_once() == 1.0
    assert await prove(desk.scene) == 1


async def test_what_is_due_soon_is_waited_for_and_no_longer(desk: Desk) -> None:
    scheduler = desk.scheduler(poll=60.0)
    assert await scheduler.run_once() == 60.0
    await desk.put(desk.clock.now() + timedelta(seconds=7))
    assert await scheduler.run_once() == 7.0
    assert desk.fired() == []
    desk.clock.advance(7)
    assert await scheduler.run_once() == 60.0
    assert len(desk.fired()) == 1


async def test_what_was_missed_is_fired_once_for_its_latest_time(desk: Desk) -> None:
    """§OUT-69"""
    await desk.put(datetime.fromisoformat("2024-03-02T00:00Z"), cron="0 0 * * *")
    desk.clock.set(datetime.fromisoformat("2024-03-09T12:00Z"))
    await desk.scheduler().run_once()
    assert [(one["due_at"], one["next_at"]) for one in desk.fired()] == [
        ("2024-03-09T00:00:00Z", "2024-03-10T00:00:00Z")
    ]
    desk.clock.advance(DAY)
    await desk.scheduler().run_once()
    assert [one["fired"] for one in desk.fired()] == [1, 2]
    assert await prove(desk.scene) == 2


async def test_a_clock_that_was_set_back_fires_nothing_again(desk: Desk) -> None:
    """§OUT-69"""
    await desk.put(datetime.fromisoformat("2024-03-02T00:00Z"), cron="0 * * * *")
    scheduler = desk.scheduler()
    desk.clock.set(datetime.fromisoformat("2024-03-02T05:30Z"))
    await scheduler.run_once()
    desk.clock.set(datetime.fromisoformat("2024-03-02T01:00Z"))
    for _ in range(8):
        await scheduler.run_once()
        desk.clock.advance(HOUR)
    assert [one["due_at"] for one in desk.fired()] == [
        "2024-03-02T05:00:00Z",
        "2024-03-02T06:00:00Z",
        "2024-03-02T07:00:00Z",
        "2024-03-02T08:00:00Z",
    ]
    assert await prove(desk.scene) == 4


class SetBack(MemoryStore):
    """Its clock is set back while somebody reads."""

    async def fetch(self, *given: Any, **named: Any) -> Any:
        assert isinstance(self._clock, VirtualClock)
        self._clock.set(self._clock.now() - HOUR)
        return await super().fetch(*given, **named)


async def test_a_clock_that_is_set_back_meanwhile_fires_nothing_before_its_time(desk: Desk) -> None:
    await desk.put()
    await desk.scheduler(store=SetBack(desk.data, clock=desk.clock)).run_once()
    assert desk.fired() == []
    desk.clock.advance(HOUR)
    await desk.scheduler().run_once()
    assert len(desk.fired()) == 1


async def test_of_many_who_look_at_once_one_fires(desk: Desk) -> None:
    """§OUT-68"""
    for number in range(5):
        await desk.put(name=f"n{number}", cron="* * * * *")
    schedulers = [desk.scheduler(f"s{number}") for number in range(6)]
    for round_ in range(1, 4):
        await asyncio.gather(*(scheduler.run_once() for scheduler in schedulers))
        assert await prove(desk.scene) == 5 * round_
        desk.clock.advance(60)


async def test_a_run_from_another_store_is_in_nobodys_way(desk: Desk) -> None:
    """§OUT-66: its schedule has the same name there, and may have fired as often or more often."""
    other = Desk()
    other.scene.tenant_id = desk.scene.tenant_id
    for one in (desk, other):
        await one.put(one.clock.now(), cron="* * * * *")
    for _ in range(3):
        await other.scheduler().run_once()
        other.clock.advance(60)
    for told in other.fired():
        run = await other.scene.store.get_run(other.scene.tenant_id, told["run_id"])
        assert run is not None
        streams = await other.scene.store.correlation(other.scene.tenant_id, run.correlation_id)
        await desk.scene.store.commit(import_commit(unpack(pack(streams))))
    for _ in range(4):
        await desk.scheduler().run_once()
        desk.clock.advance(60)
    assert [one["fired"] for one in desk.fired()] == [1, 2, 3, 4]
    assert len(await desk.scene.store.list_runs(desk.scene.tenant_id)) == 7
    parts = [part async for part in verify_all(desk.scene.store)]
    assert [finding for part in parts for finding in part.findings] == []


class TestRivals:
    """Many who look at the same schedules: who loses gives way (§OUT-77)."""

    async def lost(self, desk: Desk, minutes: int = 10) -> int:
        """How many commits are refused to eight schedulers over five schedules."""
        counted = Counting(desk.data, clock=desk.clock)
        desk.clock.set(MARCH)
        for number in range(5):
            await desk.put(name=f"n{number}", cron="* * * * *")
        schedulers = [desk.scheduler(f"s{number}", store=counted) for number in range(8)]
        for minute in range(1, minutes + 1):
            await asyncio.gather(*(scheduler.run_once() for scheduler in schedulers))
            assert await prove(desk.scene) == 5 * minute
            desk.clock.advance(60)
        return counted.lost

    async def test_who_loses_leaves_the_task_to_who_won(self, desk: Desk) -> None:
        assert await self.lost(desk) == 7

    async def test_without_that_all_would_lose_each_time(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def insist(self: Scheduler, lost: Schedule) -> None: ...

        monkeypatch.setattr(Scheduler, "_give_way", insist)
        assert await self.lost(desk) == 7 * 5 * 10

    async def test_what_was_missed_is_left_to_who_has_begun_with_it(self, desk: Desk) -> None:
        """After a while in which nobody looked, all begin at once."""
        counted = Counting(desk.data, clock=desk.clock)
        for number in range(20):
            await desk.put(name=f"n{number}", cron=None)
        desk.clock.advance(DAY)
        await asyncio.gather(*(desk.scheduler(f"s{number}", store=counted).run_once() for number in range(8)))
        assert await prove(desk.scene) == 20
        assert counted.lost == 7

    async def beaten(self, desk: Desk, poll: float = 1.0) -> Scheduler:
        """One that has lost to another."""
        desk.clock.set(MARCH)
        await desk.put(cron="* * * * *")
        store = Beaten(desk.data, desk.scheduler("winner"), clock=desk.clock)
        loser = desk.scheduler("loser", store=store, poll=poll)
        await loser.run_once()
        assert len(desk.fired()) == 1
        return loser

    async def test_what_is_overdue_by_a_look_is_not_left_any_longer(self, desk: Desk) -> None:
        loser = await self.beaten(desk, poll=40.0)
        desk.clock.advance(50)
        assert await loser.run_once() == 10.0
        desk.clock.advance(10)
        assert await loser.run_once() == 40.0, "as soon as it is overdue by a look"
        assert len(desk.fired()) == 1
        desk.clock.advance(40)
        await loser.run_once()
        assert len(desk.fired()) == 2
        desk.clock.advance(20)
        await loser.run_once()
        assert len(desk.fired()) == 3, "there was nobody else: it waits no more"
        assert await prove(desk.scene) == 3

    async def test_a_clock_that_was_set_back_has_nobody_wait_for_it(self, desk: Desk) -> None:
        loser = await self.beaten(desk)
        desk.clock.advance(-HOUR)
        await desk.put(name="other", cron=None)
        await loser.run_once()
        assert len(desk.fired("other")) == 1

    async def test_other_tasks_are_not_left(self, desk: Desk) -> None:
        loser = await self.beaten(desk)
        await desk.put(name="other", task="weekly", cron=None)
        desk.clock.advance(60)
        await loser.run_once()
        assert [len(desk.fired()), len(desk.fired("other"))] == [1, 1]

    async def test_one_that_was_replaced_has_nobody_to_give_way_to(self, desk: Desk) -> None:
        class Replaced(MemoryStore):
            async def commit(self, commit: Commit) -> Any:
                if not desk.fired() and (await desk.row()).version == 1:
                    state = desk.data.streams[one.id].state()
                    assert isinstance(state, ScheduleState)
                    again, _ = scheduled(desk.scene, state, desk.clock.now(), task="nightly")
                    await desk.scene.store.commit(again)
                return await super().commit(commit)

        one = await desk.put(cron=None)
        scheduler = desk.scheduler(store=Replaced(desk.data, clock=desk.clock))
        await scheduler.run_once()
        assert desk.fired() == []
        await scheduler.run_once()
        assert len(desk.fired()) == 1


class Counting(MemoryStore):
    """Counts the commits that come too late."""

    lost = 0

    async def commit(self, commit: Commit) -> Any:
        try:
            return await super().commit(commit)
        except StaleSequence:
            self.lost += 1
            raise


class Beaten(MemoryStore):
    """Another is always faster, the first time."""

    def __init__(self, data: MemoryData, winner: Scheduler, **given: Any) -> None:
        super().__init__(data, **given)
        self.winner: Scheduler | None = winner

    async def commit(self, commit: Commit) -> Any:
        winner, self.winner = self.winner, None
        if winner is not None:
            await winner.run_once()
        return await super().commit(commit)


async def test_what_newer_code_asked_for_is_left_to_newer_code(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """§OUT-78: as its runs are; and told, not hidden."""
    for name, version in (("same", "2"), ("older", "1.9"), ("unknown", ""), ("newer", "2.0.1")):
        await desk.put(name=name, version=version, cron=None)
    scheduler = desk.scheduler()
    for _ in range(4):
        await scheduler.run_once()
        desk.clock.advance(1)
    assert [len(desk.fired(name)) for name in ("same", "older", "unknown", "newer")] == [1, 1, 1, 0]
    assert caplog.text.count("'newer' is left to others: version '2.0.1' asked for it") == 3
    await desk.scheduler(version="10").run_once()
    assert len(desk.fired("newer")) == 1
    assert await prove(desk.scene) == 4


async def test_pages_are_gone_through_to_their_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    for number in range(7):
        await desk.put(name=f"n{number}", cron=None)
    assert await desk.scheduler().run_once() == 1.0
    assert await prove(desk.scene) == 7


async def test_tasks_that_are_not_here_are_left_to_others(desk: Desk) -> None:
    await desk.put(task="elsewhere")
    await desk.scheduler().run_once()
    assert await prove(desk.scene) == 0


async def fire(scene: Scene) -> str:
    """Schedules once and for ever, and fires both as often as it takes; who dies is followed by others."""
    store, now = scene.store, scene.clock.now()
    real = store.store  # type: ignore[attr-defined]  # what is scheduled is not to fail
    plain = Scene(scene.open_store, real, scene.clock)
    plain.new_id, plain.tenant_id = scene.new_id, scene.tenant_id
    await put(plain, now, task="nightly", cron=None, name="once")
    state = await put(plain, now, task="nightly", cron="0 0 * * *", name="daily")
    for day in range(3):
        for look in range(3):  # of which a fault may spoil one
            with suppress(*FAULTS):
                await schedule_on(scene, store, f"s{day}{look}").run_once()
        scene.clock.advance(DAY)
    return state.stream_id


async def check(scene: Scene, stream_id: str) -> None:
    assert await prove(scene) == 4, "once, and on three days"
    row = await scene.store.get_schedule(scene.tenant_id, stream_id)
    assert row is not None
    assert row.fired == 3
    assert list(await scene.store.self_check()) == []


async def test_whatever_fails_each_time_is_fired_once() -> None:
    """§STO-19: refused, answer lost, cancelled before, midway and after, at every operation."""
    opened: list[MemoryData] = []

    async def open_store(clock: Any) -> MemoryStore:
        """Each walk opens it twice: empty, and again to be looked at."""
        opened.append(opened[-1] if len(opened) % 2 else MemoryData())
        return MemoryStore(opened[-1], clock=clock)

    assert await walk_faults(open_store, fire, check) > 40


async def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_bytes(desk: Desk) -> None:
    """§STO-19"""
    submitted: list[Commit] = []

    class Lossy(MemoryStore):
        async def commit(self, commit: Commit) -> Any:
            submitted.append(commit)
            done = await super().commit(commit)
            if len(submitted) < 3:
                raise OutcomeUnknown
            return done

    await desk.put(cron=None)
    await desk.scheduler(store=Lossy(desk.data, clock=desk.clock)).run_once()
    assert len(submitted) == 3
    assert submitted[0] is submitted[1] is submitted[2]
    assert await prove(desk.scene) == 1


async def test_what_cannot_be_fired_rests_and_holds_up_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = await desk.put(cron=None, name="broken")
    await desk.put(cron=None, name="good")
    create = HandlerTasks.create
    tries: list[str] = []

    def broken(self: Any, task: str, payload: Any, arguments: Any) -> Any:
        if msgspec.json.decode(payload)["schedule_id"] == first.id:
            tries.append(task)
            raise RuntimeError("broken by design")
        return create(self, task, payload, arguments)

    monkeypatch.setattr(HandlerTasks, "create", broken)
    scheduler = desk.scheduler()
    for _ in range(32):
        await scheduler.run_once()
        desk.clock.advance(1)
    assert len(desk.fired("good")) == 1
    assert len(tries) == 6, "after 1, 2, 4, 8 and 16 seconds"
    assert "broken by design" in caplog.text
    monkeypatch.setattr(HandlerTasks, "create", create)
    desk.clock.advance(300)
    await scheduler.run_once()
    assert await prove(desk.scene) == 2


async def test_what_rests_does_not_wait_for_a_clock_that_was_set_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.put(desk.clock.now() - DAY, cron=None)
    scheduler = desk.scheduler()

    def broken(self: Any, task: str, payload: Any, arguments: Any) -> Any:
        raise RuntimeError("broken by design")

    with monkeypatch.context() as patch:
        patch.setattr(HandlerTasks, "create", broken)
        await scheduler.run_once()
    assert desk.fired() == []
    await scheduler.run_once()
    assert desk.fired() == [], "it rests"
    desk.clock.advance(-HOUR)
    await scheduler.run_once()
    assert await prove(desk.scene) == 1


async def test_a_store_in_trouble_is_asked_again_later(desk: Desk) -> None:
    class Busy(MemoryStore):
        busy = True

        async def due_schedules(self, **named: Any) -> Sequence[Any]:
            if self.busy:
                raise StoreBusy("As planned")
            return await super().due_schedules(**named)

        async def commit(self, commit: Commit) -> Any:
            Busy.commits += 1
            if Busy.commits == 1:
                raise StoreBusy("As planned")
            return await super().commit(commit)

        commits = 0

    await desk.put(cron=None)
    store = Busy(desk.data, clock=desk.clock)
    scheduler = desk.scheduler(store=store)
    assert await scheduler.run_once() == 1.0
    Busy.busy = False
    assert await scheduler.run_once() == 1.0
    assert await prove(desk.scene) == 0
    await scheduler.run_once()
    assert await prove(desk.scene) == 1


async def test_a_store_that_takes_nothing_is_not_asked_for_each_of_many(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(MemoryStore):
        async def commit(self, commit: Commit) -> Any:
            raise StoreFull("As planned")

    for number in range(20):
        await desk.put(name=f"n{number}", cron=None)
    store = Full(desk.data, clock=desk.clock)
    assert await desk.scheduler(store=store).run_once() == 1.0
    assert caplog.text.count("As planned") == module.IN_A_ROW
    await desk.scheduler().run_once()
    assert await prove(desk.scene) == 20


async def test_one_that_the_store_would_not_take_or_cannot_read_holds_up_no_other(desk: Desk) -> None:
    broken = [
        await desk.put(cron=None, name=name) for name in ("locked", "corrupt-1", "corrupt-2", "corrupt-3")
    ]

    class Ill(MemoryStore):
        async def fetch(self, tenant_id: str, stream_id: str, **named: Any) -> Any:
            if stream_id in {one.id for one in broken[1:]}:
                raise StoreCorrupt("As planned")
            return await super().fetch(tenant_id, stream_id, **named)

        async def commit(self, commit: Commit) -> Any:
            if broken[0].id in {write.stream_id for write in commit.writes}:
                raise StoreBusy("As planned")
            return await super().commit(commit)

    desk.clock.advance(1)
    await desk.put(cron=None, name="good")
    desk.clock.advance(1)
    await desk.scheduler(store=Ill(desk.data, clock=desk.clock)).run_once()
    assert len(desk.fired("good")) == 1
    assert await prove(desk.scene) == 1


async def test_who_is_told_to_stop_fires_no_more_than_the_one_in_hand(desk: Desk) -> None:
    class Slow(MemoryStore):
        async def commit(self, commit: Commit) -> Any:
            await scheduler.drain()
            return await super().commit(commit)

    for number in range(5):
        await desk.put(name=f"n{number}", cron=None)
    scheduler = desk.scheduler(store=Slow(desk.data, clock=desk.clock))
    await scheduler.run_once()
    assert await prove(desk.scene) == 1


@pytest.fixture
async def running(desk: Desk) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    scheduler = desk.scheduler(poll=3600.0)
    task = asyncio.ensure_future(scheduler.run())
    await _turns()

    async def wake() -> None:
        scheduler.wake()
        await _turns()

    yield wake
    await scheduler.drain()
    await asyncio.wait_for(task, 60)


async def _turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_who_is_woken_looks_at_once(desk: Desk, running: Callable[[], Awaitable[None]]) -> None:
    await desk.put(cron=None)
    await _turns()
    assert desk.fired() == []
    await running()
    assert len(desk.fired()) == 1


class TestCancel:
    async def test_it_is_taken_back_and_does_not_fire(self, desk: Desk) -> None:
        """§OUT-70"""
        await desk.put()
        scene = desk.scene
        await cancel_schedule(scene.store, scene.tenant_id, "report", "enough", context=scene.context())
        assert (await desk.row()).status == "CANCELLED"
        await desk.scheduler().run_once()
        assert await prove(scene) == 0
        with pytest.raises(CommandRefused):
            await cancel_schedule(scene.store, scene.tenant_id, "report", "", context=scene.context())

    async def test_one_that_is_fired_meanwhile_is_taken_back_all_the_same(self, desk: Desk) -> None:
        class Fired(MemoryStore):
            async def commit(self, commit: Commit) -> Any:
                await desk.scheduler().run_once()
                return await super().commit(commit)

        await desk.put(datetime.fromisoformat("2024-03-01T00:00Z"), cron="0 * * * *")
        desk.clock.set(datetime.fromisoformat("2024-03-01T00:00Z"))
        scene = desk.scene
        store = Fired(desk.data, clock=desk.clock)
        await cancel_schedule(store, scene.tenant_id, "report", "", context=scene.context())
        row = await desk.row()
        assert (row.status, row.fired) == ("CANCELLED", 1)
        assert await prove(scene) == 1

    async def test_a_long_history_is_not_read(self, desk: Desk) -> None:
        class Read(MemoryStore):
            events = 0

            async def load(self, *given: Any, **named: Any) -> Any:
                stream = await super().load(*given, **named)
                Read.events += len(stream.events) if stream else 0
                return stream

        one = await desk.put(cron="* * * * *")
        for _ in range(20):
            desk.clock.advance(60)
            await desk.scheduler().run_once()
        scene = desk.scene
        store = Read(desk.data, clock=desk.clock)
        await cancel_schedule(store, scene.tenant_id, "report", "", context=scene.context())
        assert (await desk.row()).status == "CANCELLED"
        assert Read.events == 0
        *_, last, cancelled = desk.data.streams[one.id].events
        assert cancelled.causation_id == last.id
        assert await prove(scene) == 20

    async def test_one_that_is_not_there_is_not_found(self, desk: Desk) -> None:
        scene = desk.scene
        with pytest.raises(NotFound, match="There is no schedule 'x'"):
            await cancel_schedule(scene.store, scene.tenant_id, "x", "", context=scene.context())
