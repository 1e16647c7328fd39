"""Control signals that are refused, and those that come twice: each counts once, and the log says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ControlKind
from runstone.core.run import Run
from runstone.testing.clock import VirtualClock
from tests.integration.engine.lab import (
    FAST,
    data,
    has,
    log,
    process,
    status,
    suspended,
    types,
    until,
    within,
)

CONTROL_ID = "018e0000-0000-7000-8000-00000000000a"


async def test_control_of_a_finished_run_is_refused_on_record(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        return "done"

    async with app.running(path):
        handle_ = await app.start(handle)
        await within(handle_.result())
        await status(handle_, "COMPLETED")
        for control in (
            handle_.cancel(),
            handle_.pause(),
            handle_.answer("x", 1),
            handle_.retry_step("y#1"),
        ):
            with pytest.raises(rs.ControlRefused, match="has ended"):
                await control
        rejected = await data(handle_, "SIGNAL_REJECTED")
        assert [entry["kind"] for entry in rejected] == ["CANCEL", "PAUSE", "ANSWER", "RETRY_STEP"]
        assert rejected[0]["sender"] == "app"


class OnlyAda:
    """Lets nobody in but Ada."""

    async def objection(self, sender: str, kind: ControlKind, run: Run) -> str | None:
        return None if sender == "ada" else f"{sender} may not {kind} {run.plan_id}"


async def test_authorization_decides_and_its_refusal_is_on_record(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with app.running(path, poll=FAST, authorization=OnlyAda()):
        handle_ = await app.start(handle)
        with pytest.raises(rs.ControlRefused, match="bob may not ANSWER handle"):
            await handle_.answer("x", "from bob", sender="bob")
        with pytest.raises(rs.ControlRefused, match="bob may not CANCEL handle"):
            await handle_.cancel(sender="bob")
        await handle_.answer("x", "from ada", sender="ada")
        assert await within(handle_.result()) == "from ada"
        rejected = await data(handle_, "SIGNAL_REJECTED")
        assert [(entry["sender"], entry["kind"], entry["error"]["code"]) for entry in rejected] == [
            ("bob", "ANSWER", "NOT_AUTHORIZED"),
            ("bob", "CANCEL", "NOT_AUTHORIZED"),
        ]
        assert (await data(handle_, "SIGNAL_ACCEPTED"))[0]["sender"] == "ada"


async def test_what_is_too_large_or_too_much_is_refused_and_not_recorded(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with process(app, path, clock=VirtualClock()):  # on a slow machine the minute would pass
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        before = len(await log(handle_))
        for attempt in (handle_.answer("x", "y" * 65_536), handle_.cancel("z" * 65_537)):
            with pytest.raises(rs.ControlRefused, match="at most 65536 bytes"):
                await attempt
        assert len(await log(handle_)) == before
        for _ in range(60):
            await handle_.answer("other", 1)
        before = len(await log(handle_))
        with pytest.raises(rs.ControlRefused, match="at most 60 control signals a minute"):
            await handle_.answer("x", 1)
        assert len(await log(handle_)) == before
        neighbour = await app.start(handle)
        await neighbour.answer("x", 2)
        assert await within(neighbour.result()) == 2


@pytest.mark.parametrize("kind", ["PAUSE", "CANCEL", "ANSWER"])
async def test_the_same_control_signal_twice_changes_nothing(path: str, kind: ControlKind) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        return [await run.wait("x"), await run.wait("x")]

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)

        async def send() -> None:
            await app.runtime.gateway.control(
                DEFAULT_TENANT, handle_.id, kind, sender="ada", target="x", control_signal_id=CONTROL_ID
            )

        await asyncio.gather(send(), send())
        await send()
        events = [event for event in await log(handle_) if event.control_signal_id == CONTROL_ID]
        assert [event.event_type for event in events].count("SIGNAL_ACCEPTED") == 1
        assert "SIGNAL_REJECTED" not in await types(handle_)


async def test_a_refused_control_signal_stays_refused_when_it_is_sent_again(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        for _ in range(2):
            with pytest.raises(rs.ControlRefused, match="not paused"):
                await app.runtime.gateway.control(
                    DEFAULT_TENANT, handle_.id, "RESUME", sender="ada", control_signal_id=CONTROL_ID
                )
        assert (await types(handle_)).count("SIGNAL_REJECTED") == 1


class Locked:
    """Lets nobody but one sender in."""

    async def objection(self, sender: str, kind: ControlKind, run: Run) -> str | None:
        return None if sender == "ada" else "only ada may"


async def test_the_limit_holds_for_all_processes_together(path: str) -> None:
    """§ENG-27: it is the run's log that counts."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    clock = VirtualClock()
    async with process(app, path, clock=clock) as one, process(app, path, clock=clock, worker=False) as other:
        handle_ = await app.start(handle)
        await until(lambda: has(handle_, "RUN_SUSPENDED"))
        ways = [one.handle(handle_), other.handle(handle_)]
        for place in range(60):
            await ways[place % 2].answer("other", place)
        before = len(await log(handle_))
        for way in ways:
            with pytest.raises(rs.TooManyControls, match="at most 60 control signals a minute") as refused:
                await way.answer("x", 1)
            assert refused.value.retry_after is not None
        assert len(await log(handle_)) == before
        assert one.runtime.gateway.refused["rate"] == other.runtime.gateway.refused["rate"] == 1


