"""Whose an effect is: claims that grow old, that others take over, and whose answers are lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

import runstone as rs
from runstone.errors import OutcomeUnknown, StoreBusy
from runstone.testing.conformance.outbox import effects_of, requested
from tests.unit.outbox.desk import LEASE, Desk, settle, turn


async def test_a_stale_workers_outcome_is_kept_as_a_late_one(desk: Desk) -> None:
    """§OUT-13, and §OUT-8: whoever has it now does not send it again."""
    case = await requested(desk.scene)
    gate = asyncio.Event()

    async def slow(call: rs.EffectCall) -> str:
        await gate.wait()
        return "sent by the first"

    desk.outside.do = slow
    first, second = desk.dispatcher("d1"), desk.dispatcher("d2")
    await turn(first)
    desk.clock.advance(LEASE)
    (taken,) = await desk.store.claim_effects("d2", types=["NOTIFY_USER"], limit=1, lease=LEASE)
    gate.set()
    await settle(first)
    assert desk.types(case)[-1] == "EFFECT_LATE_OUTCOME"
    assert await desk.statuses() == ["PENDING"]
    await desk.store.release_effects("d2", [taken.effect.id])
    await turn(second)
    assert len(desk.outside.calls) == 1, "the ledger knew"
    (effect,) = await desk.effects()
    assert (effect.status, effect.execution_result) == ("COMPLETED", Raw(b'"sent by the first"'))


async def test_a_claim_that_grew_old_is_looked_at_again(desk: Desk) -> None:
    """§OUT-9"""
    case = await requested(desk.scene)
    dispatcher = desk.dispatcher()
    claim = desk.store.claim_effects

    async def slowly(*given: Any, **more: Any) -> Any:
        claimed = await claim(*given, **more)
        desk.clock.advance(timedelta(seconds=5))
        await desk.cancel(case)
        return claimed

    desk.store.claim_effects = slowly  # type: ignore[method-assign]
    await turn(dispatcher)
    assert desk.outside.calls == []
    assert await desk.statuses() == ["CANCELLED"]


async def test_one_whose_claim_was_taken_by_another_is_left_alone(desk: Desk) -> None:
    await requested(desk.scene)
    dispatcher = desk.dispatcher()
    claim = desk.store.claim_effects

    async def stolen(*given: Any, **more: Any) -> Any:
        claimed = await claim(*given, **more)
        desk.clock.advance(LEASE)
        await claim("thief", types=["NOTIFY_USER"], limit=9, lease=LEASE)
        return claimed

    desk.store.claim_effects = stolen  # type: ignore[method-assign]
    await turn(dispatcher)
    assert desk.outside.calls == []
    assert await desk.statuses() == ["PENDING"]


async def test_leases_of_long_calls_are_extended(desk: Desk) -> None:
    """§OUT-45"""
    await requested(desk.scene)
    gate = asyncio.Event()

    async def slow(call: rs.EffectCall) -> None:
        await gate.wait()

    desk.outside.do = slow
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    for _ in range(9):
        desk.clock.advance(LEASE / 3)
        await dispatcher.beat_once()
        assert await turn(desk.dispatcher("d2")) == 0
    gate.set()
    await settle(dispatcher)
    assert await desk.statuses() == ["COMPLETED"]


async def test_a_lost_lease_and_a_store_in_trouble_are_told(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    await requested(desk.scene)
    gate = asyncio.Event()

    async def slow(call: rs.EffectCall) -> None:
        await gate.wait()

    desk.outside.do = slow
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    desk.clock.advance(LEASE)
    await desk.store.claim_effects("thief", types=["NOTIFY_USER"], limit=1, lease=LEASE)
    await dispatcher.beat_once()
    assert "was claimed by another" in caplog.text

    async def busy(*given: Any, **more: Any) -> Any:
        raise StoreBusy

    desk.store.extend_effects = busy  # type: ignore[method-assign]
    desk.store.claim_effects = busy  # type: ignore[method-assign]
    await dispatcher.beat_once()
    assert "cannot extend the leases" in caplog.text
    assert await turn(dispatcher) == 0
    assert "cannot claim effects" in caplog.text
    gate.set()
    await settle(dispatcher)


async def test_a_stale_claim_among_others_does_not_hold_them_up(desk: Desk) -> None:
    case = await requested(desk.scene, 3)
    gate = asyncio.Event()

    async def slow(call: rs.EffectCall) -> None:
        await gate.wait()

    desk.outside.do = slow
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    await desk.store.release_effects("d1", [effects_of(case)[1].id])
    gate.set()
    await settle(dispatcher)
    assert sorted(await desk.statuses()) == ["COMPLETED", "COMPLETED", "PENDING"]
    assert desk.types(case).count("EFFECT_LATE_OUTCOME") == 1


async def test_who_cannot_keep_leases_ends(desk: Desk) -> None:
    """An error of ours in the heartbeat: to go on without it would have everything long sent twice."""
    dispatcher = desk.dispatcher(poll=60.0, lease=timedelta(milliseconds=1))

    async def broken() -> None:
        raise ZeroDivisionError

    dispatcher.beat_once = broken  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await dispatcher.run()


def lose(desk: Desk, name: str, *, times: int, done: bool = True) -> None:
    """So many answers of one operation of the store get lost, whether it was done or not."""
    operation, left = getattr(desk.store, name), [times]

    async def unheard(*given: Any, **more: Any) -> Any:
        answer = await operation(*given, **more) if done or not left[0] else None
        if left[0]:
            left[0] -= 1
            raise OutcomeUnknown("no answer")
        return answer

    setattr(desk.store, name, unheard)


async def claims(desk: Desk, worker_id: str = "other") -> list[int]:
    """How often each effect was claimed, as whoever claims them next is told."""
    found = await desk.store.claim_effects(worker_id, types=["NOTIFY_USER"], limit=100, lease=LEASE)
    return [one.claims for one in found]


async def test_claims_that_were_never_answered_make_no_dead_letter(desk: Desk) -> None:
    """§OUT-76: nothing was called, so nobody died of it; nor has it to wait for its lease to end."""
    case = await requested(desk.scene, 2)
    lose(desk, "claim_effects", times=7)
    dispatcher = desk.dispatcher()
    for _ in range(7):
        assert await turn(dispatcher) == 0
    assert await turn(dispatcher) == 2
    assert await desk.statuses() == ["COMPLETED"] * 2
    assert len(desk.outside.calls) == 2
    assert "EFFECT_LATE_OUTCOME" not in desk.types(case)


async def test_lost_claims_are_given_back_before_the_next_also_after_a_long_outage(desk: Desk) -> None:
    """§OUT-76"""
    await requested(desk.scene)
    lose(desk, "claim_effects", times=5)
    lose(desk, "release_stray_effects", times=4, done=False)
    dispatcher = desk.dispatcher()
    assert await turn(dispatcher) == 0
    for _ in range(4):
        desk.clock.advance(LEASE)
        assert await turn(dispatcher) == 0, "who cannot give back takes nothing"
    for _ in range(4):
        desk.clock.advance(LEASE)
        await turn(dispatcher)
    assert await desk.statuses() == ["PENDING"]
    assert await turn(dispatcher) == 1
    assert await desk.statuses() == ["COMPLETED"]


async def test_a_claim_that_lands_when_nobody_waits_for_it_any_more_is_given_back(desk: Desk) -> None:
    """§OUT-76: at the latest after the next heartbeat, without one error to tell of it."""
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    await requested(desk.scene)
    assert await claims(desk, "d1") == [1]
    assert await turn(dispatcher) == 0
    await dispatcher.beat_once()
    assert await turn(dispatcher) == 1
    assert await desk.statuses() == ["COMPLETED"]


async def test_what_is_under_way_is_kept_when_others_are_given_back(desk: Desk) -> None:
    """§OUT-76: also by one that has no room for more."""
    case = await requested(desk.scene)
    answer = asyncio.Event()

    async def slow(call: rs.EffectCall) -> str:
        await answer.wait()
        return "sent"

    desk.outside.do = slow
    dispatcher = desk.dispatcher(concurrency=1)
    await turn(dispatcher)
    await requested(desk.scene)
    assert await claims(desk, "d1") == [1]
    await dispatcher.beat_once()
    assert await turn(dispatcher) == 0
    assert await claims(desk) == [1], "the stray, and not the one under way"
    answer.set()
    await settle(dispatcher)
    assert desk.types(case)[-1] == "EFFECT_COMPLETED"
    assert len(desk.outside.calls) == 1


async def test_effects_that_could_not_be_put_back_are_put_back_later(desk: Desk) -> None:
    """§OUT-76: their host has as many calls as it may, and the store is in trouble."""
    await requested(desk.scene, 2)
    answer = asyncio.Event()

    async def slow(call: rs.EffectCall) -> str:
        await answer.wait()
        return "sent"

    desk.outside.do = slow
    lose(desk, "release_effects", times=1, done=False)
    dispatcher = desk.dispatcher(per_host=1)
    assert await turn(dispatcher) == 2
    assert await turn(dispatcher) == 1, "it is free again, and taken; and put back, for now"
    desk.clock.advance(timedelta(seconds=1))
    assert await claims(desk) == [1]
    answer.set()
    await settle(dispatcher)


async def test_who_leaves_gives_back_what_it_does_not_know_of(desk: Desk) -> None:
    """§OUT-45, §OUT-76"""
    await requested(desk.scene)
    lose(desk, "claim_effects", times=1)
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    await dispatcher.drain(timedelta(0))
    assert await claims(desk) == [1]
