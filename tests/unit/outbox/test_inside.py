"""Effects that are carried out in our own store, on the reference store: once, whoever dies or is late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import runstone as rs
from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.audit.verify import verify_all
from runstone.core import codec, commands
from runstone.core.commit import Commit, StreamWriter
from runstone.core.decide import Case
from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.keys import entity_stream
from runstone.core.payloads import EntityUpdated, ErrorInfo
from runstone.core.stream import Stream
from runstone.errors import DuplicateKey, OutcomeUnknown, StoreBusy
from runstone.outbox.alerts import Alerts
from runstone.outbox.dispatcher import Dispatcher
from runstone.outbox.executors.entities import EntityUpdates
from runstone.outbox.services import Service
from runstone.ports.bell import Bell
from runstone.ports.executor import EffectCall, InnerExecutor, Outcome
from runstone.testing.conformance.outbox import requested
from runstone.testing.conformance.scene import LEASE, Scene
from runstone.testing.conformance.walks import walk_faults
from runstone.testing.memory import MemoryData, MemoryStore

TYPE = rs.SorUpdate.EFFECT_TYPE


def spec(change: dict[str, Any] | None = None, entity_id: str = "42", **more: Any) -> dict[str, Any]:
    asked = rs.SorUpdate(
        entity_type="CASE",
        entity_id=entity_id,
        change=change or {"n": 1},
        evidence_pack={"by": "test"},
        **more,
    )
    return asked.checked()


class Desk:
    """A store, and dispatchers on it."""

    def __init__(self) -> None:
        self.data = MemoryData()
        self.bell = Bell()
        self.scene = Scene(self.open_store, None)  # type: ignore[arg-type]
        self.scene.store = MemoryStore(self.data, clock=self.scene.clock)

    async def open_store(self, clock: Any) -> MemoryStore:
        return MemoryStore(self.data, clock=clock)

    async def asked(self, count: int = 1, delivery: Any = "at_least_once", **given: Any) -> Case:
        return await requested(self.scene, count, effect_type=TYPE, spec=spec(**given), delivery=delivery)

    def dispatcher(
        self, name: str = "d1", store: Any = None, executor: InnerExecutor | None = None, **given: Any
    ) -> Dispatcher:
        service = Service(spec=rs.SorUpdate, executor=executor or EntityUpdates())
        return Dispatcher(
            store or self.scene.store,
            {TYPE: service},
            worker_id=name,
            clock=self.scene.clock,
            new_id=self.scene.new_id,
            bell=self.bell,
            lease=LEASE,
            jitter=lambda: 1.0,
            **given,
        )

    async def effects(self) -> list[Effect]:
        return sorted(await self.scene.store.list_effects(self.scene.tenant_id), key=lambda one: one.id)

    async def statuses(self) -> list[str]:
        return [effect.status for effect in await self.effects()]

    def stream(self, entity_id: str = "42") -> str:
        return entity_stream(self.scene.tenant_id, "CASE", entity_id)

    async def entity(self, entity_id: str = "42") -> Entity | None:
        return await self.scene.store.get_entity(self.scene.tenant_id, self.stream(entity_id))

    async def prove(self) -> Counter[str]:
        """Every effect that was completed stands exactly once in its entity's stream; how often each."""
        written: Counter[str] = Counter()
        for stream_id, stream in self.data.streams.items():
            assert await self.scene.findings(stream_id) == []
            if stream.head.kind == "ENTITY":
                changes = [
                    msgspec.json.decode(event.event_data, type=EntityUpdated) for event in stream.events
                ]
                assert [change.version for change in changes] == list(range(1, len(changes) + 1))
                written.update(change.effect_id for change in changes)
        done = [effect.id for effect in await self.effects() if effect.status == "COMPLETED"]
        assert written == Counter(done)
        return written


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def turn(dispatcher: Dispatcher) -> int:
    claimed = await dispatcher.run_once()
    for _ in range(200):
        await asyncio.sleep(0)
    return claimed


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_it_is_done_and_recorded_in_one_commit(desk: Desk, delivery: str) -> None:
    """§OUT-55, §OUT-58: the beginning too rides with the outcome."""
    case = await desk.asked(delivery=delivery, change={"status": "OPEN"})
    before = desk.data.commits
    await turn(desk.dispatcher())
    assert desk.data.commits == before + 1
    (effect,) = await desk.effects()
    entity = await desk.entity()
    assert entity is not None
    assert (entity.version, bytes(entity.data), entity.run_id) == (
        1,
        b'{"status":"OPEN"}',
        case.run.stream_id,
    )
    (event,) = desk.data.streams[desk.stream()].events
    assert msgspec.json.decode(effect.execution_result or b"") == {
        "stream_id": entity.id,
        "version": 1,
        "event_id": event.id,
    }
    of_run = desk.data.streams[case.run.stream_id].events
    request = next(one for one in of_run if one.event_type == "EFFECT_REQUESTED")
    assert event.causation_id == request.id
    assert (event.trace_id, event.span_id) == (of_run[-1].trace_id, of_run[-1].span_id)
    assert [one.event_type for one in of_run[-2:]] == ["EFFECT_EXECUTING", "EFFECT_COMPLETED"]
    await desk.prove()