async def test_whoever_is_not_authorized_cannot_use_up_the_limit(path: str) -> None:
    """§ENG-27: they are counted apart, and cannot fill the log either."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with process(app, path, authorization=Locked(), clock=VirtualClock()) as opened:
        handle_ = await app.start(handle)
        for _ in range(70):
            with pytest.raises(rs.ControlRefused):
                await handle_.cancel(sender="eve")
        assert (await types(handle_)).count("SIGNAL_REJECTED") == 60
        assert opened.runtime.gateway.refused["rate"] == 10
        await handle_.answer("x", "still open", sender="ada")
        assert await within(handle_.result()) == "still open"


async def test_an_answer_that_is_sent_again_is_one_answer(path: str) -> None:
    """§ENG-25: its sender names it, and may try as often as it takes."""
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        return [await run.wait("x", int), await run.wait("x", str)]

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        for _ in range(3):
            await handle_.answer("x", 1, id="message 17")
        await until(lambda: has(handle_, "STEP_STARTED", "x#2"))
        await handle_.answer("x", 1, id="message 17")  # though the wait that is open now takes a text
        with pytest.raises(rs.SignalConflict, match="with other content"):
            await handle_.answer("x", 2, id="message 17")
        with pytest.raises(rs.SignalConflict, match="came before, as ANSWER of x"):
            await handle_.cancel(id="message 17")
        await handle_.answer("x", "two", id="message 18")
        assert await within(handle_.result()) == [1, "two"]
        assert (await types(handle_)).count("SIGNAL_ACCEPTED") == 2


async def test_a_retry_of_a_failure_that_the_handler_dealt_with_is_refused(path: str) -> None:
    """§ENG-29: the run would not be able to go on from where it is."""
    app = rs.App("desk")

    @app.tool
    async def broken() -> None:
        raise ValueError("as always")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        try:
            await run.call(broken)
        except rs.StepFailed:
            await run.decide("plan", "b")
        return await run.wait("x")

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        for _ in range(2):
            with pytest.raises(rs.ControlRefused, match="the handler has dealt with the failure"):
                await handle_.retry_step("broken#1")
            if (await handle_.status()).status == "RUNNING":
                await handle_.pause()
        assert await data(handle_, "STEP_RETRIED") == []
        await handle_.resume()
        await handle_.answer("x", "fine")
        assert await within(handle_.result()) == "fine"
