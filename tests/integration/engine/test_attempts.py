"""Attempts: those that the plan wants, and those that the platform needs."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import runstone as rs
from runstone.engine.execution import Ending, Execution
from tests.integration.engine.lab import (
    FAST,
    NOW,
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

SOON = rs.seconds(0)

SLACK = timedelta(milliseconds=5)
"""How much earlier than the clock a timer may ring."""


async def test_a_retry_is_another_logical_attempt_of_the_same_step(path: str) -> None:
    app = rs.App("desk")
    tries: list[int] = []

    @app.tool(retry=rs.Retry(max_attempts=3, initial=SOON))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(f"try {len(tries)}")
        return len(tries)

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(flaky)

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == 3
        events = await log(handle_)
        snapshot = await handle_.snapshot()
        run = await handle_.status()
    steps = [(event.event_type, event.logical_attempt) for event in events if event.step_key == "flaky#1"]
    assert [entry for entry in steps if entry[0].startswith("STEP_")] == [
        ("STEP_STARTED", 1),
        ("STEP_FAILED", 1),
        ("STEP_RETRIED", 1),
        ("STEP_STARTED", 2),
        ("STEP_FAILED", 2),
        ("STEP_RETRIED", 2),
        ("STEP_STARTED", 3),
        ("STEP_COMPLETED", 3),
    ]
    assert {event.engine_attempt for event in events if event.step_key == "flaky#1"} == {1}
    assert snapshot is not None
    (step,) = snapshot.steps
    assert (step.logical_attempt_id, step.engine_attempt_id, step.status) == ("3", "1", "SUCCESS")
    assert (run.total_steps, run.failed_steps) == (3, 2)
    failed = [msgspec.json.decode(event.event_data) for event in events if event.event_type == "STEP_FAILED"]
    assert [failure["error"]["retryable"] for failure in failed] == [True, True]


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
async def test_backoff_grows_up_to_its_bound_with_full_jitter(path: str, jitter: float) -> None:
    app = rs.App("desk")
    raised: list[datetime] = []
    retry = rs.Retry(max_attempts=4, initial=rs.seconds(0.02), factor=2, longest=rs.seconds(0.05))

    @app.tool(retry=retry)
    async def broken() -> None:
        raised.append(datetime.now(UTC))
        raise OSError

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.call(broken)

    async with app.running(path, jitter=lambda: jitter):
        handle_ = await app.start(handle)
        await status(handle_, "FAILED")
        events = await log(handle_)
        retried = await data(handle_, "STEP_RETRIED")
    moments = [event.occurred_at for event in events if event.event_type == "STEP_FAILED"]
    starts = [event.occurred_at for event in events if event.event_type == "STEP_STARTED"]
    assert [len(found) for found in (raised, moments, retried, starts)] == [4, 4, 3, 4]
    for number, most in enumerate((0.02, 0.04, 0.05)):
        wanted = msgspec.convert(retried[number]["retry_at"], type=datetime)
        delay = timedelta(seconds=most) * jitter
        assert raised[number] + delay <= wanted <= moments[number] + delay, "counted from the failure on"
        assert starts[number + 1] >= wanted - SLACK


@pytest.mark.parametrize(
    ("error", "retry", "tries"),
    [
        (rs.TerminalError("no"), rs.Retry(max_attempts=3, initial=SOON), 1),
        (rs.RetryableError("yes", retry_after=SOON), rs.Retry(max_attempts=3, on=[KeyError]), 3),
        (ValueError("v"), rs.Retry(max_attempts=3, initial=SOON, on=[KeyError]), 1),
        (KeyError("k"), rs.Retry(max_attempts=3, initial=SOON, on=[LookupError]), 3),
        (KeyError("k"), rs.Retry(max_attempts=3, initial=SOON, never=[KeyError]), 1),
    ],
)
async def test_errors_say_whether_they_are_retried(
    path: str, error: Exception, retry: rs.Retry, tries: int
) -> None:
    app = rs.App("desk")

    @app.specialist(retry=retry)
    async def broken() -> None:
        raise error

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.call(broken)
        except rs.StepFailed as failure:
            return failure.code
        return "fine"

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == type(error).__name__
        assert (await types(handle_)).count("STEP_FAILED") == tries


async def test_an_error_knows_when_to_come_back(path: str) -> None:
    app = rs.App("desk")

    @app.tool(retry=rs.Retry(max_attempts=2, initial=SOON))
    async def busy() -> None:
        raise rs.RetryableError("busy", retry_after=rs.hours(1))

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.call(busy)

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        (retried,) = await data(handle_, "STEP_RETRIED")
        (rests,) = await data(handle_, "RUN_SUSPENDED")
        assert rests["wake_at"] == retried["retry_at"]
        assert rests["waiting"] == ["busy#1"]


async def test_a_failure_that_nobody_catches_fails_the_run_with_its_cause(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def broken() -> None:
        raise ValueError("the root cause")

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.decide("first", 1)
        await run.call(broken)

    async with app.running(path):
        handle_ = await app.start(handle)
        with pytest.raises(rs.RunFailed, match="the root cause") as caught:
            await within(handle_.result())
        assert caught.value.exit_reason == "ValueError"
        assert (await types(handle_))[-1] == "RUN_FAILED"
        assert await has(handle_, "STEP_COMPLETED", "first#1")


async def test_a_parked_step_waits_for_a_person(path: str) -> None:
    app = rs.App("desk")
    broken = [True]
    tries: list[int] = []

    @app.tool(on_exhausted="park", retry=rs.Retry(max_attempts=2, initial=SOON))
    async def fragile() -> str:
        tries.append(1)
        if broken[0]:
            raise OSError("still broken")
        return "repaired"

    @app.on()
    async def handle(run: rs.Run) -> str:
        return await run.call(fragile)

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        await status(handle_, "PAUSED")
        (paused,) = await data(handle_, "RUN_PAUSED")
        assert paused["reason"] == "PARKED"
        assert paused["details"]["step"] == "fragile#1"
        assert len(tries) == 2

        await handle_.retry_step("fragile#1")
        await until(lambda: len(tries) == 3)
        await status(handle_, "PAUSED")

        broken[0] = False
        with pytest.raises(rs.ControlRefused, match="no step 'other#1'"):
            await handle_.retry_step("other#1")
        await handle_.retry_step("fragile#1")
        assert await within(handle_.result()) == "repaired"
        snapshot = await handle_.snapshot()
        assert snapshot is not None
        assert snapshot.steps[0].logical_attempt_id == "4"


@pytest.mark.parametrize("plain", [True, False])
async def test_a_step_that_takes_too_long_times_out(path: str, plain: bool) -> None:
    app = rs.App("desk")
    never = threading.Event()

    if plain:

        @app.tool(timeout=rs.seconds(0.03), name="slow")
        def slow_plain() -> None:
            never.wait(60)

        slow: Any = slow_plain
    else:

        @app.tool(timeout=rs.seconds(0.03), name="slow")
        async def slow_async() -> None:
            await asyncio.Event().wait()

        slow = slow_async

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.call(slow)
        except rs.StepFailed as failure:
            return f"{failure.category} {failure.code}"
        return "fine"

    async with app.running(path):
        assert await within((await app.start(handle)).result()) == "TIMEOUT STEP_TIMEOUT"
        never.set()


async def test_a_plain_function_may_raise_anything(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    def exhausted() -> str:
        return str(next(iter(())))

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            return await run.call(exhausted)
        except rs.StepFailed as failure:
            return failure.code

    async with app.running(path):
        assert await within((await app.start(handle)).result()) == "RuntimeError"


async def test_a_step_that_must_not_run_twice_does_not_after_a_crash(path: str) -> None:
    app = rs.App("desk")
    calls: list[str] = []

    @app.tool(at_most_once=True, retry=rs.Retry(max_attempts=3, initial=SOON))
    async def pay() -> None:
        calls.append("pay")
        handle_started.set()
        await asyncio.Event().wait()

    handle_started = asyncio.Event()

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.call(pay)
        except rs.StepFailed as failure:
            return f"{failure.category} {failure.code}"
        return "paid"

    async with app.running(path, grace=NOW):
        handle_ = await app.start(handle, key="k")
        await within(handle_started.wait())
        assert await has(handle_, "STEP_STARTED", "pay#1"), "durable before it runs"
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        assert await within(handle_.result()) == "INFRASTRUCTURE AT_MOST_ONCE"
    assert calls == ["pay"]


async def test_at_most_once_steps_work_when_nothing_goes_wrong(path: str) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.tool(at_most_once=True, retry=rs.Retry(max_attempts=2, initial=SOON))
    async def pay() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(pay)

    async with app.running(path):
        assert await within((await app.start(handle)).result()) == 2


async def test_a_run_that_kills_its_workers_is_quarantined_and_its_neighbours_go_on(path: str) -> None:
    app = rs.App("desk")
    deadly = [True]
    entered = asyncio.Event()

    @app.on()
    async def kills(run: rs.Run) -> str:
        entered.set()
        if deadly[0]:
            await asyncio.Event().wait()
        return "alive"

    @app.on()
    async def neighbour(run: rs.Run) -> str:
        return "fine"

    handle_: rs.Handle[str] | None = None
    for _ in range(5):
        entered.clear()
        async with process(app, path) as dying:
            if handle_ is None:
                handle_ = await app.start(kills)
            await within(entered.wait())
            await dying.crash()
    async with process(app, path) as survivor:
        assert handle_ is not None
        handle_ = survivor.handle(handle_)
        await status(handle_, "PAUSED")
        (paused,) = await data(handle_, "RUN_PAUSED")
        assert paused == {"reason": "QUARANTINED", "details": {"attempts": 6}}
        assert await within((await app.start(neighbour)).result()) == "fine"
        deadly[0] = False
        await handle_.resume()
        assert await within(handle_.result()) == "alive"


async def test_a_run_that_the_engine_cannot_carry_out_is_quarantined(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is well and the run fails all the same: it must not be claimed again for ever."""
    app = rs.App("desk")
    run, broken = Execution.run, [True]

    async def carry_out(execution: Execution) -> Ending:
        if broken[0]:
            raise RuntimeError("a bug of ours")
        return await run(execution)

    monkeypatch.setattr(Execution, "run", carry_out)

    @app.on()
    async def handle(run: rs.Run) -> str:
        return "alive"

    async with app.running(path, poll=0.005):
        started = await app.start(handle)
        await status(started, "PAUSED")
        (paused,) = await data(started, "RUN_PAUSED")
        assert paused == {"reason": "QUARANTINED", "details": {"attempts": 6, "error": "a bug of ours"}}
        broken[0] = False
        await started.resume()
        assert await within(started.result()) == "alive"


async def test_a_finished_step_shows_that_a_run_is_no_killer(path: str) -> None:
    app = rs.App("desk")
    reached: list[int] = []

    @app.tool
    async def fine(number: int) -> int:
        return number

    @app.on()
    async def slow_but_sure(run: rs.Run) -> str:
        for number in range(8):
            await run.call(fine, number)
            if number == len(reached):
                reached.append(number)
                await asyncio.Event().wait()
        return "done"

    handle_: rs.Handle[str] | None = None
    for crash in range(8):
        async with process(app, path) as dying:
            if handle_ is None:
                handle_ = await app.start(slow_but_sure)
            await until(partial(reached.__contains__, crash))
            await dying.crash()
    async with process(app, path) as survivor:
        assert handle_ is not None
        assert await within(survivor.handle(handle_).result()) == "done"
        attempts = {event.engine_attempt for event in await log(survivor.handle(handle_)) if event.step_key}
    assert max(attempt or 0 for attempt in attempts) == 2
