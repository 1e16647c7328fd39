"""What others write to a run reaches whoever works on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runstone as rs
from tests.integration.engine.lab import SlowReads, process, status, suspended, types, until, within


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
            while True:
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
