"""What workers claim, how much at once, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, leased, process, until, within


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
    gate = asyncio.Event()
    now, most, done = 0, 0, 0

    @app.tool
    async def busy() -> None:
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await gate.wait()
        await asyncio.sleep(0.005)
        now -= 1
        done += 1

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.call(busy)

    async with app.running(path, poll=FAST, concurrency=3):
        if direct:
            await until(lambda: leased(app))
        handles = await asyncio.gather(*(app.start(handle) for _ in range(20)))
        await until(lambda: now == 3, "as many as it may")
        await asyncio.sleep(5 * FAST)  # it would take more, if it did
        gate.set()
        for found in handles:
            await within(found.result())
    assert (most, done) == (3, 20)


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
