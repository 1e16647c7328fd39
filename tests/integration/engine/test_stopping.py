"""Workers that leave: what may finish, what is given back, and what never begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runstone as rs
from runstone.testing.clock import VirtualClock
from tests.integration.engine.lab import (
    NOW,
    SHORT_LEASE,
    Heartbeats,
    SlowReads,
    leased,
    process,
    until,
    within,
)


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
        await until(lambda: leased(app))
        quick, slow = await app.start(finishes), await app.start(goes_on)
        await until(lambda: here.worker.holds(slow.id) and here.worker.holds(quick.id))
        draining = asyncio.ensure_future(here.worker.drain(rs.seconds(3)))
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


async def test_a_worker_that_drains_keeps_its_lease(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the test moves: a machine that stalls ends no lease."""
    app = rs.App("desk")
    clock = VirtualClock()
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

    async with process(app, path, lease=SHORT_LEASE, clock=clock) as leaving:
        handle_ = await app.start(handle)
        await until(lambda: bool(calls))
        draining = asyncio.ensure_future(leaving.worker.drain(rs.minutes(5)))
        heartbeats = Heartbeats(leaving, monkeypatch)
        async with process(app, path, clock=clock) as other:
            for _ in range(4):
                await heartbeats.another()
                clock.advance(SHORT_LEASE * 0.75)
            gate.set()
            await within(draining)
            assert await within(other.handle(handle_).result()) == 1
    assert calls == [1]


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


async def test_apps_stop_at_once_when_they_are_told_to(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> None:
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    async with app.running(path, grace=NOW):
        await app.start(handle)
        began = loop.time()
    assert loop.time() - began < 9, "whoever says nothing of it has ten seconds"
