"""Control signals: they land beside a running handler, and reach it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ControlKind
from runstone.core.run import Run
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
        let_go.wait(5)

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

    async with app.running(path, poll=FAST):
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

    async with process(app, path) as one, process(app, path, worker=False) as other:
        handle_ = await app.start(handle)
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

    async with process(app, path, authorization=Locked()) as opened:
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


async def test_a_caller_may_give_up_waiting_and_the_run_goes_on(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> Any:
        return await run.wait("x")

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        with pytest.raises(TimeoutError, match="goes on"):
            await handle_.result(timeout=rs.seconds(0.02))
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
