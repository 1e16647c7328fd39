"""The latency budget: a store that stalls holds up no step and swallows no outcome (§ENG-33, §ENG-34)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import runstone as rs
from runstone.core.commit import Commit
from runstone.ports.store import Committed
from runstone.stores.sqlite import SqliteStore
from tests.integration.engine.lab import FAST, data, process, types, until, within

BUDGET = 1000
"""In milliseconds: so much that what is not made to hang stays within it on any machine."""


class Stalls:
    """Makes the commits of a store hang: those with an event of that type, before or after they land."""

    def __init__(self, event_type: str, *, times: int, lands: bool, step_key: str | None = None) -> None:
        self.event_type = event_type
        self.step_key = step_key
        self.left = times
        self.lands = lands
        self.released = asyncio.Event()
        self._commit = SqliteStore.commit

    async def commit(self, store: SqliteStore, commit: Commit) -> Committed:
        concerned = any(
            event.event_type == self.event_type and self.step_key in (None, event.step_key)
            for event in commit.events
        )
        if not concerned or self.left == 0:
            return await self._commit(store, commit)
        self.left -= 1
        if self.lands:
            await self._commit(store, commit)
        await self.released.wait()
        return await self._commit(store, commit)


def stall(
    monkeypatch: pytest.MonkeyPatch,
    event_type: str,
    step_key: str | None = None,
    *,
    times: int = 1,
    lands: bool,
) -> Stalls:
    stalls = Stalls(event_type, times=times, lands=lands, step_key=step_key)

    async def commit(store: SqliteStore, commit: Commit) -> Committed:
        return await stalls.commit(store, commit)

    monkeypatch.setattr(SqliteStore, "commit", commit)
    return stalls


@pytest.mark.parametrize(
    ("event_type", "lands", "outcome"),
    [
        ("STEP_COMPLETED", True, "worked"),
        ("STEP_COMPLETED", False, "WRITE_BUDGET_EXCEEDED"),
        ("STEP_FAILED", True, "ValueError"),
        ("STEP_FAILED", False, "ValueError"),
    ],
)
async def test_an_outcome_beyond_the_budget_is_looked_for_before_its_step_fails(
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    event_type: str,
    lands: bool,
    outcome: str,
) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.tool
    async def work(fail: bool) -> str:
        calls.append(1)
        if fail:
            raise ValueError("on purpose")
        return "worked"

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            return await run.call(work, event_type == "STEP_FAILED")
        except rs.StepFailed as failure:
            return failure.code

    async with process(app, path, write_latency_budget_ms=BUDGET):
        stalls = stall(monkeypatch, event_type, lands=lands)
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == outcome
        ends = [name for name in await types(handle_) if name in ("STEP_COMPLETED", "STEP_FAILED")]
        assert len(ends) == 1
        stalls.released.set()
    assert calls == [1]
    assert "takes over 1.0 s" in caplog.text


async def test_a_step_that_failed_for_its_budget_is_tried_again_as_its_policy_says(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.tool(retry=rs.Retry(max_attempts=2, initial=rs.seconds(0)))
    async def work() -> int:
        calls.append(1)
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(work)

    async with process(app, path, write_latency_budget_ms=BUDGET):
        stalls = stall(monkeypatch, "STEP_COMPLETED", lands=False)
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == 2
        (failed,) = await data(handle_, "STEP_FAILED")
        assert failed["error"] == {
            "category": "INFRASTRUCTURE",
            "code": "WRITE_BUDGET_EXCEEDED",
            "message": "It could not be written within 1 s: what it did is not on record",
            "retryable": True,
        }
        assert (await types(handle_)).count("TOOL_COMPLETED") == 2, "what it gave is kept, for people"
        stalls.released.set()


async def test_a_step_that_must_not_run_twice_is_not_tried_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rs.App("desk")
    calls: list[int] = []

    @app.tool(at_most_once=True, retry=rs.Retry(max_attempts=5, initial=rs.seconds(0)))
    async def pay() -> int:
        calls.append(1)
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            return f"paid {await run.call(pay)}"
        except rs.StepFailed as failure:
            return failure.code

    async with process(app, path, write_latency_budget_ms=BUDGET):
        stalls = stall(monkeypatch, "STEP_COMPLETED", lands=False)
        assert await within((await app.start(handle)).result()) == "WRITE_BUDGET_EXCEEDED"
        stalls.released.set()
    assert calls == [1]


async def test_an_outcome_that_lands_late_after_all_is_the_one_that_counts(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure and the outcome stand for the same place in the log: one of them gets it, once."""
    app = rs.App("desk")
    original = SqliteStore.commit
    held: list[Commit] = []

    @app.tool
    async def work() -> str:
        return "worked"

    @app.on()
    async def handle(run: rs.Run) -> str:
        run.set("seen", 1)
        found = await run.call(work)
        run.set("seen", 2)
        return found

    async def commit(store: SqliteStore, commit: Commit) -> Committed:
        names = [event.event_type for event in commit.events]
        if "STEP_COMPLETED" in names and not held:
            held.append(commit)
            await asyncio.Event().wait()  # it is on its way, and nobody knows
        if "STEP_FAILED" in names and held:
            await original(store, held[0])
        return await original(store, commit)

    async with process(app, path, write_latency_budget_ms=BUDGET):
        monkeypatch.setattr(SqliteStore, "commit", commit)
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "worked"
        names = await types(handle_)
        assert (names.count("STEP_COMPLETED"), names.count("STEP_FAILED")) == (1, 0)
        assert names.count("RUN_VARIABLE_SET") == 2, "what went down with it is not written again"


