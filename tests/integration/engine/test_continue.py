"""Continuing as new: a run that goes on for ever, generation by generation (§ENG-39 to §ENG-42)."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any

import msgspec
import pytest

import runstone as rs
from runstone.engine import history
from tests.integration.engine.lab import FAST, data, has, log, process, suspended, types, until, within


class Cursor(msgspec.Struct):
    page: int
    seen: int = 0


async def test_each_generation_begins_with_what_the_one_before_carried_over(path: str) -> None:
    app = rs.App("desk")
    pages: list[int] = []
    moments: list[tuple[int, datetime]] = []
    chances: list[float] = []

    @app.tool
    async def read(page: int) -> int:
        pages.append(page)
        return page * 10

    @app.on()
    async def crawl(run: rs.Run, cursor: Cursor) -> str:
        moments.append((run.generation, run.now()))
        chances.append(run.random())
        found = await run.call(read, cursor.page)
        run.set("page", cursor.page)
        if cursor.page < 3:
            await run.continue_as_new(Cursor(cursor.page + 1, cursor.seen + found))
        return f"{cursor.seen + found} in {run.generation} generations"

    async with app.running(path, poll=FAST):
        handle = await app.start(crawl, Cursor(1), key="crawl")
        assert await within(handle.result()) == "60 in 3 generations"
        run = await handle.status()
        assert (run.generation, run.total_steps) == (3, 3)
        events = await log(handle)
    assert pages == [1, 2, 3], "what was done in a generation before is not done again, nor replayed"
    continued = [event for event in events if event.event_type == "RUN_CONTINUED"]
    assert [msgspec.json.decode(event.event_data)["carry"] for event in continued] == [
        {"page": 2, "seen": 10},
        {"page": 3, "seen": 30},
    ]
    assert [event.step_key for event in events if event.event_type == "STEP_STARTED"] == [
        "read#1",
        "g2:read#1",
        "g3:read#1",
    ]
    assert [moment for generation, moment in moments if generation > 1] == [
        event.occurred_at for event in continued
    ], "a generation has seen the event that began it"
    assert len(set(chances)) == 3


async def test_after_a_crash_only_the_last_generation_is_replayed(path: str) -> None:
    app = rs.App("desk")
    entered: list[int] = []
    gate = asyncio.Event()

    @app.tool
    async def work(number: int) -> int:
        if number == 2:
            await gate.wait()
        return number

    @app.on()
    async def handle(run: rs.Run, number: int) -> int:
        entered.append(number)
        done = await run.call(work, number)
        if number < 2:
            await run.continue_as_new(number + 1)
        return done

    async with process(app, path) as first:
        started = await app.start(handle, 1)
        await until(lambda: has(started, "RUN_CONTINUED"))
        await until(lambda: entered == [1, 2])
        await first.crash()
        gate.set()
        async with process(app, path) as second:
            assert await within(second.handle(started).result()) == 2
    assert entered == [1, 2, 2]


async def test_answers_and_effects_outlive_their_generation(path: str) -> None:
    """§ENG-40"""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, number: int) -> list[Any]:
        await run.effect(rs.NotifyUser(user_id="ann", message="hello"), critical=False)
        first = await run.wait("go")
        if number == 1:
            await run.continue_as_new(2)
        return [number, first]

    async with process(app, path, poll=FAST):  # nobody carries effects out here
        started = await app.start(handle, 1)
        await started.answer("go", "one")
        await started.answer("go", "two")
        await until(lambda: has(started, "RUN_HANDLER_RETURNED"))
        assert await within(started.result()) == [2, "two"]
        asked = [event for event in await log(started) if event.event_type == "EFFECT_REQUESTED"]
        keys = {msgspec.json.decode(event.event_data)["effect_key"] for event in asked}
        assert len(keys) == 2, "the same step of another generation asks for another effect"
        assert (await started.status()).status == "RUNNING", "until both are out"


async def test_what_is_under_way_ends_with_its_generation(path: str) -> None:
    app = rs.App("desk")
    cleaned: list[str] = []

    @app.on()
    async def handle(run: rs.Run, number: int) -> str:
        if number == 1:
            try:
                try:
                    await run.continue_as_new(2)
                except Exception as error:
                    cleaned.append(f"never: {error!r}")
            finally:
                cleaned.append("cleaned up")
        return "done"

    async with app.running(path, poll=FAST):
        started = await app.start(handle, 1)
        assert await within(started.result()) == "done"
    assert cleaned == ["cleaned up"]


async def test_a_run_that_was_paused_first_continues_when_it_is_resumed(path: str) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()

    @app.tool
    async def work() -> None:
        await gate.wait()

    @app.on()
    async def handle(run: rs.Run, number: int) -> int:
        if number == 1:
            await run.call(work)
            await run.continue_as_new(2)
        return number

    async with app.running(path, poll=FAST):
        started = await app.start(handle, 1)
        await until(lambda: has(started, "STEP_STARTED"))
        await started.pause()
        gate.set()
        await until(lambda: has(started, "STEP_COMPLETED"))
        assert "RUN_CONTINUED" not in await types(started)
        await started.resume()
        assert await within(started.result()) == 2


async def test_where_and_with_what_it_makes_no_sense_it_says_so(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def branches(run: rs.Run) -> str:
        async def branch() -> None:
            await run.continue_as_new()

        try:
            await run.gather(branch())
        except rs.RunstoneError as error:
            return str(error)
        return "fine"

    @app.on()
    async def misfits(run: rs.Run, cursor: Cursor) -> str:
        try:
            await run.continue_as_new({"page": "one"})
        except rs.RunstoneError as error:
            return str(error)

    @app.on()
    async def nothing(run: rs.Run) -> str:
        try:
            await run.continue_as_new(7)
        except rs.RunstoneError as error:
            return str(error)

    async with app.running(path, poll=FAST):
        assert "outside of its branches" in await within((await app.start(branches)).result())
        assert "Expected `int`" in await within((await app.start(misfits, Cursor(1))).result())
        assert "takes no value" in await within((await app.start(nothing)).result())


async def test_a_handler_without_a_value_continues_with_none(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> int:
        if run.generation < 4:
            await run.continue_as_new()
        return run.generation

    async with app.running(path, poll=FAST):
        assert await within((await app.start(handle)).result()) == 4


@pytest.mark.parametrize("by", ["steps", "bytes"])
async def test_a_long_history_is_warned_of_once(
    path: str, by: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§ENG-42"""
    app = rs.App("desk")
    caplog.set_level(logging.WARNING, "runstone.execution")
    if by == "bytes":
        monkeypatch.setattr(history, "MANY_BYTES", 20_000)
    most = 60 if by == "steps" else 30

    @app.on()
    async def handle(run: rs.Run, wait: bool) -> int:
        for number in range(most):
            await run.decide("step", "x" * (1000 if by == "bytes" else 1))
            if wait and number == most - 2:
                await run.wait("go")
        return most

    async with app.running(path, poll=FAST):
        started = await app.start(handle, True)
        await suspended(app, started)
        await started.answer("go")
        await within(started.result())
    warned = [record.getMessage() for record in caplog.records if "continue_as_new" in record.getMessage()]
    assert len(warned) == 1
    assert started.id in warned[0]


async def test_a_run_that_continues_in_time_is_not_warned_of(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, left: int) -> str:
        for _ in range(30):
            await run.decide("step", 1)
        if left:
            await run.continue_as_new(left - 1)
        return "done"

    async with app.running(path, poll=FAST):
        started = await app.start(handle, 2)
        assert await within(started.result()) == "done"
        assert len(await data(started, "STEP_STARTED")) == 90
    assert "continue_as_new" not in caplog.text
