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
from tests.integration.engine.lab import FAST, has, process, types, until, within


class Stalls:
    """Makes the commits of a store hang: those with an event of that type, before or after they land."""

    def __init__(self, event_type: str, *, times: int, lands: bool) -> None:
        self.event_type = event_type
        self.left = times
        self.lands = lands
        self.released = asyncio.Event()
        self._commit = SqliteStore.commit

    async def commit(self, store: SqliteStore, commit: Commit) -> Committed:
        concerned = any(event.event_type == self.event_type for event in commit.events)
        if not concerned or self.left == 0:
            return await self._commit(store, commit)
        self.left -= 1
        if self.lands:
            await self._commit(store, commit)
        await self.released.wait()
        return await self._commit(store, commit)


def stall(monkeypatch: pytest.MonkeyPatch, event_type: str, *, times: int = 1, lands: bool) -> Stalls:
    stalls = Stalls(event_type, times=times, lands=lands)

    async def commit(store: SqliteStore, commit: Commit) -> Committed:
        return await stalls.commit(store, commit)

    monkeypatch.setattr(SqliteStore, "commit", commit)
    return stalls


@pytest.mark.parametrize("event_type", ["STEP_COMPLETED", "STEP_FAILED"])
@pytest.mark.parametrize("lands", [True, False])
async def test_an_outcome_beyond_the_budget_is_looked_for_and_written_once(
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    event_type: str,
    lands: bool,
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

    async with process(app, path, write_latency_budget_ms=50):
        stalls = stall(monkeypatch, event_type, lands=lands)
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == (
            "worked" if event_type == "STEP_COMPLETED" else "ValueError"
        )
        assert (await types(handle_)).count(event_type) == 1
        stalls.released.set()
    assert calls == [1]
    assert "takes over 0.05 s" in caplog.text


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

    async with process(app, path, write_latency_budget_ms=50):
        handle_ = await app.start(handle)
        await until(lambda: has(handle_, "STEP_COMPLETED", "first#1"))
        stalls = stall(monkeypatch, "STEP_STARTED", lands=False)
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

    async with process(app, path, write_latency_budget_ms=20, poll=FAST):
        stalls = stall(monkeypatch, "STEP_COMPLETED", times=3, lands=False)
        handle_ = await app.start(handle)
        result: Any = await within(handle_.result())
        stalls.released.set()
        assert result == 2, "its outcome was never on record: it was done again"
        assert (await types(handle_)).count("STEP_COMPLETED") == 1