async def test_many_who_write_to_one_entity_wait_for_each_other(desk: Desk) -> None:
    """In one process nobody decides in vain: as many commits as changes."""
    for number in range(20):
        await desk.asked(count=2, change={f"k{number}": number})
    before = desk.data.commits
    await turn(desk.dispatcher())
    assert await desk.statuses() == ["COMPLETED"] * 40
    assert desk.data.commits == before + 40
    entity = await desk.entity()
    assert entity is not None
    assert entity.version == 40
    assert len(await desk.prove()) == 40


async def test_dispatchers_that_know_nothing_of_each_other_decide_again(desk: Desk) -> None:
    """§OUT-57: what one of them keeps is out of date."""
    first, second = desk.dispatcher("d1"), desk.dispatcher("d2")
    for number in range(6):
        await desk.asked(change={"n": number})
        await turn((first, second)[number % 2])
    entity = await desk.entity()
    assert entity is not None
    assert (entity.version, bytes(entity.data)) == (6, b'{"n":5}')
    assert len(await desk.prove()) == 6


async def test_a_conflict_is_decided_on_the_latest_and_is_final(desk: Desk) -> None:
    """§OUT-57, §OUT-59"""
    told: list[str] = []

    async def notify(title: str, text: str) -> None:
        told.append(text)

    alerts = Alerts(notify, clock=desk.scene.clock)
    first, second = desk.dispatcher("d1", alerts=alerts), desk.dispatcher("d2")
    await desk.asked(change={"n": 1}, expected_version=0)
    await turn(first)
    await desk.asked(change={"n": 2}, expected_version=1)
    await turn(second)
    await desk.asked(change={"n": 3}, expected_version=2)
    await turn(first)  # which has seen version 1 last
    assert await desk.statuses() == ["COMPLETED"] * 3
    await desk.asked(change={"n": 4}, expected_version=2)
    await turn(first)
    (conflict,) = [effect for effect in await desk.effects() if effect.status != "COMPLETED"]
    assert conflict.status == "DEAD_LETTER"
    assert conflict.error_details is not None
    assert msgspec.json.decode(conflict.error_details, type=ErrorInfo).code == "VERSION_CONFLICT"
    assert len(told) == 1
    await desk.prove()


