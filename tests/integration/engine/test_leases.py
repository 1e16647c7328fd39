"""Whose a run is: workers that die, that lose their runs, and that give them back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

import runstone as rs
from runstone.errors import StoreBusy
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import VirtualClock
from tests.integration.engine.lab import (
    SHORT_LEASE,
    Process,
    SlowReads,
    data,
    leased,
    log,
    process,
    suspended,
    types,
    until,
    within,
)


async def busy(*_: Any, **__: Any) -> Any:
    raise StoreBusy


class Gated:
    """An app whose handler tells that it was begun, and waits at a gate."""

    def __init__(self) -> None:
        self.app = rs.App("desk")
        self.entered: list[str] = []
        self.gate = asyncio.Event()

        @self.app.on()
        async def handle(run: rs.Run) -> str:
            self.entered.append(run.id)
            await self.gate.wait()
            return "done"

        self._handle = handle

    async def start(self, path: str, **more: Any) -> rs.Handle[str]:
        async with process(self.app, path, worker=False, **more):
            return await self.app.start(self._handle)

    async def is_left_to(self, other: Process, late: Process, started: rs.Handle[str]) -> None:
        """The late reading begins nothing, and whose the run is now ends it."""
        await until(lambda: not late.worker.holds(started.id), "the late reading being given up")
        assert self.entered == [started.id]
        self.gate.set()
        assert await within(other.handle(started).result()) == "done"


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

    async with process(app, path, lease=rs.seconds(1)) as dead:
        handle_ = await app.start(handle)
        await until(lambda: bool(calls))
        await dead.crash(lease_over=False)
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
    clock = VirtualClock()
    entered, stopped = asyncio.Event(), asyncio.Event()

    @app.tool
    async def stuck() -> None:
        entered.set()
        await asyncio.Event().wait()

    @app.on()
    async def handle(run: rs.Run) -> None:
        try:
            await run.call(stuck)
        finally:
            stopped.set()

    async with process(app, path, lease=SHORT_LEASE, clock=clock) as here:
        handle_ = await app.start(handle)
        await within(entered.wait())

        monkeypatch.setattr(here.runtime.store, "heartbeat", busy)
        monkeypatch.setattr(here.runtime.store, "claim", busy)
        await until(lambda: "cannot extend the lease" in caplog.text)
        assert not stopped.is_set(), "its lease is not over yet"
        clock.advance(SHORT_LEASE)
        await within(stopped.wait())
        assert not await data(handle_, "RUN_FAILED")


async def test_a_run_whose_lease_ends_while_it_is_loaded_is_not_begun(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, clock = Gated(), VirtualClock()
    app, entered = desk.app, desk.entered
    desk.gate.set()
    started = await desk.start(path, clock=clock)
    slow = SlowReads(monkeypatch)
    async with process(app, path, lease=SHORT_LEASE, clock=clock) as here:
        await within(slow.read.wait())
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(here.runtime.store, "heartbeat", busy)
            broken.setattr(here.runtime.store, "claim", busy)
            clock.advance(SHORT_LEASE)
            slow.gate.set()
            await until(lambda: not here.worker.holds(started.id), "the run being given up")
            assert entered == []
        assert await within(here.handle(started).result()) == "done"


async def test_nor_is_it_when_the_worker_has_its_next_lease_by_then(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, clock = Gated(), VirtualClock()
    app, entered = desk.app, desk.entered
    started = await desk.start(path, clock=clock)
    slow = SlowReads(monkeypatch)
    async with process(app, path, lease=SHORT_LEASE, clock=clock) as here:
        await within(slow.read.wait())
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(here.runtime.store, "heartbeat", busy)
            broken.setattr(here.runtime.store, "claim", busy)
            clock.advance(SHORT_LEASE)
            await until(lambda: not leased(app), "the worker noticing that its lease is over")
            async with process(app, path, clock=clock) as other:
                await until(lambda: entered == [started.id], "the other one beginning")
                app.attach(here.runtime)
                broken.undo()
                await until(lambda: leased(app), "the next lease")
                slow.gate.set()
                await desk.is_left_to(other, here, started)


async def test_nor_when_it_gets_its_next_lease_without_noticing_that_one_was_over(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heart beats once in twenty minutes here: the claim is the first to tell the time."""
    desk, clock, claimed = Gated(), VirtualClock(), asyncio.Event()
    app, entered = desk.app, desk.entered
    started = await desk.start(path, clock=clock)
    slow = SlowReads(monkeypatch)
    async with process(app, path, lease=rs.hours(1), clock=clock) as here:
        await within(slow.read.wait())
        real = here.runtime.store.claim

        async def claim(*arguments: Any, **more: Any) -> Any:
            claims = await real(*arguments, **more)
            asyncio.get_running_loop().call_soon(claimed.set)
            return claims

        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(here.runtime.store, "claim", busy)
            clock.advance(rs.hours(1))
            async with process(app, path, clock=clock) as other:
                await until(lambda: entered == [started.id], "the other one beginning")
                broken.setattr(here.runtime.store, "claim", claim)
                await within(claimed.wait())
                slow.gate.set()
                await desk.is_left_to(other, here, started)


async def test_nor_is_one_that_somebody_else_has_claimed_by_then(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, asked, late = Gated(), asyncio.Event(), asyncio.Event()
    app, entered = desk.app, desk.entered
    started = await desk.start(path)
    real = SqliteStore.load

    async def load(store: SqliteStore, *arguments: Any, **more: Any) -> Any:
        if not asked.is_set():
            asked.set()
            await late.wait()
        return await real(store, *arguments, **more)

    monkeypatch.setattr(SqliteStore, "load", load)
    async with process(app, path, lease=rs.hours(1), concurrency=1) as here:
        await within(asked.wait())
        assert await here.runtime.store.release(here.worker.id) == 1
        async with process(app, path) as other:
            await until(lambda: entered == [started.id], "the other one beginning")
            late.set()
            await desk.is_left_to(other, here, started)


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


async def test_strays_are_given_back(path: str) -> None:
    """A run that is in a worker's name without its knowing is free again after two heartbeats."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        return "done"

    async with process(app, path, lease=rs.seconds(0.3)) as here:
        await until(lambda: leased(app))
        async with process(app, path, worker=False) as gateway:
            handle_ = await app.start(handle)
            await gateway.runtime.store.claim(
                here.worker.id, handlers=["handle"], code_rank="", limit=1, lease=rs.seconds(9)
            )
            assert await within(gateway.handle(handle_).result()) == "done"


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
