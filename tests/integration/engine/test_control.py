"""Control signals: they land beside a running handler, and reach it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, data, has, log, status, suspended, until, within


async def test_a_run_that_needs_approval_starts_when_it_has_it(path: str) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.on(approval=True)
    async def handle(run: rs.Run) -> str:
        calls.append(1)
        return "done"

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        neighbour = await app.start(handle)
        assert (await handle_.status()).status == "PENDING"
        await neighbour.approve(sender="ada")
        assert await within(neighbour.result()) == "done"
        assert (await handle_.status()).status == "PENDING"
        assert len(calls) == 1
        (approved,) = await data(neighbour, "RUN_APPROVED")
        assert approved["approved_by"] == "ada"
        with pytest.raises(rs.ControlRefused, match=r"waits for no approval|has ended"):
            await neighbour.approve()
        await handle_.cancel("nobody approved")
        with pytest.raises(rs.RunCancelled, match="nobody approved"):
            await within(handle_.result())


async def test_a_pause_lets_the_step_under_way_finish_and_resume_goes_on(path: str) -> None:
    app = rs.App("desk")
    calls: Counter[str] = Counter()
    gate = asyncio.Event()

    @app.tool
    async def gated() -> str:
        calls["gated"] += 1
        await gate.wait()
        return "through"

    @app.tool
    async def later() -> str:
        calls["later"] += 1
        return "later"

    @app.on()
    async def handle(run: rs.Run) -> list[str]:
        return [await run.call(gated), await run.call(later)]

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await until(lambda: has(handle_, "STEP_STARTED", "gated#1"))
        await handle_.pause("lunch", sender="ada")
        assert (await handle_.status()).status == "PAUSED"
        gate.set()
        await until(lambda: has(handle_, "STEP_COMPLETED", "gated#1"), "the outcome of the step under way")
        worker = app.runtime.worker
        assert worker is not None
        await until(lambda: not worker.holds(handle_.id), "leaving memory")
        assert calls == {"gated": 1}
        with pytest.raises(rs.ControlRefused, match="PAUSED, not running"):
            await handle_.pause()
        await handle_.resume()
        assert await within(handle_.result()) == ["through", "later"]
        with pytest.raises(rs.ControlRefused):
            await handle_.resume()
    assert calls == {"gated": 1, "later": 1}


async def test_a_pause_that_meets_a_step_whose_start_is_not_written_loses_nothing_that_matters(
    path: str,
) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()
    calls: list[int] = []

    @app.tool
    async def gated() -> int:
        calls.append(1)
        await gate.wait()
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> int:
        await run.decide("started", 1)
        run.set("note", 1)
        return await run.call(gated)

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await until(lambda: bool(calls))
        await handle_.pause()
        gate.set()
        worker = app.runtime.worker
        assert worker is not None
        await until(lambda: not worker.holds(handle_.id), "leaving memory")
        assert (await handle_.status()).status == "PAUSED"
        await handle_.resume()
        assert await within(handle_.result()) in (1, 2)
        assert [change["value"] for change in await data(handle_, "RUN_VARIABLE_SET")] == [1]


@pytest.mark.parametrize("place", ["step", "thread", "backoff", "sleep", "wait", "plain await", "branch"])
async def test_a_cancel_reaches_the_handler_wherever_it_is(path: str, place: str) -> None:
    app = rs.App("desk")
    notes: list[str] = []
    let_go = threading.Event()

    @app.tool
    async def stuck() -> None:
        try:
            notes.append("there")
            await asyncio.Event().wait()
        finally:
            notes.append("the step cleaned up")

    @app.tool
    def in_thread() -> None:
        notes.append("there")
        let_go.wait(60)

    @app.tool(retry=rs.Retry(max_attempts=9))
    async def failing() -> None:
        notes.append("there")
        raise rs.RetryableError("later", retry_after=rs.seconds(0.9))

    @app.on()
    async def handle(run: rs.Run) -> None:
        async def branch() -> None:
            await run.call(stuck)

        try:
            match place:
                case "step":
                    await run.call(stuck)
                case "thread":
                    await run.call(in_thread)
                case "backoff":
                    await run.call(failing)
                case "sleep":
                    notes.append("there")
                    await run.sleep(rs.seconds(0.9))
                case "wait":
                    notes.append("there")
                    await run.wait("x", timeout=rs.seconds(0.9))
                case "branch":
                    await run.gather(branch(), branch())
                case _:
                    notes.append("there")
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            notes.append("cancelled")
            raise
        finally:
            notes.append("cleaned up")
            await run.decide("too late", 1)

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await until(lambda: "there" in notes)
        await handle_.cancel("changed my mind", sender="ada")
        with pytest.raises(rs.RunCancelled, match="changed my mind"):
            await within(handle_.result())
        await until(lambda: "cleaned up" in notes, "cleaning up")
        let_go.set()
        assert "cancelled" in notes
        if place in ("step", "branch"):
            assert "the step cleaned up" in notes
        events = await log(handle_)
        assert events[-1].event_type == "RUN_CANCELLED"
        assert not any("too late" in (event.step_key or "") for event in events)


async def test_a_suspended_run_is_cancelled_where_it_lies(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.effect(rs.NotifyUser(user_id="u", message="m"))
        await run.wait("x")

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        await handle_.cancel()
        with pytest.raises(rs.RunCancelled):
            await within(handle_.result())
        assert await has(handle_, "EFFECT_CANCELLED")


async def test_a_pause_that_meets_the_handlers_return_is_resumable(path: str) -> None:
    """Whichever comes first, the run ends once, after it was resumed if it was paused."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, number: int) -> int:
        for step in range(number % 4):
            await run.decide("x", step)
        return number

    async with app.running(path, poll=FAST):
        handles = [await app.start(handle, number) for number in range(12)]
        outcomes = await asyncio.gather(*(found.pause() for found in handles), return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, rs.ControlRefused) for outcome in outcomes)
        for found in handles:
            if (await found.status()).status == "PAUSED":
                await found.resume()
        assert [await within(found.result()) for found in handles] == list(range(12))


async def test_two_branches_that_park_are_both_seen_to(path: str) -> None:
    """§ENG-29: the first retry does not hand the other's failure to the handler."""
    app = rs.App("desk")
    repaired: set[str] = set()
    gate = asyncio.Event()

    @app.tool(on_exhausted="park")
    async def fragile(name: str) -> str:
        if name == "slow":
            await gate.wait()
        if name not in repaired:
            raise OSError(f"{name} is broken")
        return name

    @app.on()
    async def handle(run: rs.Run) -> list[str]:
        return list(await run.gather(run.call(fragile, "quick"), run.call(fragile, "slow")))

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await status(handle_, "PAUSED")
        gate.set()
        await until(lambda: has(handle_, "STEP_FAILED", "gather#1.1/fragile#1"))
        paused = await handle_.paused()
        assert paused is not None
        assert (paused.reason, paused.details["step"]) == ("PARKED", "gather#1.0/fragile#1")
        repaired.update({"quick", "slow"})
        await handle_.retry_step("gather#1.0/fragile#1")
        assert (await handle_.status()).status == "PAUSED"
        await handle_.retry_step("gather#1.1/fragile#1")
        assert await within(handle_.result()) == ["quick", "slow"]
        assert await handle_.paused() is None
