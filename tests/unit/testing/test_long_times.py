"""Years in the simulator: what is due happens at its own time, and the time between costs nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import runstone as rs
from runstone.core.commit import StreamWriter
from runstone.core.events import Event
from runstone.core.fold import EntityFold
from runstone.core.payloads import ErrorInfo
from runstone.engine.tasks import HandlerTasks
from runstone.engine.worker import Worker
from runstone.outbox.executors.entities import EntityUpdates
from runstone.outbox.recorder import Recorder
from runstone.ports.executor import EffectCall, Failed, Outcome
from runstone.testing import Simulator, virtual_time
from runstone.testing.memory import MemoryStore

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

happened: list[tuple[str, timedelta]] = []


def build(now: Callable[[], Any]) -> rs.App:
    app = rs.App("desk", version="1")

    def note(name: str) -> None:
        happened.append((name, now()))

    @app.tool
    def noted(name: str) -> None:
        note(name)

    @app.tool(retry=rs.Retry(max_attempts=3))
    def flaky(name: str) -> None:
        note(name)
        if sum(name == other for other, _ in happened) < 3:
            raise rs.RetryableError("not yet", retry_after=HOUR * 30)

    @app.on()
    async def sleep(run: rs.Run, hours: float) -> float:
        await run.sleep(rs.hours(hours))
        await run.call(noted, f"slept {hours}")
        return hours

    @app.on(key=lambda name: "desk", concurrency=1)
    async def take_turns(run: rs.Run, name: str) -> None:
        await run.sleep(rs.days(10))
        await run.call(noted, name)

    @app.tool
    async def work(hours: float) -> None:
        await asyncio.sleep(hours * 3600)

    @app.on()
    async def toil(run: rs.Run, hours: float) -> None:
        await run.call(work, hours)

    @app.on()
    async def wait(run: rs.Run, hours: float) -> None:
        try:
            await run.wait("answer", timeout=rs.hours(hours))
        except rs.WaitTimeout:
            await run.call(noted, f"waited {hours}")

    @app.on()
    async def retry(run: rs.Run, name: str) -> None:
        await run.call(flaky, name)

    @app.on()
    async def change(run: rs.Run, name: str) -> None:
        await run.effect(
            rs.SorUpdate(entity_type="CASE", entity_id=name, change={"a": 1}, evidence_pack={"b": 2}),
            wait=True,
        )
        await run.call(noted, f"changed {name}")

    @app.on()
    async def plan(run: rs.Run, cron: str) -> None:
        await run.effect(rs.ScheduleTask(name=cron, task="tick", cron=cron), wait=True)

    @app.on(rs.ScheduledTask)
    async def tick(run: rs.Run, task: rs.ScheduledTask) -> None:
        note("tick")

    return app


class Story(Simulator):
    """A simulator on the app above, that counts from its own beginning."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(build(lambda: self.clock.now() - self._begins), seed=seed)

    async def __aenter__(self) -> Story:
        await super().__aenter__()
        return self

    async def begin(self, handler: str, value: Any) -> rs.Handle[Any]:
        return await self.start(self.app.handlers[handler], value)

    def events(self, event_type: str) -> list[tuple[Event, timedelta]]:
        log = (item.event for item in self._data.log)
        return [(event, event.occurred_at - self._begins) for event in log if event.event_type == event_type]


@pytest.fixture(autouse=True)
def fresh() -> None:
    happened.clear()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often somebody looked for something to do, or kept a lease."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        method = getattr(MemoryStore, name)

        async def counting(self: MemoryStore, *args: Any, **named: Any) -> Any:
            counted[name] += 1
            return await method(self, *args, **named)

        monkeypatch.setattr(MemoryStore, name, counting)

    for name in ("claim", "claim_effects", "due_schedules", "heartbeat", "extend_effects"):
        count(name)
    return counted


@virtual_time
async def test_nobody_looks_while_nothing_is_due(looks: Counter[str]) -> None:
    async with Story() as sim:
        await sim.begin("sleep", 24 * 500)
        await sim.begin("wait", 24 * 600)
        looks.clear()
        await sim.advance(days=300)
        assert not looks
        await sim.advance(days=301)
        assert happened == [("slept 12000.0", DAY * 500), ("waited 14400.0", DAY * 600)]
    assert looks.total() < 20, "as many as there were things to do, and a heartbeat every year"


