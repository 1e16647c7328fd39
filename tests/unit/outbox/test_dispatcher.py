"""The dispatcher, turn by turn: how many it calls at once, what a call may come to, and when it leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

import runstone as rs
from runstone.errors import StoreBusy
from runstone.outbox.circuit import Circuits
from runstone.testing.conformance.outbox import effects_of, requested
from tests.unit.outbox.desk import LEASE, Desk, settle, turn


async def test_many_effects_of_a_run_are_recorded_together(desk: Desk) -> None:
    case = await requested(desk.scene, 10)
    before = desk.store.data.commits
    assert await turn(desk.dispatcher()) == 10
    assert await desk.statuses() == ["COMPLETED"] * 10
    assert desk.store.data.commits == before + 1
    assert {call.key for call in desk.outside.calls} == {
        effect.idempotency_key for effect in effects_of(case)
    }
    assert desk.types(case)[10:] == ["EFFECT_EXECUTING", "EFFECT_COMPLETED"] * 10


async def test_an_effect_in_flight_when_its_run_is_cancelled(desk: Desk) -> None:
    """§OUT-18"""
    case = await requested(desk.scene)

    async def meanwhile(call: rs.EffectCall) -> str:
        await desk.cancel(case)
        return "sent"

    desk.outside.do = meanwhile
    await turn(desk.dispatcher())
    assert await desk.statuses() == ["CANCELLED"]
    assert desk.types(case)[-2:] == ["EFFECT_CANCELLED", "EFFECT_LATE_OUTCOME"]


async def test_an_open_circuit_puts_effects_back_without_counting(desk: Desk) -> None:
    """§OUT-40"""
    await requested(desk.scene, 8)
    desk.outside.do = desk.outside.down
    circuits = Circuits(jitter=lambda: 1.0, failures=3)
    dispatcher = desk.dispatcher(concurrency=3, circuits=circuits)
    await turn(dispatcher)
    assert circuits.open_hosts == ["host"]
    assert await turn(dispatcher) == 3
    assert await turn(dispatcher) == 2
    assert len(desk.outside.calls) == 3, "the others were put back"
    assert sum(effect.retry_count for effect in await desk.effects()) == 3
    desk.clock.advance(timedelta(seconds=10))
    desk.outside.do = desk.outside.well
    await turn(dispatcher)
    assert len(desk.outside.calls) == 4, "one goes to see"
    desk.clock.advance(timedelta(seconds=10))
    for _ in range(5):
        await turn(dispatcher)
    assert set(await desk.statuses()) == {"COMPLETED"}


async def test_no_host_gets_more_calls_than_it_may(desk: Desk) -> None:
    """§OUT-39"""
    await requested(desk.scene, 6)
    gate = asyncio.Event()

    async def slow(call: rs.EffectCall) -> None:
        await gate.wait()

    desk.outside.do = slow
    dispatcher = desk.dispatcher(per_host=2)
    await turn(dispatcher)
    assert len(desk.outside.calls) == 2
    assert await turn(dispatcher) == 0, "the others rest for a while"
    gate.set()
    for _ in range(3):
        desk.clock.advance(timedelta(seconds=1))
        await turn(dispatcher)
    assert await desk.statuses() == ["COMPLETED"] * 6


async def test_no_tenant_gets_more_calls_than_it_may(desk: Desk) -> None:
    """§OUT-37, §OUT-39"""
    await requested(desk.scene, 6)
    other = desk.scene.for_tenant(desk.scene.new_id())
    await requested(other, 1)
    gate = asyncio.Event()

    async def slow(call: rs.EffectCall) -> None:
        await gate.wait()

    desk.outside.do = slow
    dispatcher = desk.dispatcher(per_tenant=2)
    await turn(dispatcher)
    await turn(dispatcher)
    assert sorted(call.tenant_id == other.tenant_id for call in desk.outside.calls) == [False, False, True]
    gate.set()
    await settle(dispatcher)
    for _ in range(3):
        await turn(dispatcher)
    assert len(desk.outside.calls) == 7


async def test_a_spec_that_no_longer_fits_is_a_dead_letter(desk: Desk) -> None:
    await requested(desk.scene, spec={"user": "ann"})
    await turn(desk.dispatcher())
    (effect,) = await desk.effects()
    assert effect.status == "DEAD_LETTER"
    assert msgspec.json.decode(effect.error_details or b"")["code"] == "UNREADABLE_SPEC"
    assert desk.outside.calls == []


async def test_a_spec_that_cannot_be_read_for_now_is_read_again(desk: Desk) -> None:
    """A large one stands in its event: that the store has no time says nothing of the effect."""
    await requested(desk.scene, spec={"user_id": "x" * 5000})

    async def busy(*given: Any) -> Any:
        raise StoreBusy

    load_many, desk.store.load_many = desk.store.load_many, busy  # type: ignore[method-assign, assignment]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    assert await desk.statuses() == ["PENDING"]
    desk.store.load_many = load_many  # type: ignore[method-assign]
    desk.clock.advance(timedelta(seconds=1))
    await turn(dispatcher)
    assert await desk.statuses() == ["COMPLETED"]


async def test_a_call_that_takes_too_long_is_a_failure(desk: Desk) -> None:
    """§OUT-11"""
    await requested(desk.scene, metadata=Raw(b'{"timeout_ms":5}'))

    async def never(call: rs.EffectCall) -> None:
        await asyncio.Event().wait()

    desk.outside.do = never
    await turn(desk.dispatcher())
    async with asyncio.timeout(60):
        while await desk.statuses() != ["FAILED"]:  # noqa: ASYNC110  (only the store knows)
            await asyncio.sleep(0.001)
    (effect,) = await desk.effects()
    assert msgspec.json.decode(effect.error_details or b"")["code"] == "EFFECT_TIMEOUT"


async def test_an_executor_that_cancels_itself_has_failed(desk: Desk) -> None:
    await requested(desk.scene)

    async def cancels(call: rs.EffectCall) -> None:
        raise asyncio.CancelledError

    desk.outside.do = cancels
    await turn(desk.dispatcher())
    assert await desk.statuses() == ["FAILED"]


async def test_it_works_until_it_is_drained(desk: Desk) -> None:
    heard: list[str] = []
    desk.bell.listen(heard.append)
    dispatcher = desk.dispatcher(poll=60.0)
    running = asyncio.ensure_future(dispatcher.run())
    await settle(dispatcher)
    case = await requested(desk.scene)
    dispatcher.wake()
    await settle(dispatcher)
    assert await desk.statuses() == ["COMPLETED"]
    assert heard == [case.run.stream_id], "whoever works on the run is told"
    await dispatcher.drain()
    await running
    await requested(desk.scene)
    assert await dispatcher.run_once() == 0


@pytest.mark.parametrize("what", ["target", "timeout"])
async def test_what_nobody_thought_of_is_a_failure_of_its_effect(
    desk: Desk, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def target(spec: rs.EffectSpec) -> str:
        raise KeyError("region")

    metadata = Raw(b'{"timeout_ms":90000000000000000}') if what == "timeout" else UNSET
    await requested(desk.scene, metadata=metadata)
    if what == "target":
        monkeypatch.setattr(desk.outside, "target", target)
    await turn(desk.dispatcher())
    (effect,) = await desk.effects()
    assert (effect.status, effect.retry_count) == ("FAILED", 1)
    assert desk.outside.calls == []


async def test_a_probe_that_came_too_late_to_call_lets_another_go(desk: Desk) -> None:
    """§OUT-40"""
    await requested(desk.scene, delivery="at_most_once")
    circuits = Circuits(jitter=lambda: 1.0, failures=1)
    circuits.failed("host", desk.clock.now())
    desk.clock.advance(timedelta(seconds=10))
    dispatcher = desk.dispatcher(circuits=circuits)
    begin = dispatcher._recorder.begin

    async def slowly(*given: Any) -> bool:
        begun = await begin(*given)
        desk.clock.advance(LEASE)
        return begun

    dispatcher._recorder.begin = slowly  # type: ignore[method-assign, assignment]
    await turn(dispatcher)
    assert desk.outside.calls == []
    assert circuits.admit("host", desk.clock.now()) is None


async def test_what_a_claim_brings_while_it_leaves_is_put_back(desk: Desk) -> None:
    """§OUT-45"""
    await requested(desk.scene)
    claim, asked, answer = desk.store.claim_effects, asyncio.Event(), asyncio.Event()

    async def slowly(*given: Any, **more: Any) -> Any:
        claimed = await claim(*given, **more)
        asked.set()
        await answer.wait()
        return claimed

    desk.store.claim_effects = slowly  # type: ignore[method-assign]
    dispatcher = desk.dispatcher()
    running = asyncio.ensure_future(dispatcher.run())
    await asked.wait()
    draining = asyncio.ensure_future(dispatcher.drain())
    await settle(dispatcher)
    assert not draining.done()
    answer.set()
    async with asyncio.timeout(60):
        await asyncio.gather(draining, running)
    assert desk.outside.calls == []
    (taken,) = await claim("d2", types=["NOTIFY_USER"], limit=1, lease=LEASE)
    assert taken.claims == 1, "one that was given back does not count"


async def test_what_has_not_been_called_yet_is_put_back(desk: Desk) -> None:
    """§OUT-45"""
    await requested(desk.scene)
    claim, extend = desk.store.claim_effects, desk.store.extend_effects

    async def slowly(*given: Any, **more: Any) -> Any:
        claimed = await claim(*given, **more)
        desk.clock.advance(timedelta(seconds=5))
        return claimed

    async def hangs(*given: Any, **more: Any) -> Any:
        await asyncio.Event().wait()

    desk.store.claim_effects, desk.store.extend_effects = slowly, hangs  # type: ignore[method-assign]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    async with asyncio.timeout(60):
        await dispatcher.drain(timedelta(0))
    desk.store.extend_effects = extend  # type: ignore[method-assign]
    assert desk.outside.calls == []
    assert len(await claim("d2", types=["NOTIFY_USER"], limit=1, lease=LEASE)) == 1
