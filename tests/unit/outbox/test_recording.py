"""Outcomes get into the log, whatever the store does and whoever else writes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import runstone as rs
from runstone.errors import OutcomeUnknown, StoreBusy, UnknownEventType
from runstone.outbox.dispatcher import Dispatcher
from runstone.ports.cases import carry_out
from runstone.testing.conformance.outbox import requested
from tests.unit.outbox.desk import LEASE, Desk, settle, turn


async def test_an_outcome_waits_for_a_store_that_is_in_trouble(desk: Desk) -> None:
    await requested(desk.scene)
    commit, troubles = desk.store.commit, [StoreBusy(), *[OutcomeUnknown()] * 3]

    async def trouble(given: Any) -> Any:
        if troubles:
            raise troubles.pop(0)
        return await commit(given)

    desk.store.commit = trouble  # type: ignore[method-assign, assignment]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    async with asyncio.timeout(60):
        while dispatcher._calls:
            await asyncio.wait(list(dispatcher._calls))
    assert await desk.statuses() == ["COMPLETED"]
    assert len(desk.outside.calls) == 1, "what was done outside is recorded, and not done again"


async def test_an_effect_whose_run_cannot_be_read_rests(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """It is not sent again and again by whoever cannot record that it was sent."""
    await requested(desk.scene)

    async def unreadable(*given: Any, **more: Any) -> Any:
        raise UnknownEventType("RUN_FLEW")

    load_many, desk.store.load_many = desk.store.load_many, unreadable  # type: ignore[method-assign]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    assert "stops here" in caplog.text
    desk.clock.advance(LEASE * 2)
    assert await turn(dispatcher) == 0
    desk.store.load_many = load_many  # type: ignore[method-assign]
    desk.clock.advance(timedelta(minutes=5))
    await turn(dispatcher)
    assert await desk.statuses() == ["COMPLETED"]
    assert len(desk.outside.calls) == 2


async def test_others_may_write_to_the_run_meanwhile(desk: Desk) -> None:
    case = await requested(desk.scene, 2)
    dispatcher = desk.dispatcher(concurrency=1)

    async def write(call: rs.EffectCall) -> None:
        await carry_out(
            desk.store,
            desk.scene.tenant_id,
            case.run.stream_id,
            desk.scene.set_variable(),
            context=desk.scene.context(),
        )

    desk.outside.do = write
    await turn(dispatcher)
    await turn(dispatcher)
    assert await desk.statuses() == ["COMPLETED", "COMPLETED"]


async def wait_for_calls(dispatcher: Dispatcher) -> None:
    async with asyncio.timeout(60):
        while dispatcher._calls:
            await asyncio.wait(list(dispatcher._calls))


async def test_a_store_that_fails_while_it_is_read_again_makes_nobody_send_again(desk: Desk) -> None:
    """Another was faster, and what he wrote cannot be read at once: the outcome is recorded all the same."""
    case = await requested(desk.scene)
    dispatcher = desk.dispatcher()
    load_many = desk.store.load_many
    troubles: list[Exception] = []

    async def trouble(*given: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return await load_many(*given)

    async def meanwhile(call: rs.EffectCall) -> str:
        await settle(dispatcher)
        await desk.cancel(case)
        troubles.append(StoreBusy())
        return "sent"

    desk.store.load_many = trouble  # type: ignore[method-assign, assignment]
    desk.outside.do = meanwhile
    await turn(dispatcher)
    await wait_for_calls(dispatcher)
    assert desk.outside.calls, "it was called"
    assert not troubles, "the store failed"
    assert desk.types(case)[-2:] == ["EFFECT_CANCELLED", "EFFECT_LATE_OUTCOME"]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_a_commit_that_landed_unheard_of_is_found(desk: Desk, delivery: str) -> None:
    """§OUT-74: neither is it reported as late nor, if it is a beginning, taken for somebody else's."""
    case = await requested(desk.scene, delivery=delivery)
    commit, fetch = desk.store.commit, desk.store.fetch
    down: list[Exception] = []

    async def unheard(given: Any) -> Any:
        if down:
            raise StoreBusy
        await commit(given)
        down.extend([StoreBusy()] * 2)
        raise OutcomeUnknown

    async def back(*given: Any, **more: Any) -> Any:
        if down:
            raise down.pop()
        return await fetch(*given, **more)

    desk.store.commit, desk.store.fetch = unheard, back  # type: ignore[method-assign, assignment]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    await wait_for_calls(dispatcher)
    assert desk.types(case) == ["EFFECT_REQUESTED", "EFFECT_EXECUTING", "EFFECT_COMPLETED"]
    assert len(desk.outside.calls) == 1


async def test_what_waits_for_its_record_is_not_sent_again_by_the_same_process(desk: Desk) -> None:
    """§OUT-73: its lease ran out while the store was away, and to claim is faster than to record."""
    await requested(desk.scene)
    commit, away = desk.store.commit, asyncio.Event()

    async def waits(given: Any) -> Any:
        await away.wait()
        return await commit(given)

    desk.store.commit = waits  # type: ignore[method-assign, assignment]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    desk.clock.advance(LEASE)
    assert await turn(dispatcher) == 1
    away.set()
    await settle(dispatcher)
    desk.clock.advance(LEASE)
    await turn(dispatcher)
    assert await desk.statuses() == ["COMPLETED"]
    assert len(desk.outside.calls) == 1


async def test_only_so_many_wait_for_their_record(desk: Desk) -> None:
    """Others call in the place of what was answered; while nothing can be recorded, that comes to an end."""
    await requested(desk.scene, 10)
    commit, away = desk.store.commit, asyncio.Event()

    async def waits(given: Any) -> Any:
        await away.wait()
        return await commit(given)

    desk.store.commit = waits  # type: ignore[method-assign, assignment]
    dispatcher = desk.dispatcher(concurrency=2)
    assert [await turn(dispatcher) for _ in range(6)] == [2, 2, 2, 2, 0, 0]
    desk.clock.advance(LEASE - timedelta(seconds=1))
    await dispatcher.beat_once()
    desk.clock.advance(LEASE - timedelta(seconds=1))
    assert await desk.store.claim_effects("d2", types=["NOTIFY_USER"], limit=10, lease=LEASE)
    away.set()
    await settle(dispatcher)
    assert sorted(await desk.statuses()) == ["COMPLETED"] * 8 + ["PENDING"] * 2, "they kept their leases"


async def test_outcomes_that_cannot_be_recorded_are_told_of(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await requested(desk.scene)

    async def away(given: Any) -> Any:
        raise StoreBusy

    monkeypatch.setattr(desk.store, "commit", away)
    monkeypatch.setattr("runstone.outbox.dispatcher.RECORDING", 0.01)
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    await dispatcher.drain(timedelta(0))
    assert "1 effects are left behind" in caplog.text
    for writing in list(dispatcher._recorder._writing.values()):
        writing.cancel()