@virtual_time
async def test_looks_are_bounded_by_what_is_due(looks: Counter[str]) -> None:
    async with Story() as sim:
        await sim.begin("plan", "0 9 * * *")
        looks.clear()
        await sim.advance(days=50)
    assert len(happened) == 50
    assert looks["due_schedules"] <= 50 + 5
    assert looks["claim"] <= 3 * 50 + 5
    assert looks["claim_effects"] <= 5


@virtual_time
async def test_everything_happens_at_its_own_time_and_in_order() -> None:
    async with Story() as sim:
        for hours in (1000.5, 1, 24 * 7):
            await sim.begin("sleep", hours)
        for hours in (999.25, 30):
            await sim.begin("wait", hours)
        await sim.begin("plan", "59 23 7 3 *")
        await sim.begin("retry", "flaky")
        await sim.advance(days=60)
    at = dict(happened)
    assert [span for _, span in happened] == sorted(span for _, span in happened)
    assert at["slept 1.0"] == HOUR
    assert at["waited 30.0"] == HOUR * 30
    assert at["slept 168.0"] == DAY * 7
    assert at["waited 999.25"] == HOUR * 999.25
    assert at["slept 1000.5"] == HOUR * 1000.5
    assert at["tick"] == DAY * 7 - timedelta(minutes=1) + timedelta(microseconds=1)
    assert [span for name, span in happened if name == "flaky"] == [HOUR * 0, HOUR * 30, HOUR * 60]


async def story(seed: int, steps: list[timedelta]) -> list[Event]:
    happened.clear()
    async with Story(seed) as sim:
        await sim.begin("plan", "*/30 * * * *")
        for number in range(6):
            await sim.begin("sleep", 20.0)
            await sim.begin("retry", f"flaky {number}")
            await sim.begin("change", f"{number}")
        for step in steps:
            await sim.advance(seconds=step.total_seconds())
        return [item.event for item in sim._data.log]


def test_however_time_is_cut_the_same_happens() -> None:
    whole = virtual_time(story)(1, [DAY * 3])
    assert virtual_time(story)(1, [DAY * 3]) == whole
    assert virtual_time(story)(1, [HOUR] * 24 * 3) == whole
    assert virtual_time(story)(2, [DAY * 3]) != whole
    assert len(whole) > 1000


@virtual_time
async def test_many_sleep_and_all_wake_at_once() -> None:
    """More than a worker takes at a time."""
    async with Story() as sim:
        handles = [await sim.begin("sleep", 24 * 7) for _ in range(300)]
        await sim.advance(days=7)
        assert {span for _, span in happened} == {DAY * 7}
        assert [await handle.result() for handle in handles] == [168.0] * 300


@virtual_time
async def test_who_stands_in_line_goes_on_when_there_is_room() -> None:
    async with Story() as sim:
        handles = []
        for name in "abcd":  # those that are created at once stand in any order
            handles.append(await sim.begin("take_turns", name))
            await sim.advance(hours=1)
        await sim.advance(days=12, hours=-4)
        await handles[1].cancel()
        await sim.advance(days=400)
    assert happened == [("a", DAY * 10), ("c", DAY * 22), ("d", DAY * 32)]


@virtual_time
async def test_a_place_in_line_is_free_when_a_paused_run_is_cancelled() -> None:
    async with Story() as sim:
        first = await sim.begin("take_turns", "a")
        await sim.advance(hours=1)
        await sim.begin("take_turns", "b")
        await first.pause()
        await sim.advance(days=100)
        await first.cancel()
        await sim.advance(days=100)
    assert happened == [("b", DAY * 110 + HOUR)]


@virtual_time
async def test_who_waits_for_a_run_that_sleeps_does_not_give_up() -> None:
    async with Story() as sim:
        handle = await sim.begin("sleep", 24 * 1000)
        assert await handle.result() == 24 * 1000
        answered = await sim.begin("wait", 24 * 1000)
        await answered.result()
        assert sim.clock.now() - sim._begins == DAY * 2000


