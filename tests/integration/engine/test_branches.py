"""Branches: each has a scope of its own, and nothing durable happens outside of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runstone as rs
from tests.integration.engine.lab import data, log, status, suspended, types, until, within


async def test_gather_gives_results_in_the_order_of_its_branches(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        async def branch(number: int) -> int:
            await run.sleep(rs.seconds(0.01 * (3 - number)))
            return await run.decide("number", number)

        async def nested(number: int) -> list[int]:
            return list(await run.gather(branch(number), branch(number + 1)))

        flat = await run.gather(*(branch(number) for number in range(3)))
        deep = await run.gather(nested(0), nested(1))
        assert await run.gather() == ()
        return [list(flat), list(deep)]

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == [[0, 1, 2], [[0, 1], [1, 2]]]
        keys = {event.step_key for event in await log(handle_)}
    assert {"gather#1.0/number#1", "gather#1.2/sleep#1", "gather#2.1/gather#1.0/number#1"} <= keys


async def test_a_failing_branch_ends_the_others(path: str) -> None:
    app = rs.App("desk")
    notes: list[str] = []

    @app.tool
    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            notes.append("the step stopped")

    @app.on()
    async def handle(run: rs.Run) -> str:
        async def patient() -> None:
            try:
                await run.call(long)
            finally:
                notes.append("the branch stopped")

        async def failing() -> None:
            await run.decide("x", 1)
            raise ValueError("broken")

        try:
            await run.gather(patient(), failing())
        except ValueError as error:
            return str(error)
        return "went on"

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "broken"
        assert sorted(notes) == ["the branch stopped", "the step stopped"]
        (failed,) = await data(handle_, "STEP_FAILED")
        assert failed["error"]["category"] == "CANCELLED"
        await status(handle_, "COMPLETED")


async def test_the_first_to_end_decides_and_losers_clean_up(path: str) -> None:
    app = rs.App("desk")
    notes: list[str] = []

    @app.tool
    async def slow() -> str:
        await asyncio.Event().wait()
        return "slow"

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        async def loser() -> str:
            try:
                return await run.call(slow)
            except asyncio.CancelledError:
                notes.append("cancelled")
                await run.decide("too late", 1)
                raise
            finally:
                notes.append("cleaned up")

        async def deep_loser() -> str:
            (found,) = await run.gather(loser())
            return found

        async def waiter() -> str:
            await run.wait("never", timeout=rs.days(1))
            return "waiter"

        async def winner() -> str:
            await run.sleep(rs.seconds(0.02))
            return "winner"

        first = await run.first(loser(), deep_loser(), waiter(), winner())
        return [first, await run.decide("after", 2)]

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == ["winner", 2]
        assert notes == ["cancelled", "cleaned up"] * 2
        events = await log(handle_)
        ended = {event.step_key: event.event_type for event in events if event.event_type.startswith("STEP_")}
    assert ended["first#1.0/slow#1"] == "STEP_FAILED"
    assert ended["first#1.2/never#1"] == "STEP_FAILED"
    assert ended["first#1.3/sleep#1"] == "STEP_COMPLETED"
    assert ended["after#1"] == "STEP_COMPLETED"
    assert not any("too late" in (event.step_key or "") for event in events)


async def test_losers_end_before_the_run_goes_on_and_before_it_ends(path: str) -> None:
    """A loser whose start was never alone in the log ends too, and does not stay open until the end."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        async def waits() -> None:
            await run.wait("never")

        async def decides() -> None:
            await run.decide("quick", 1)

        await run.first(waits(), decides())
        await run.wait("go")
        return "went"

    async with app.running(path, poll=0.02):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        snapshot = await handle_.snapshot()
        assert snapshot is not None
        assert {step.step_id: step.status for step in snapshot.steps} == {
            "first#1.0/never#1": "FAILED",
            "first#1.1/quick#1": "SUCCESS",
            "go#1": "RUNNING",
        }
        await handle_.answer("go")
        assert await within(handle_.result()) == "went"


async def test_an_error_can_be_the_first(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        async def failing() -> str:
            await run.decide("x", 1)
            raise KeyError("gone")

        async def waiting() -> str:
            await run.wait("never")
            return ""

        try:
            return await run.first(waiting(), failing())
        except KeyError:
            return "raised"

    async with app.running(path):
        assert await within((await app.start(handle)).result()) == "raised"


async def test_a_branch_that_cancels_itself_is_an_error_and_not_a_gap(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def cancels() -> None:
        raise asyncio.CancelledError

    @app.on()
    async def by_branch(run: rs.Run) -> str:
        async def branch() -> int:
            raise asyncio.CancelledError

        async def other() -> int:
            return await run.decide("x", 1)

        await run.gather(branch(), other())
        return "went on"

    @app.on()
    async def by_tool(run: rs.Run) -> str:
        await run.call(cancels)
        return "went on"

    async with app.running(path):
        for handler, code in ((by_branch, "CancelledError"), (by_tool, "CancelledError")):
            handle_ = await app.start(handler)
            await status(handle_, "FAILED")
            (failed,) = await data(handle_, "RUN_FAILED")
            assert failed["exit_reason"] == code


@pytest.mark.parametrize("way", ["gather", "create_task"])
async def test_durable_calls_from_other_tasks_are_refused_at_once(path: str, way: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[str]:
        refused: list[str] = []

        async def branch(number: int) -> None:
            for verb in (lambda: run.now(), lambda: run.random(), lambda: run.set("x", 1)):
                try:
                    verb()
                except rs.UseRunGather:
                    refused.append("verb")
            try:
                await run.decide("x", number)
            except rs.UseRunGather:
                refused.append("step")

        if way == "gather":
            await asyncio.gather(branch(1))
        else:
            await asyncio.create_task(branch(1))
        return refused

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == ["verb", "verb", "verb", "step"]
        assert "STEP_STARTED" not in await types(handle_)


async def test_time_does_not_go_back_after_branches(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> bool:
        async def branch(seconds: float) -> Any:
            await run.sleep(rs.seconds(seconds))
            return run.now()

        times = await run.gather(branch(0.03), branch(0.01))
        return bool(run.now() >= max(times))

    async with app.running(path):
        assert await within((await app.start(handle)).result()) is True


async def test_a_run_whose_loser_is_slow_to_go_still_leaves_memory(path: str) -> None:
    app = rs.App("desk")
    go = asyncio.Event()
    tried: list[int] = []

    @app.tool
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tried.append(1)
            await go.wait()

    @app.on()
    async def handle(run: rs.Run) -> str:
        async def loser() -> None:
            await run.call(stubborn)

        async def winner() -> None:
            await run.sleep(rs.seconds(0.02))

        await run.first(loser(), winner())
        await run.wait("answer")
        return "answered"

    async with app.running(path, poll=0.02):
        handle_ = await app.start(handle)
        await until(lambda: bool(tried))
        go.set()
        await suspended(app, handle_)
        await handle_.answer("answer")
        assert await within(handle_.result()) == "answered"