async def test_an_entity_that_would_be_too_large_stays_as_it_is(desk: Desk) -> None:
    """What it is asked for is small enough each time; nothing is tried again."""
    dispatcher = desk.dispatcher()
    for name in "ab":
        await desk.asked(change={name: "x" * (codec.MAX_BYTES // 2)})
        await turn(dispatcher)
    assert sorted(await desk.statuses()) == ["COMPLETED", "DEAD_LETTER"]
    (refused,) = [effect for effect in await desk.effects() if effect.error_details is not None]
    assert "over the bound" in msgspec.json.decode(refused.error_details or b"", type=ErrorInfo).message
    assert len(await desk.prove()) == 1


class Gate(MemoryStore):
    """Holds commits up until it is opened."""

    def __init__(self, data: MemoryData, clock: Any) -> None:
        super().__init__(data, clock=clock)
        self.opened = asyncio.Event()

    async def commit(self, commit: Commit) -> Any:
        await self.opened.wait()
        return await super().commit(commit)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("done_first", [True, False])
async def test_who_lost_its_claim_writes_nothing(desk: Desk, done_first: bool, delivery: str) -> None:
    """§OUT-13, §OUT-38: whether or not the other has written by then."""
    await desk.asked(delivery=delivery)
    gate = Gate(desk.data, desk.scene.clock)
    slow, quick = desk.dispatcher("slow", gate), desk.dispatcher("quick")
    await turn(slow)
    desk.scene.clock.advance(LEASE * 2)
    if done_first:
        assert await turn(quick) == 1
        gate.opened.set()
        await turn(slow)
    else:
        held = await desk.scene.store.claim_effects("quick", types=[TYPE], limit=1, lease=LEASE)
        assert len(held) == 1
        gate.opened.set()
        await turn(slow)
        assert await desk.statuses() == ["PENDING"]
        assert await desk.entity() is None
        desk.scene.clock.advance(LEASE * 2)
        assert await turn(quick) == 1
    assert await desk.statuses() == ["COMPLETED"]
    assert len(await desk.prove()) == 1


async def test_what_is_withdrawn_meanwhile_is_not_done(desk: Desk) -> None:
    case = await desk.asked()
    gate = Gate(desk.data, desk.scene.clock)
    dispatcher = desk.dispatcher("d1", gate)
    await turn(dispatcher)
    await desk.scene.carry(case, commands.CancelRun(exit_reason="ENOUGH"))
    gate.opened.set()
    await turn(dispatcher)
    assert await desk.statuses() == ["CANCELLED"]
    assert await desk.entity() is None


class Mute(MemoryStore):
    """Writes, and never says so."""

    async def commit(self, commit: Commit) -> Any:
        await super().commit(commit)
        raise OutcomeUnknown("no answer")


@pytest.mark.parametrize(("expected", "status"), [(0, "COMPLETED"), (7, "DEAD_LETTER")])
async def test_an_outcome_whose_answer_was_lost_is_told_like_any_other(
    desk: Desk, expected: int, status: str
) -> None:
    """It stands in the log: the run is woken, and the operators are alerted of a dead letter (§OUT-29)."""
    told: list[str] = []

    async def notify(title: str, text: str) -> None:
        told.append(text)

    performed: list[str] = []
    case = await desk.asked(expected_version=expected)
    dispatcher = desk.dispatcher(
        store=Mute(desk.data, clock=desk.scene.clock),
        alerts=Alerts(notify, clock=desk.scene.clock),
        performed=lambda effect: performed.append(effect.status),
    )
    rung: list[str] = []
    desk.bell.listen(rung.append)
    await turn(dispatcher)
    assert rung == [case.run.stream_id]
    assert await desk.statuses() == [status]
    assert performed == [status]
    assert len(told) == (status == "DEAD_LETTER")
    await desk.prove()


class Refusing(EntityUpdates):
    """Records something, and fails all the same."""

    def __init__(self, outcome: Outcome | Exception) -> None:
        self.outcome = outcome

    def perform(self, call: EffectCall, stream: StreamWriter[Any], cause: str) -> Outcome:
        super().perform(call, stream, cause)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


_BUSY = ErrorInfo(category="INFRASTRUCTURE", code="BUSY", message="Not now", retryable=True)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(
    ("outcome", "status"),
    [(rs.Failed(_BUSY), "FAILED"), (ValueError("no"), "FAILED"), (rs.TerminalError("never"), "DEAD_LETTER")],
)
async def test_a_failure_writes_nothing_and_is_never_in_doubt(
    desk: Desk, outcome: Any, status: str, delivery: str
) -> None:
    """§OUT-55"""
    await desk.asked(delivery=delivery)
    await turn(desk.dispatcher("d1", executor=Refusing(outcome)))
    assert await desk.statuses() == [status]
    assert await desk.entity() is None
    if status == "FAILED":
        desk.scene.clock.advance(timedelta(minutes=5))
        await turn(desk.dispatcher("d2"))
        assert await desk.statuses() == ["COMPLETED"]
        (event,) = desk.data.streams[desk.stream()].events
        of_run = desk.data.streams[(await desk.effects())[0].run_id].events
        assert [one.event_type for one in of_run if one.id == event.causation_id] == ["EFFECT_RETRYING"]
    await desk.prove()


async def test_a_stream_that_is_not_how_it_was_is_read_from_the_beginning(desk: Desk) -> None:
    """A database that was put back under a process that goes on."""
    dispatcher = desk.dispatcher()
    for number in range(2):
        await desk.asked(change={"n": number})
        await turn(dispatcher)
    stream = desk.data.streams.pop(desk.stream())
    desk.data.event_ids -= {event.id for event in stream.events}
    for number, other in enumerate((desk.dispatcher("d2"), dispatcher), 1):
        await desk.asked(change={f"m{number}": number})
        await turn(other)
    entity = await desk.entity()
    assert entity is not None
    assert (entity.version, bytes(entity.data)) == (2, b'{"m1":1,"m2":2}')
    assert await desk.scene.findings(desk.stream()) == []


class Counting(MemoryStore):
    """Counts the events of entities that are read."""

    read = 0

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        stream = await super().load(tenant_id, stream_id, after_seq=after_seq)
        if stream is not None and stream.head.kind == "ENTITY":
            self.read += len(stream.events)
        return stream


async def test_a_change_costs_no_more_after_many(desk: Desk) -> None:
    """Who knows nothing of an entity reads its first change and its last, however many there were."""
    dispatcher = desk.dispatcher()
    for number in range(60):
        await desk.asked(change={f"k{number}": "x" * 50})
        await turn(dispatcher)
        desk.scene.clock.advance(1)
    before = await desk.entity()
    store = Counting(desk.data, clock=desk.scene.clock)
    await desk.asked(change={"k0": None}, expected_version=60)
    await turn(desk.dispatcher("d2", store))
    entity = await desk.entity()
    assert before is not None
    assert entity is not None
    assert (entity.version, entity.created_at) == (61, before.created_at)
    last = msgspec.json.decode(desk.data.streams[desk.stream()].events[-1].event_data, type=EntityUpdated)
    assert msgspec.json.decode(last.data) == {f"k{number}": "x" * 50 for number in range(1, 60)}
    assert store.read == 1
    assert len(await desk.prove()) == 61


async def test_that_there_is_nothing_to_write_is_decided_on_the_latest(desk: Desk) -> None:
    """§OUT-57: nothing of the stream is compared with its head then."""
    seen: list[int] = []

    class Once(EntityUpdates):
        """Changes an entity that is not there yet, and leaves any other as it is."""

        def perform(self, call: EffectCall, stream: StreamWriter[Any], cause: str) -> Outcome:
            if stream.fold.version == 0:
                return super().perform(call, stream, cause)
            seen.append(stream.fold.version)
            return rs.Succeeded(stream.fold.version)

    first, second = desk.dispatcher("d1", executor=Once()), desk.dispatcher("d2")
    for dispatcher in (first, second, first):
        await desk.asked()
        await turn(dispatcher)
    assert await desk.statuses() == ["COMPLETED"] * 3
    assert seen == [1, 2]


@asynccontextmanager
async def dispatching(scene: Scene, number: int) -> AsyncIterator[Dispatcher]:
    desk = Desk()
    desk.scene = scene
    dispatcher = desk.dispatcher(f"d{number}", scene.store)
    try:
        yield dispatcher
    finally:
        for call in list(dispatcher._calls):
            call.cancel()


async def test_it_survives_a_fault_of_any_operation() -> None:
    """The dispatcher dies before or after its commit, or the answer is lost: done once, in every case."""
    desks: list[Desk] = []

    async def open_store(clock: Any) -> MemoryStore:
        if not desks or desks[-1].scene.clock is not clock:
            desks.append(Desk())
            desks[-1].scene.clock = clock
        return MemoryStore(desks[-1].data, clock=clock)

    async def scenario(scene: Scene) -> str:
        faulty = scene.store
        scene.store = await open_store(scene.clock)
        case = await requested(scene, 2, effect_type=TYPE, spec=spec(), delivery="at_most_once")
        scene.store = faulty
        for number in range(8):
            async with dispatching(scene, number) as dispatcher:
                try:
                    await turn(dispatcher)
                    await asyncio.sleep(0.06 if dispatcher._calls else 0)  # a store in trouble is asked again
                    await turn(dispatcher)
                except asyncio.CancelledError:
                    pass
            scene.clock.advance(LEASE * 2)
        return case.run.stream_id

    async def check(scene: Scene, run_id: str) -> None:
        desk = desks[-1]
        desk.scene = scene
        assert await desk.statuses() == ["COMPLETED"] * 2
        assert len(await desk.prove()) == 2

    assert await walk_faults(open_store, scenario, check) > 10


class Copies:
    """A run as it was before its effect was done, beside what that has written (`import --unfinished`)."""

    def __init__(self, old: Desk) -> None:
        self.old = old
        self.new = Desk()
        self.new.scene.tenant_id = old.scene.tenant_id
        self.new.scene.clock = old.scene.clock
        self.new.scene.store = MemoryStore(self.new.data, clock=old.scene.clock)

    async def carry(self, correlation_id: str) -> bytes:
        return await export_bundle(self.old.scene.store, self.old.scene.tenant_id, correlation_id)

    async def bring(self, *bundles: bytes) -> None:
        for content in bundles:
            assert await import_bundle(self.new.scene.store, read_bundle(content), unfinished=True)


@pytest.mark.parametrize("later", [0, 3, 250])
async def test_what_was_done_in_another_life_of_its_run_is_its_outcome(desk: Desk, later: int) -> None:
    """§OUT-75: it is not done again, nor tried for ever, however much was written since."""
    copies = Copies(desk)
    before = (await desk.asked(change={"by": "it"}), await desk.asked(change={"by": "other"}))
    runs = [await copies.carry(case.run.run.correlation_id) for case in before if case.run.run]
    dispatcher = desk.dispatcher()
    await turn(dispatcher)
    for _ in range(later):
        await desk.asked(change={"later": True})
    while await turn(dispatcher):
        pass
    await copies.bring(*runs, await copies.carry(desk.stream()))
    history = list(copies.new.data.streams[desk.stream()].events)
    assert len(history) == 2 + later

    dispatcher = copies.new.dispatcher("d2")
    await turn(dispatcher)
    assert copies.new.data.streams[desk.stream()].events == history
    effects = await copies.new.effects()
    assert [effect.status for effect in effects] == ["COMPLETED"] * 2
    for effect in effects:
        first = await desk.scene.store.get_effect(effect.tenant_id, effect.id)
        assert first is not None
        assert effect.execution_result == first.execution_result
    assert not any([part.findings async for part in verify_all(copies.new.scene.store)])

    await copies.new.asked(change={"by": "the next"})
    await turn(dispatcher)
    entity = await copies.new.entity()
    assert entity is not None
    assert entity.version == 3 + later


@pytest.mark.parametrize("later", [0, 3])
async def test_what_was_done_in_another_life_does_not_conflict_with_itself(desk: Desk, later: int) -> None:
    """§OUT-75, §OUT-59: the version that it expects is gone because it was there before."""
    copies = Copies(desk)
    dispatcher = desk.dispatcher()
    runs: list[bytes] = []
    for expected in range(2):
        for change in ({"by": "it"}, {"by": "one too late"}):
            case = await desk.asked(change=change, expected_version=expected)
            assert case.run.run is not None
            runs.append(await copies.carry(case.run.run.correlation_id))
        await turn(dispatcher)
    for _ in range(later):
        await desk.asked()
        await turn(dispatcher)
    await copies.bring(*runs, await copies.carry(desk.stream()))
    history = list(copies.new.data.streams[desk.stream()].events)
    await turn(copies.new.dispatcher("d2"))
    assert copies.new.data.streams[desk.stream()].events == history
    effects = await copies.new.effects()
    assert sorted(effect.status for effect in effects) == ["COMPLETED"] * 2 + ["DEAD_LETTER"] * 2
    for effect in effects:
        first = await desk.scene.store.get_effect(effect.tenant_id, effect.id)
        assert first is not None
        assert (effect.status, effect.execution_result) == (first.status, first.execution_result)


async def test_a_search_for_it_that_was_cut_off_is_made_again(desk: Desk) -> None:
    """§OUT-75: what could not be read was not looked through."""
    case = await desk.asked()
    assert case.run.run is not None
    copies = Copies(desk)
    run = await copies.carry(case.run.run.correlation_id)
    await turn(desk.dispatcher())
    await copies.bring(run, await copies.carry(desk.stream()))
    troubles = [StoreBusy("not now")]

    class Busy(MemoryStore):
        async def fetch(self, tenant_id: str, stream_id: str, **named: Any) -> Any:
            if stream_id == desk.stream() and troubles:
                raise troubles.pop()
            return await super().fetch(tenant_id, stream_id, **named)

    dispatcher = copies.new.dispatcher("d2", Busy(copies.new.data, clock=desk.scene.clock))
    await turn(dispatcher)
    await asyncio.wait_for(asyncio.gather(*dispatcher._calls), 60)
    assert troubles == []
    assert await copies.new.statuses() == ["COMPLETED"]


async def test_what_was_done_in_another_life_survives_a_fault_of_any_operation() -> None:
    """Its record too is one commit: it stands there once, whoever dies, and whatever answer is lost."""
    old = Desk()
    case = await old.asked()
    assert case.run.run is not None
    copies = Copies(old)
    run = await copies.carry(case.run.run.correlation_id)
    await turn(old.dispatcher())
    bundles = (run, await copies.carry(old.stream()))
    desks: list[Desk] = []

    async def open_store(clock: Any) -> MemoryStore:
        if not desks or desks[-1].scene.clock is not clock:
            copies = Copies(old)
            await copies.bring(*bundles)
            desks.append(copies.new)
            desks[-1].scene.clock = clock
            clock.advance(max(timedelta(0), old.scene.clock.now() - clock.now()))
        return MemoryStore(desks[-1].data, clock=clock)

    async def scenario(scene: Scene) -> str:
        for number in range(4):
            async with dispatching(scene, number) as dispatcher:
                try:
                    await turn(dispatcher)
                    await asyncio.sleep(0.06 if dispatcher._calls else 0)
                    await turn(dispatcher)
                except asyncio.CancelledError:
                    pass
            scene.clock.advance(LEASE * 2)
        return case.run.stream_id

    async def check(scene: Scene, run_id: str) -> None:
        desk = desks[-1]
        (effect,) = await desk.scene.store.list_effects(old.scene.tenant_id)
        assert effect.status == "COMPLETED"
        assert len(desk.data.streams[old.stream()].events) == 1
        of_run = [event.event_type for event in desk.data.streams[run_id].events]
        assert of_run.count("EFFECT_COMPLETED") == 1

    assert await walk_faults(open_store, scenario, check) > 10


class Racing(MemoryStore):
    """The first commit of an entity lands, and what is heard of it is that it is a duplicate."""

    async def commit(self, commit: Commit) -> Any:
        done = await super().commit(commit)
        if commit.writes[0].kind == "ENTITY" and not done.repeated:
            raise DuplicateKey("event key")
        return done


async def test_its_own_outcome_is_not_taken_for_that_of_another_life(desk: Desk) -> None:
    """§OUT-75: the run is read after the stream, and has the outcome by then."""
    case = await desk.asked()
    await turn(desk.dispatcher(store=Racing(desk.data, clock=desk.scene.clock)))
    assert await desk.statuses() == ["COMPLETED"]
    assert len(await desk.prove()) == 1
    types = [event.event_type for event in desk.data.streams[case.run.stream_id].events]
    assert types.count("EFFECT_COMPLETED") == 1
    assert "EFFECT_LATE_OUTCOME" not in types