def fail_once(monkeypatch: pytest.MonkeyPatch, how: Callable[[], Outcome]) -> None:
    perform = EntityUpdates.perform
    calls: list[str] = []

    def failing(
        self: EntityUpdates, call: EffectCall, stream: StreamWriter[EntityFold], cause: str
    ) -> Outcome:
        calls.append(call.effect_id)
        return how() if len(calls) == 1 else perform(self, call, stream, cause)

    monkeypatch.setattr(EntityUpdates, "perform", failing)


@virtual_time
async def test_an_effect_is_tried_again_when_its_retry_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = ErrorInfo(category="EXTERNAL", code="BUSY", message="Not now", retryable=True)
    fail_once(monkeypatch, lambda: Failed(busy, retry_after=DAY * 3))
    async with Story() as sim:
        await sim.begin("change", "x")
        assert [effect.status for effect in sim.effects] == ["FAILED"]
        await sim.advance(days=100)
    ((name, span),) = happened
    assert name == "changed x"
    assert DAY * 3 <= span <= DAY * 3 + HOUR


@virtual_time
async def test_an_effect_that_was_put_back_rests_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    perform, failures = Recorder.perform, [KeyError("broken by design")]

    async def perform_later(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await perform(*args)

    monkeypatch.setattr(Recorder, "perform", perform_later)
    async with Story() as sim:
        await sim.begin("change", "x")
        assert happened == []
        await sim.advance(days=1)
    assert happened == [("changed x", timedelta(seconds=2))]


@virtual_time
async def test_what_a_dead_dispatcher_had_is_done_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Story() as sim:

        def killed() -> Outcome:
            sim._node.kill()
            raise KeyError("nobody hears of it")

        fail_once(monkeypatch, killed)
        await sim.begin("change", "x")
        await sim.crash(down=HOUR)
        assert happened == [("changed x", HOUR)]


@virtual_time
async def test_a_run_that_could_not_be_read_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    load, failures = Worker._load, [KeyError("broken by design")]

    async def load_later(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await load(*args)

    async with Story() as sim:
        await sim.begin("sleep", 24)
        monkeypatch.setattr(Worker, "_load", load_later)
        await sim.advance(days=30)
    ((_, span),) = happened
    assert DAY < span < DAY + timedelta(minutes=1)


@virtual_time
async def test_what_was_given_back_is_due_again_when_the_clock_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken by a clock that has been set back since: nobody can take it before the same time."""
    load, failures = Worker._load, [KeyError("broken by design")]

    async def load_later(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await load(*args)

    async with Story() as sim:
        await sim.begin("sleep", 1)
        monkeypatch.setattr(Worker, "_load", load_later)
        await sim.advance(hours=1, seconds=0.1)
        assert not failures
        sim.clock.jump(-DAY)
        await sim.advance(days=2)
    assert happened == [("slept 1.0", HOUR)]


@virtual_time
async def test_what_a_dead_worker_had_is_due_again_when_the_clock_is() -> None:
    async with Story() as sim:
        handle = await sim.begin("toil", 1)
        sim.clock.jump(-DAY)
        await sim.crash()
        await sim.advance(days=1, hours=2)
        assert (await handle.status()).status == "COMPLETED"


@virtual_time
async def test_a_schedule_that_could_not_be_fired_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    create, failures = HandlerTasks.create, [KeyError("a"), KeyError("b")]

    def create_later(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return create(*args)

    async with Story() as sim:
        await sim.begin("plan", "0 9 1 1 *")
        monkeypatch.setattr(HandlerTasks, "create", create_later)
        await sim.advance(days=400)
        ((fired, _),) = sim.events("TASK_FIRED")
    assert (fired.occurred_at.hour, fired.occurred_at.minute, fired.occurred_at.second) == (9, 0, 3)


@virtual_time
async def test_clocks_that_are_moved_take_what_is_due_along() -> None:
    async with Story() as sim:
        handle = await sim.begin("sleep", 24 * 7)
        await sim.begin("plan", "0 0 2 3 *")
        sim.clock.jump(DAY * 8)
        await sim.settle()
        assert await handle.result() == 168.0
        assert sorted(name for name, _ in happened) == ["slept 168.0", "tick"]
