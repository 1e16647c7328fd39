"""Workers: what they claim, how much at once, in which order, and what they leave behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

import runstone as rs
from runstone.errors import StoreBusy
from runstone.stores.sqlite import SqliteStore
from tests.integration.engine.lab import (
    FAST,
    NOW,
    data,
    log,
    process,
    status,
    suspended,
    types,
    until,
    within,
)

SHORT_LEASE = rs.seconds(0.2)


async def test_a_worker_claims_only_handlers_that_it_has(path: str) -> None:
    both, one = rs.App("desk"), rs.App("desk")

    async def first(run: rs.Run) -> str:
        return "first"

    async def second(run: rs.Run) -> str:
        return "second"

    handlers = [both.on()(first), both.on()(second)]
    one.on()(first)
    async with both.running(path, worker=False):
        started = [await both.start(handler) for handler in handlers]
        async with process(one, path):
            assert await within(started[0].result()) == "first"
            assert (await started[1].status()).status == "PENDING"
        async with process(both, path):
            both_handles = [await within(handle.result()) for handle in started]
    assert both_handles == ["first", "second"]


async def test_a_worker_claims_only_versions_up_to_its_own(path: str) -> None:
    def version(number: str) -> tuple[rs.App, Any]:
        app = rs.App("desk", version=number)

        @app.on()
        async def handle(run: rs.Run) -> str:
            return number

        return app, handle

    new, new_handler = version("1.10")
    old, old_handler = version("1.9")
    async with new.running(path, worker=False), old.running(path, worker=False):
        newer = await new.start(new_handler, key="new")
        older = await old.start(old_handler, key="old")
        async with process(version("1.9")[0], path):
            assert await within(older.result()) == "1.9"
            assert (await newer.status()).status == "PENDING"
        async with process(version("1.10")[0], path):
            assert await within(newer.result()) == "1.10"
        assert (await newer.status()).orchestrator_version == "1.10"


@pytest.mark.parametrize("direct", [True, False])
async def test_a_worker_takes_no_more_than_it_may(path: str, direct: bool) -> None:
    app = rs.App("desk")
    now, most, done = 0, 0, 0

    @app.tool
    async def busy() -> None:
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        done += 1

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.call(busy)

    async with app.running(path, poll=FAST, concurrency=3):
        if direct:
            await until(lambda: _leased(app))
        handles = await asyncio.gather(*(app.start(handle) for _ in range(20)))
        for found in handles:
            await within(found.result())
    assert (most, done) == (3, 20)


def _leased(app: rs.App) -> bool:
    worker = app.runtime.worker
    assert worker is not None
    with worker.reserve() as place:
        return place


async def test_runs_of_one_lane_take_turns_in_their_order_across_workers(path: str) -> None:
    under_way: Counter[str] = Counter()
    most: Counter[str] = Counter()
    order: dict[str, list[int]] = {"a": [], "b": []}

    def build() -> tuple[rs.App, Any]:
        app = rs.App("desk")

        @app.tool
        async def busy(lane: str, number: int) -> None:
            under_way[lane] += 1
            most[lane] = max(most[lane], under_way[lane])
            order[lane].append(number)
            await asyncio.sleep(0.005)
            under_way[lane] -= 1

        @app.on(key=lambda given: given[0], concurrency=1)
        async def handle(run: rs.Run, given: tuple[str, int]) -> None:
            await run.call(busy, *given)

        return app, handle

    app, handler = build()
    async with process(app, path), process(build()[0], path):
        handles = []
        for number in range(6):
            for lane in "ab":
                handles.append(await app.start(handler, (lane, number)))
        for found in handles:
            await within(found.result())
    assert most == {"a": 1, "b": 1}
    assert order == {"a": list(range(6)), "b": list(range(6))}


async def test_a_lane_is_as_wide_as_its_concurrency(path: str) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()
    entered: list[int] = []
    most = 0
    left = 0

    @app.tool
    async def busy(number: int) -> None:
        nonlocal most, left
        entered.append(number)
        most = max(most, len(entered) - left)
        await gate.wait()
        left += 1

    @app.on(key=lambda number: "all", concurrency=2)
    async def handle(run: rs.Run, number: int) -> int:
        await run.decide("begun", True)
        await run.call(busy, number)
        return number

    async with app.running(path, poll=FAST):
        handles = [await app.start(handle, number) for number in range(5)]
        await until(lambda: len(entered) == 2)
        assert (await handles[2].status()).status == "PENDING"
        gate.set()
        assert [await within(found.result()) for found in handles] == list(range(5))
    assert set(entered[:2]) == {0, 1}
    assert most == 2


async def test_a_run_that_waits_for_approval_does_not_hold_up_its_lane(path: str) -> None:
    """§ENG-45"""
    app = rs.App("desk")

    @app.on(key=lambda number: "all", concurrency=1, approval=True)
    async def handle(run: rs.Run, number: int) -> int:
        return number

    async with app.running(path, poll=FAST):
        waiting, approved = await app.start(handle, 1), await app.start(handle, 2)
        await approved.approve()
        assert await within(approved.result()) == 2
        assert (await waiting.status()).status == "PENDING"
        await waiting.approve()
        assert await within(waiting.result()) == 1


async def test_a_tenant_with_much_to_do_does_not_hold_up_the_others(path: str) -> None:
    app = rs.App("desk")
    small = "018e0000-0000-7000-8000-000000000001"
    order: list[str] = []

    @app.on()
    async def handle(run: rs.Run) -> None:
        order.append(run.tenant_id)
        await run.decide("x", 1)

    async with app.running(path, worker=False):
        big = [await app.start(handle) for _ in range(40)]
        await app.start(handle, tenant_id=small)
        async with process(app, path, concurrency=4) as here:
            await until(lambda: small in order)
            assert order.index(small) < 8
            for found in big:
                await within(here.handle(found).result())
    assert len(order) == 41


async def test_the_runs_of_a_dead_worker_are_claimed_after_its_lease(path: str) -> None:
    app = rs.App("desk")
    calls: list[str] = []
    alive = [False]

    @app.tool
    async def work() -> str:
        calls.append("work")
        if not alive[0]:
            await asyncio.Event().wait()
        return "done"

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.decide("first", 1)
        return await run.call(work)

    async with process(app, path, lease=SHORT_LEASE) as dead:
        handle_ = await app.start(handle)
        await until(lambda: bool(calls))
        await dead.crash()
        alive[0] = True
        async with process(app, path) as survivor:
            assert await within(survivor.handle(handle_).result()) == "done"
            events = await log(survivor.handle(handle_))
    assert calls == ["work", "work"]
    done = [event for event in events if event.event_type == "STEP_COMPLETED"]
    assert [event.engine_attempt for event in done] == [1, 2]


async def test_a_worker_that_lost_its_run_writes_nothing_more(path: str) -> None:
    """Its lease runs out while its handler is busy; the new owner shuts it out."""
    app = rs.App("desk")
    gates = [asyncio.Event(), asyncio.Event()]
    entered: list[int] = []

    @app.tool
    async def work() -> int:
        mine = len(entered)
        entered.append(mine)
        await gates[mine].wait()
        return mine

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(work)

    async with process(app, path, lease=rs.seconds(3600), concurrency=1) as first:
        handle_ = await app.start(handle)
        await until(lambda: len(entered) == 1)
        released = await first.runtime.store.release(first.worker.id)
        assert released == 1
        async with process(app, path) as second:
            await until(lambda: len(entered) == 2)
            gates[0].set()
            await until(lambda: not first.worker.holds(handle_.id), "the loser letting go")
            gates[1].set()
            assert await within(second.handle(handle_).result()) == 1
            assert (await types(second.handle(handle_))).count("STEP_COMPLETED") == 1


async def test_draining_lets_runs_finish_until_the_deadline_and_gives_back_the_rest(path: str) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()
    cleaned: list[str] = []

    @app.tool
    async def short() -> None:
        await gate.wait()

    @app.tool
    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("long")

    @app.on()
    async def finishes(run: rs.Run) -> str:
        await run.call(short)
        await run.decide("more", 1)
        return "finished"

    @app.on()
    async def goes_on(run: rs.Run) -> None:
        await run.call(long)

    async with process(app, path) as here:
        await until(lambda: _leased(app))
        quick, slow = await app.start(finishes), await app.start(goes_on)
        await until(lambda: here.worker.holds(slow.id) and here.worker.holds(quick.id))
        draining = asyncio.ensure_future(here.worker.drain(rs.seconds(0.3)))
        await asyncio.sleep(0)
        gate.set()
        await within(draining)
        assert (await quick.status()).status == "COMPLETED"
        assert (await slow.status()).status in ("PENDING", "RUNNING")
        assert cleaned == ["long"]
        claims = await here.runtime.store.claim(
            "next", handlers=["goes_on"], code_rank="", limit=9, lease=rs.seconds(1)
        )
        assert [(claim.run_id, claim.attempts) for claim in claims] == [(slow.id, 1)]


async def test_a_claim_that_is_on_its_way_when_a_worker_drains_is_given_back(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rs.App("desk")
    entered: list[str] = []

    @app.on()
    async def handle(run: rs.Run) -> None:
        entered.append(run.id)

    async with process(app, path) as here, process(app, path, worker=False):
        store = here.runtime.store
        claim, landed, gate = store.claim, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any, **options: Any) -> Any:
            claims = await claim(*arguments, **options)
            if claims:
                landed.set()
                await gate.wait()
            return claims

        monkeypatch.setattr(store, "claim", slow)
        started = await app.start(handle)
        await within(landed.wait())
        draining = asyncio.ensure_future(here.worker.drain())
        await asyncio.sleep(0.05)
        waited = not draining.done()
        gate.set()
        await within(draining)
        assert waited
        again = await claim("next", handlers=["handle"], code_rank="", limit=9, lease=rs.seconds(1))
        assert [(found.run_id, found.attempts) for found in again] == [(started.id, 1)]
        assert entered == []


async def test_a_worker_that_drains_keeps_its_lease(path: str) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()
    calls: list[int] = []

    @app.tool
    async def work() -> int:
        calls.append(1)
        await gate.wait()
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(work)

    async with process(app, path, lease=SHORT_LEASE) as leaving:
        handle_ = await app.start(handle)
        await until(lambda: bool(calls))
        draining = asyncio.ensure_future(leaving.worker.drain(rs.seconds(5)))
        async with process(app, path) as other:
            began = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() - began > 3 * SHORT_LEASE.total_seconds())
            gate.set()
            await within(draining)
            assert await within(other.handle(handle_).result()) == 1
    assert calls == [1]


async def test_news_from_another_process_reach_a_running_handler(path: str) -> None:
    app = rs.App("desk")
    cancelled = asyncio.Event()
    entered = asyncio.Event()

    @app.tool
    async def stuck() -> None:
        entered.set()
        await asyncio.Event().wait()

    @app.on()
    async def handle(run: rs.Run) -> None:
        try:
            await run.call(stuck)
        finally:
            cancelled.set()

    async with process(app, path, lease=rs.seconds(0.6)) as worker:
        handle_ = await app.start(handle)
        await within(entered.wait())
        async with process(rs.App("elsewhere"), path, worker=False) as elsewhere:
            await elsewhere.handle(handle_).cancel("from afar")
            await within(cancelled.wait())
        await until(lambda: not worker.worker.holds(handle_.id))


async def test_an_answer_from_another_process_wakes_a_run_that_lingers(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        async def short_sleep() -> None:
            for _ in range(200):
                await run.sleep(rs.seconds(0.05))

        async def waits() -> Any:
            return await run.wait("x")

        return await run.first(short_sleep(), waits())

    async with process(app, path, lease=rs.seconds(0.6)):
        handle_ = await app.start(handle)
        await until(lambda: _slept(handle_))
        async with process(rs.App("elsewhere"), path, worker=False) as elsewhere:
            await elsewhere.handle(handle_).answer("x", "from afar")
        assert await within(handle_.result()) == "from afar"


async def _slept(handle: rs.Handle[Any]) -> bool:
    return (await types(handle)).count("STEP_COMPLETED") >= 2


async def test_a_run_that_waits_for_days_is_in_nobodys_memory(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x", timeout=rs.days(2))

    async with process(app, path) as here:
        handles = [await app.start(handle) for _ in range(5)]
        for found in handles:
            await suspended(app, found)
        assert not any(here.worker.holds(found.id) for found in handles)
        assert here.worker.free == 256
        await handles[3].answer("x", 3)
        assert await within(handles[3].result()) == 3


async def test_a_worker_that_cannot_renew_its_lease_stops_in_time(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = rs.App("desk")
    stopped = asyncio.Event()

    @app.tool
    async def stuck() -> None:
        await asyncio.Event().wait()

    @app.on()
    async def handle(run: rs.Run) -> None:
        try:
            await run.call(stuck)
        finally:
            stopped.set()

    async with process(app, path, lease=SHORT_LEASE) as here:
        handle_ = await app.start(handle)
        await until(lambda: here.worker.holds(handle_.id))

        async def busy(*_: Any, **__: Any) -> Any:
            raise StoreBusy

        monkeypatch.setattr(here.runtime.store, "heartbeat", busy)
        monkeypatch.setattr(here.runtime.store, "claim", busy)
        await within(stopped.wait())
        assert not await data(handle_, "RUN_FAILED")
    assert "cannot extend the lease" in caplog.text


async def test_a_run_that_cannot_be_written_is_given_back_and_tried_again(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = rs.App("desk")
    caplog.set_level(logging.CRITICAL, "runstone.worker")

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.decide("x", 1)
        return "done"

    async with process(app, path):
        handle_ = await app.start(handle, key="warm-up")
        await within(handle_.result())
        real, refused = SqliteStore.commit, Counter[str]()

        async def sometimes(store: SqliteStore, commit: Any) -> Any:
            if any(event.event_type == "STEP_STARTED" for event in commit.events) and refused["x"] < 2:
                refused["x"] += 1
                raise StoreBusy
            return await real(store, commit)

        monkeypatch.setattr(SqliteStore, "commit", sometimes)
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "done"
        assert refused["x"] == 2


class SlowReads:
    """Lets what is read from a store arrive late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self.read = asyncio.Event()
        self._late = True
        self._load = SqliteStore.load
        slow = self

        async def load(store: SqliteStore, *arguments: Any, **more: Any) -> Any:
            return await slow.load(store, *arguments, **more)

        monkeypatch.setattr(SqliteStore, "load", load)

    async def load(self, store: SqliteStore, *arguments: Any, **more: Any) -> Any:
        found = await self._load(store, *arguments, **more)
        if self._late:
            self._late = False
            self.read.set()
            await self.gate.wait()
        return found


