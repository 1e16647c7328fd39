"""Waits: answered once, by whoever was first, at any time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, NOW, data, has, status, suspended, types, until, within


class Approval(msgspec.Struct):
    approved: bool


async def test_an_answer_that_comes_before_its_wait_is_kept(path: str) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()

    @app.tool
    async def gated() -> None:
        await gate.wait()

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        await run.call(gated)
        return [await run.wait("x"), await run.wait("x")]

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await handle_.answer("x", 1)
        await handle_.answer("x", 2)
        gate.set()
        assert await within(handle_.result()) == [1, 2]


async def test_an_answer_before_the_wait_wakes_a_run_that_would_rest(path: str) -> None:
    """The start of a wait and the suspension share a commit: an answer that is there already must win."""
    app = rs.App("desk")
    answered = asyncio.Event()

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        await answered.wait()
        return [await run.wait("x", timeout=rs.days(1)), await run.wait("y")]

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await handle_.answer("x", 1)
        await handle_.answer("y", 2)
        await until(lambda: _known(app, handle_))
        answered.set()
        assert await within(handle_.result()) == [1, 2]


def _known(app: rs.App, handle: rs.Handle[Any]) -> bool:
    worker = app.runtime.worker
    assert worker is not None
    return worker.holds(handle.id)


async def test_two_waits_of_one_name_take_answers_in_their_order(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        async def branch() -> Any:
            return await run.wait("vote")

        return list(await run.gather(branch(), branch(), branch()))

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        for number in range(3):
            await handle_.answer("vote", number)
        assert await within(handle_.result()) == [0, 1, 2]
        assert (await types(handle_)).count("SIGNAL_ACCEPTED") == 3


async def test_answers_to_other_names_wait_for_theirs(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        return [await run.wait("a"), await run.wait("b")]

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        await handle_.answer("b", "second")
        await handle_.answer("a", "first")
        assert await within(handle_.result()) == ["first", "second"]


async def test_answer_and_deadline_race_for_one_winner(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, seconds: float) -> str:
        try:
            return f"answered {await run.wait('x', timeout=rs.seconds(seconds))}"
        except rs.WaitTimeout:
            return "nobody answered"

    async with app.running(path, poll=FAST):
        handles = [await app.start(handle, 0.001 * number) for number in range(25)]
        await until(lambda: has(handles[0], "STEP_FAILED"), "the first deadline")
        await asyncio.gather(*(found.answer("x", 1) for found in handles), return_exceptions=True)
        results = [await within(found.result()) for found in handles]
        for found, result in zip(handles, results, strict=True):
            ends = [name for name in await types(found) if name in ("STEP_COMPLETED", "STEP_FAILED")]
            wanted = ["STEP_COMPLETED"] if result == "answered 1" else ["STEP_FAILED"]
            assert ends == wanted
    assert "nobody answered" in results


async def test_a_deadline_that_passed_while_nobody_was_there_ends_the_wait(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.wait("x", timeout=rs.seconds(0.3))
        except rs.WaitTimeout:
            return "nobody answered"
        return "answered"

    async with app.running(path, grace=NOW, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await until(lambda: _started(handle_))
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        assert await within(handle_.result()) == "nobody answered"
        (started,) = await data(handle_, "STEP_STARTED")
        assert started["wait"]["deadline"]


async def _started(handle: rs.Handle[Any]) -> bool:
    return "RUN_STARTED" in await types(handle)


async def test_an_answer_of_another_type_is_refused_and_does_not_end_its_wait(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        answer = await run.wait("approval", Approval)
        return f"approved {answer.approved}"

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        for wrong in ({"approved": "perhaps"}, {}, None, [True]):
            with pytest.raises(rs.ControlRefused, match="ANSWER was refused"):
                await handle_.answer("approval", wrong)
        rejected = await data(handle_, "SIGNAL_REJECTED")
        assert rejected[0]["error"] == {
            "category": "VALIDATION",
            "code": "INVALID_ANSWER",
            "message": "/approved is not of type boolean",
        }
        assert len(rejected) == 4
        snapshot = await handle_.snapshot()
        assert snapshot is not None
        assert snapshot.steps[0].status == "RUNNING"
        await handle_.answer("approval", Approval(approved=False))
        assert await within(handle_.result()) == "approved False"


async def test_an_early_answer_of_another_type_is_an_error_of_its_step(path: str) -> None:
    """Nobody knew yet what it would have to fit."""
    app = rs.App("desk")
    gate = asyncio.Event()

    @app.on()
    async def handle(run: rs.Run) -> str:
        await gate.wait()
        try:
            answer = await run.wait("approval", Approval)
        except rs.StepFailed as failure:
            return f"{failure.category} {failure.code}"
        return f"approved {answer.approved}"

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await handle_.answer("approval", {"approved": "perhaps"})
        gate.set()
        assert await within(handle_.result()) == "VALIDATION INVALID_ANSWER"
        await status(handle_, "COMPLETED")


async def test_answers_survive_a_stop_between_answer_and_resumption(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with app.running(path, grace=NOW, poll=FAST):
        await suspended(app, await app.start(handle, key="k"))
    async with app.running(path, worker=False):
        await (await app.start(handle, key="k")).answer("x", "while nobody worked")
    async with app.running(path, poll=FAST):
        assert await within((await app.start(handle, key="k")).result()) == "while nobody worked"