@pytest.mark.parametrize("policy", [{"fail_open": []}, {"never_fail_open": ["StepCompleted", "StepFailed"]}])
async def test_where_a_start_may_not_be_late_no_step_runs_before_it(
    path: str, monkeypatch: pytest.MonkeyPatch, policy: dict[str, list[str]]
) -> None:
    app = rs.App("desk")
    log_when_it_ran: list[list[str]] = []

    @app.tool
    async def work() -> str:
        log_when_it_ran.append(await types(app.handle(handle, rs.current_step().run_id)))
        return "worked"

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.decide("first", 1)
        try:
            return await run.call(work)
        except rs.StepFailed as failure:
            return failure.code

    async with process(app, path, write_latency_budget_ms=BUDGET, **policy):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "worked"
        strict = "fail_open" in policy
        assert (log_when_it_ran[0][-1] == "STEP_STARTED") == strict
        if strict:
            stalls = stall(monkeypatch, "STEP_STARTED", "work#1", lands=False)
            handle_ = await app.start(handle)
            assert await within(handle_.result()) == "WRITE_BUDGET_EXCEEDED"
            assert len(log_when_it_ran) == 1, "it never ran"
            stalls.released.set()


async def test_a_start_beyond_the_budget_is_written_later_and_its_step_goes_on(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rs.App("desk")
    gate = asyncio.Event()
    entered = asyncio.Event()

    @app.tool
    async def work() -> str:
        entered.set()
        await gate.wait()
        return "worked"

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.decide("first", 1)
        return await run.call(work)

    async with process(app, path, write_latency_budget_ms=BUDGET):
        stalls = stall(monkeypatch, "STEP_STARTED", "work#1", lands=False)
        handle_ = await app.start(handle)
        await within(entered.wait())
        await until(lambda: stalls.left == 0, "the flush of the start")
        gate.set()
        assert await within(handle_.result()) == "worked"
        stalls.released.set()
        starts = [name for name in await types(handle_) if name in ("STEP_STARTED", "STEP_COMPLETED")]
    assert starts == ["STEP_STARTED", "STEP_COMPLETED"] * 2


async def test_a_store_that_never_answers_costs_the_run_its_worker_and_nothing_else(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = rs.App("desk")
    caplog.set_level(logging.CRITICAL)
    calls: list[int] = []

    @app.tool
    async def work() -> int:
        calls.append(1)
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(work)

    async with process(app, path, write_latency_budget_ms=BUDGET, poll=FAST):
        stalls = stall(monkeypatch, "TOOL_CALLED", times=4, lands=False)
        handle_ = await app.start(handle)
        result: Any = await within(handle_.result())
        stalls.released.set()
        assert result == 2, "neither outcome nor failure was ever on record: it was done again"
        assert (await types(handle_)).count("STEP_COMPLETED") == 1
