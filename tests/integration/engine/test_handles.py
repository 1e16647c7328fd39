"""Runs seen from outside: following a log, waiting no longer, finding a run again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, suspended, types, until, within


async def test_following_a_log_shows_it_to_its_end(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.wait("go")
        return "done"

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        seen: list[str] = []

        async def follow() -> None:
            async for event in handle_.events(follow=True):
                seen.append(event.event_type)

        following = asyncio.ensure_future(follow())
        await until(lambda: "RUN_SUSPENDED" in seen)
        await handle_.answer("go")
        await within(following)
        assert seen == await types(handle_)
        assert seen[-1] == "RUN_COMPLETED"


async def test_a_caller_may_give_up_waiting_and_the_run_goes_on(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        with pytest.raises(TimeoutError, match="goes on"):
            await handle_.result(timeout=rs.seconds(0.02))
        await suspended(app, handle_)
        await handle_.pause("LUNCH")
        paused = await handle_.paused()
        assert paused is not None
        assert (paused.reason, paused.details) == ("LUNCH", None)
        with pytest.raises(TimeoutError):  # a paused run is waited for like any other
            await handle_.result(timeout=rs.seconds(0.02))
        with pytest.raises(rs.RunstoneError, match=r"say rs\.seconds"):
            await handle_.result(timeout=5)  # type: ignore[arg-type]
        await handle_.resume()
        await handle_.answer("x", 1)
        assert await within(handle_.result(timeout=rs.minutes(1))) == 1
        assert await handle_.paused() is None


async def test_a_run_is_found_by_its_key(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, number: int) -> int:
        return number

    @app.on()
    async def other(run: rs.Run) -> None: ...

    async with app.running(path, poll=FAST):
        started = await app.start(handle, 42, key="order-42")
        found = await app.find(handle, "order-42")
        assert found is not None
        assert found.id == started.id
        assert await within(found.result()) == 42
        assert await app.find(handle, "order-43") is None
        with pytest.raises(rs.SignalConflict, match="a run of 'handle', not 'other'"):
            await app.find(other, "order-42")