async def test_news_that_come_while_a_run_is_loaded_are_not_missed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rs.App("desk")
    notes: list[str] = []

    @app.on(concurrency=1)
    async def handle(run: rs.Run) -> None:
        notes.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            notes.append("stopped")

    async with process(app, path, lease=rs.seconds(3600)) as here:
        slow = SlowReads(monkeypatch)
        handle_ = await app.start(handle)
        await within(slow.read.wait())
        await handle_.cancel()
        slow.gate.set()
        await until(lambda: not here.worker.holds(handle_.id), "hearing of the cancellation")
    assert notes in ([], ["began", "stopped"])


async def test_a_worker_that_is_told_to_stop_begins_nothing_that_it_was_loading(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.on(concurrency=1)
    async def handle(run: rs.Run) -> None:
        calls.append(1)
        await asyncio.Event().wait()

    async with process(app, path) as here:
        slow = SlowReads(monkeypatch)
        await app.start(handle)
        await within(slow.read.wait())
        stopping = asyncio.ensure_future(here.worker.abandon())
        await asyncio.sleep(0)
        slow.gate.set()
        await within(stopping)
    assert calls == []


async def test_strays_are_given_back(path: str) -> None:
    """A run that is in a worker's name without its knowing is free again after two heartbeats."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        return "done"

    async with process(app, path, lease=rs.seconds(0.3)) as here:
        await until(lambda: _leased(app))
        async with process(app, path, worker=False) as gateway:
            handle_ = await app.start(handle)
            await gateway.runtime.store.claim(
                here.worker.id, handlers=["handle"], code_rank="", limit=1, lease=rs.seconds(9)
            )
            assert await within(gateway.handle(handle_).result()) == "done"


async def test_pause_and_resume_go_through_the_same_worker(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.wait("x")
        return "done"

    async with process(app, path, lease=rs.seconds(3600)) as here:
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        for _ in range(3):
            await handle_.pause()
            await status(handle_, "PAUSED")
            await handle_.resume()
            await until(lambda: _rests(handle_, here.worker.holds(handle_.id)))
        await handle_.answer("x")
        assert await within(handle_.result()) == "done"


async def _rests(handle: rs.Handle[Any], held: bool) -> bool:
    return not held and (await types(handle))[-1] == "RUN_SUSPENDED"


async def test_a_run_that_only_waits_for_its_effects_is_nobodys(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.effect(rs.NotifyUser(user_id="u", message="m"))
        return "asked"

    async with process(app, path) as here:
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "asked"
        assert (await handle_.status()).status == "RUNNING"
        assert await here.runtime.store.heartbeat(here.worker.id, lease=rs.seconds(9)) == {}


async def test_apps_stop_at_once_when_they_are_told_to(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> None:
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    async with app.running(path, grace=NOW):
        await app.start(handle)
        began = loop.time()
    assert loop.time() - began < 5
