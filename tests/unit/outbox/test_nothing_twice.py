"""Effects that must not be done twice, and those that nobody lives to report."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

import runstone as rs
from runstone.core import commands
from runstone.ports.cases import carry_out
from runstone.testing.conformance.outbox import effects_of, requested
from tests.unit.outbox.desk import LEASE, Desk, Outside, settle, turn


async def test_the_beginning_of_at_most_once_is_durable_before_the_call(desk: Desk) -> None:
    """§OUT-7"""
    case = await requested(desk.scene, delivery="at_most_once")
    seen: list[str] = []

    async def look(call: rs.EffectCall) -> None:
        seen.extend(desk.types(case))

    desk.outside.do = look
    await turn(desk.dispatcher())
    assert seen == ["EFFECT_REQUESTED", "EFFECT_EXECUTING"]
    assert await desk.statuses() == ["COMPLETED"]


async def test_a_dead_workers_at_most_once_effect_is_unknown(desk: Desk) -> None:
    """§OUT-26"""
    case = await requested(desk.scene, delivery="at_most_once")
    dying = Outside()

    async def die(call: rs.EffectCall) -> None:
        await asyncio.Event().wait()

    dying.do = die
    first = desk.dispatcher("d1", dying)
    await turn(first)
    desk.clock.advance(LEASE)
    await turn(desk.dispatcher("d2"))
    assert await desk.statuses() == ["UNKNOWN"]
    assert (len(dying.calls), len(desk.outside.calls)) == (1, 0)
    desk.clock.advance(timedelta(days=1))
    assert await turn(desk.dispatcher("d3")) == 0
    assert desk.types(case)[-1] == "EFFECT_OUTCOME_UNKNOWN"
    for call in first._calls:
        call.cancel()


async def test_what_a_person_says_was_not_sent_is_sent_by_who_called_it_lost(desk: Desk) -> None:
    """§OUT-27: its dispatcher remembers the run as it was, and others have written to it since."""
    case = await requested(desk.scene, 2, delivery="at_most_once")
    dying = Outside()

    async def die(call: rs.EffectCall) -> None:
        await asyncio.Event().wait()

    dying.do = die
    first = desk.dispatcher("d1", dying)
    await turn(first)
    desk.clock.advance(LEASE)
    second = desk.dispatcher("d2")
    await turn(second)
    assert await desk.statuses() == ["UNKNOWN", "UNKNOWN"]
    effect = effects_of(case)[0]
    said = commands.ReconcileEffect(effect_id=effect.id, sent=False, evidence="asked them")
    await carry_out(desk.store, effect.tenant_id, effect.run_id, said, context=desk.scene.context())
    assert await turn(second) == 1
    assert sorted(await desk.statuses()) == ["COMPLETED", "UNKNOWN"]
    for call in first._calls:
        call.cancel()


async def test_what_was_found_out_meanwhile_is_not_lost_again(desk: Desk) -> None:
    """Two find an effect of a dead worker; before the slower one says so, a person has said: not sent."""
    case = await requested(desk.scene, delivery="at_most_once")
    dying = Outside()

    async def die(call: rs.EffectCall) -> None:
        await asyncio.Event().wait()

    dying.do = die
    first = desk.dispatcher("d1", dying)
    await turn(first)
    desk.clock.advance(LEASE)
    slow = desk.dispatcher("d2")
    record = slow._recorder.record

    async def slowly(*given: Any) -> Any:
        desk.clock.advance(LEASE)
        await turn(desk.dispatcher("d3"))
        assert await desk.statuses() == ["UNKNOWN"]
        found = commands.ReconcileEffect(effect_id=effects_of(case)[0].id, sent=False)
        await carry_out(
            desk.store, desk.scene.tenant_id, case.run.stream_id, found, context=desk.scene.context()
        )
        return await record(*given)

    slow._recorder.record = slowly  # type: ignore[method-assign, assignment]
    await turn(slow)
    await settle(slow)
    assert await desk.statuses() == ["PENDING"]
    await turn(desk.dispatcher("d4"))
    assert await desk.statuses() == ["COMPLETED"]
    for call in first._calls:
        call.cancel()


async def test_a_dispatcher_that_was_held_up_does_not_call(desk: Desk) -> None:
    """Its beginning is durable, but its lease is over: it may count as lost, and be found not to be sent."""
    await requested(desk.scene, delivery="at_most_once")
    dispatcher = desk.dispatcher()
    begin = dispatcher._recorder.begin

    async def slowly(*given: Any) -> bool:
        begun = await begin(*given)
        desk.clock.advance(LEASE)
        return begun

    dispatcher._recorder.begin = slowly  # type: ignore[method-assign, assignment]
    await turn(dispatcher)
    assert desk.outside.calls == []
    (effect,) = await desk.effects()
    assert (effect.status, effect.retry_count) == ("FAILED", 1)


async def die(desk: Desk, name: str, outside: Outside | None = None) -> list[rs.EffectCall]:
    """A dispatcher claims, calls, and is never heard of again; what it called."""
    outside = outside or Outside()

    async def forever(call: rs.EffectCall) -> None:
        await asyncio.Event().wait()

    outside.do = forever
    dispatcher = desk.dispatcher(name, outside)
    await turn(dispatcher)
    desk.dead.append(dispatcher)
    desk.clock.advance(LEASE)
    return outside.calls


async def test_an_effect_that_kills_its_dispatchers_is_given_up(desk: Desk) -> None:
    """§OUT-71"""
    case = await requested(desk.scene)
    for number in range(5):
        assert len(await die(desk, f"d{number}")) == 1
    await turn(desk.dispatcher("last"))
    (effect,) = await desk.effects()
    assert effect.status == "DEAD_LETTER"
    assert "died 5 times" in msgspec.json.decode(effect.error_details or b"")["message"]
    assert desk.outside.calls == []
    await carry_out(
        desk.store,
        desk.scene.tenant_id,
        case.run.stream_id,
        commands.RequeueEffect(effect_id=effect.id),
        context=desk.scene.context(),
    )
    await turn(desk.dispatcher("last"))
    assert await desk.statuses() == ["COMPLETED"], "a person may think that it is not deadly any more"


async def test_a_failure_begins_the_count_anew(desk: Desk) -> None:
    """§OUT-71"""
    await requested(desk.scene)
    for number in range(5):
        await die(desk, f"d{number}")
        if number == 3:
            desk.outside.do = desk.outside.down
            await turn(desk.dispatcher("d"))
            desk.clock.advance(timedelta(minutes=5))
    desk.outside.do = desk.outside.well
    await turn(desk.dispatcher("last"))
    assert await desk.statuses() == ["COMPLETED"]


async def test_what_a_deadly_effect_takes_with_it_is_not_given_up(desk: Desk) -> None:
    """§OUT-72: they die together twice; after that each is tried by itself."""
    case = await requested(desk.scene, 4)
    deadly = effects_of(case)[2].id
    gate = asyncio.Event()

    async def late(call: rs.EffectCall) -> str:
        await gate.wait()
        return "sent"

    deaths = []
    for number in range(12):
        outside, gate = Outside(), asyncio.Event()
        outside.do = late
        dispatcher = desk.dispatcher(f"d{number}", outside)
        await turn(dispatcher)
        if deadly in {call.effect_id for call in outside.calls}:
            deaths.append(len(outside.calls))
            desk.dead.append(dispatcher)
        else:
            gate.set()
            await settle(dispatcher)
        desk.clock.advance(LEASE)
    statuses = {effect.id: effect.status for effect in await desk.effects()}
    assert statuses.pop(deadly) == "DEAD_LETTER"
    assert set(statuses.values()) == {"COMPLETED"}
    assert deaths == [4, 4, 1, 1, 1]
