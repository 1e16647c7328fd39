"""The dispatcher, turn by turn, on the reference store and a clock that the test owns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest
import pytest_asyncio
from msgspec import UNSET, Raw

import runstone as rs
from runstone.core import commands
from runstone.core.decide import Case
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.errors import OutcomeUnknown, StoreBusy, UnknownEventType
from runstone.outbox.circuit import Circuits
from runstone.outbox.dispatcher import Dispatcher
from runstone.outbox.services import Service, as_executor
from runstone.ports.bell import Bell
from runstone.ports.cases import carry_out
from runstone.testing.conformance.outbox import effects_of, requested
from runstone.testing.conformance.scene import Scene
from runstone.testing.memory import MemoryData, MemoryStore

LEASE = timedelta(seconds=30)


class Notice(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "NOTIFY_USER"

    user_id: str


class Outside:
    """Does what the test wants, and notes who asked."""

    def __init__(self) -> None:
        self.calls: list[rs.EffectCall] = []
        self.host: str | None = "host"
        self.do: Callable[[rs.EffectCall], Awaitable[Any]] = self.well

    async def well(self, call: rs.EffectCall) -> Any:
        return "sent"

    async def down(self, call: rs.EffectCall) -> Any:
        error = ErrorInfo(category="EXTERNAL", code="DOWN", message="down", retryable=True)
        return rs.Failed(error, target_down=True)

    async def execute(self, call: rs.EffectCall) -> Any:
        self.calls.append(call)
        return await self.do(call)

    def target(self, spec: rs.EffectSpec) -> str | None:
        return self.host


class Desk:
    """A store, and dispatchers on it."""

    def __init__(self) -> None:
        data = MemoryData()

        async def open_store(clock: Any) -> Any:
            return MemoryStore(data, clock=clock)

        self.scene = Scene(open_store, None)  # type: ignore[arg-type]
        self.store = self.scene.store = MemoryStore(data, clock=self.scene.clock)
        self.clock = self.scene.clock
        self.outside = Outside()
        self.bell = Bell()
        self.dead: list[Dispatcher] = []

    def dispatcher(self, name: str = "d1", outside: Outside | None = None, **given: Any) -> Dispatcher:
        service = Service(spec=Notice, executor=as_executor(outside or self.outside))
        options: dict[str, Any] = {
            "worker_id": name,
            "clock": self.clock,
            "new_id": self.scene.new_id,
            "bell": self.bell,
            "lease": LEASE,
            "jitter": lambda: 1.0,
        }
        return Dispatcher(self.store, {"NOTIFY_USER": service}, **options | given)

    async def effects(self) -> list[Effect]:
        return sorted(await self.store.list_effects(self.scene.tenant_id), key=lambda effect: effect.id)

    async def statuses(self) -> list[str]:
        return [effect.status for effect in await self.effects()]

    async def cancel(self, case: Case) -> None:
        await carry_out(
            self.store,
            self.scene.tenant_id,
            case.run.stream_id,
            commands.CancelRun(exit_reason="ENOUGH"),
            context=self.scene.context(),
        )

    def types(self, case: Case) -> list[str]:
        events = self.store.data.streams[case.run.stream_id].events
        return [event.event_type for event in events if event.event_type.startswith("EFFECT_")]


async def settle(dispatcher: Dispatcher) -> None:
    """Until nothing is on its way that does not wait for the test."""
    for _ in range(60):
        await asyncio.sleep(0)


async def turn(dispatcher: Dispatcher) -> int:
    claimed = await dispatcher.run_once()
    await settle(dispatcher)
    return claimed


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    calls = [call for dispatcher in desk.dead for call in dispatcher._calls]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


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
    async with asyncio.timeout(10):
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


# Effects that kill who executes them


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


async def test_a_call_that_takes_too_long_is_a_failure(desk: Desk) -> None:
    """§OUT-11"""
    await requested(desk.scene, metadata=Raw(b'{"timeout_ms":5}'))

    async def never(call: rs.EffectCall) -> None:
        await asyncio.Event().wait()

    desk.outside.do = never
    await turn(desk.dispatcher())
    async with asyncio.timeout(10):
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


# A store that comes and goes


async def wait_for_calls(dispatcher: Dispatcher) -> None:
    async with asyncio.timeout(10):
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
    assert [await turn(dispatcher) for _ in range(4)] == [2, 2, 0, 0]
    desk.clock.advance(LEASE - timedelta(seconds=1))
    await dispatcher.beat_once()
    desk.clock.advance(LEASE - timedelta(seconds=1))
    assert await desk.store.claim_effects("d2", types=["NOTIFY_USER"], limit=10, lease=LEASE)
    away.set()
    await settle(dispatcher)
    assert sorted(await desk.statuses()) == ["COMPLETED"] * 4 + ["PENDING"] * 6, "they kept their leases"


# What could end it


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


async def test_who_cannot_keep_leases_ends(desk: Desk) -> None:
    """An error of ours in the heartbeat: to go on without it would have everything long sent twice."""
    dispatcher = desk.dispatcher(poll=60.0, lease=timedelta(milliseconds=1))

    async def broken() -> None:
        raise ZeroDivisionError

    dispatcher.beat_once = broken  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError):
            await dispatcher.run()


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


# Leaving


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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
        await dispatcher.drain(timedelta(0))
    desk.store.extend_effects = extend  # type: ignore[method-assign]
    assert desk.outside.calls == []
    assert len(await claim("d2", types=["NOTIFY_USER"], limit=1, lease=LEASE)) == 1


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
