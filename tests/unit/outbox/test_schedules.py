"""`SCHEDULE_TASK` carried out on the reference store: once, whoever dies or is late, and what is refused."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

import runstone as rs
from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.core import commands
from runstone.core.effect import Effect
from runstone.core.keys import schedule_stream
from runstone.core.payloads import ErrorInfo
from runstone.core.schedule import Schedule
from runstone.core.tombstone import bury
from runstone.errors import NotFound
from runstone.ingest.schedules import cancel_schedule, read_schedule, read_schedules
from runstone.outbox.builtin import inner_services
from runstone.outbox.dispatcher import Dispatcher
from runstone.ports.bell import Bell
from runstone.testing.conformance.outbox import requested
from runstone.testing.conformance.scene import LEASE, Scene
from runstone.testing.conformance.schedules import due, fired
from runstone.testing.conformance.walks import FAULTS, walk_faults
from runstone.testing.memory import MemoryData, MemoryStore

TYPE = rs.ScheduleTask.EFFECT_TYPE
NOON = datetime.fromisoformat("2024-03-01T12:00Z")


async def ask(scene: Scene, **given: Any) -> None:
    spec = rs.ScheduleTask(**{"task": "nightly", "name": "report", "cron": "0 * * * *", **given})
    await requested(scene, 1, effect_type=TYPE, spec=spec.checked())


async def dispatch(scene: Scene, store: Any = None, name: str = "d1", **given: Any) -> None:
    services = inner_services()
    dispatcher = Dispatcher(
        store or scene.store,
        {service.effect_type: service for service in services},
        worker_id=name,
        clock=scene.clock,
        new_id=scene.new_id,
        bell=Bell(),
        lease=LEASE,
        jitter=lambda: 1.0,
        **given,
    )
    await dispatcher.run_once()
    for _ in range(200):
        await asyncio.sleep(0)
    await dispatcher.drain(timedelta(0))


async def effects(scene: Scene) -> list[Effect]:
    return sorted(await scene.store.list_effects(scene.tenant_id), key=lambda effect: effect.id)


async def row(scene: Scene, name: str = "report") -> Schedule | None:
    return await scene.store.get_schedule(scene.tenant_id, schedule_stream(scene.tenant_id, name))


@pytest.fixture
def scene() -> Scene:
    return new_scene()


@pytest.fixture
def elsewhere() -> Scene:
    return new_scene()


def new_scene() -> Scene:
    data = MemoryData()

    async def open_store(clock: Any) -> MemoryStore:
        return MemoryStore(data, clock=clock)

    scene = Scene(open_store, None)  # type: ignore[arg-type]
    scene.store = MemoryStore(data, clock=scene.clock)
    scene.clock.set(NOON)
    return scene


async def test_it_is_scheduled_and_recorded_in_one_commit(scene: Scene) -> None:
    """§OUT-55, §OUT-60"""
    await ask(scene, timezone="Asia/Kolkata", arguments={"a": 1})
    woken: list[Effect] = []
    await dispatch(scene, performed=woken.append)
    (effect,) = await effects(scene)
    found = await row(scene)
    assert found is not None
    assert (found.version, found.status, found.effect_id) == (1, "ACTIVE", effect.id)
    assert found.next_at == NOON + timedelta(minutes=30), "their hours begin at half past ours"
    (event,) = await scene.store.fetch(scene.tenant_id, found.id)
    assert msgspec.json.decode(effect.execution_result or b"") == {
        "stream_id": found.id,
        "event_id": event.id,
        "name": "report",
        "version": 1,
        "next_at": "2024-03-01T12:30:00Z",
    }
    assert woken == [effect]
    assert await scene.findings(found.id) == []


async def test_the_same_name_again_replaces_it_and_no_name_is_a_name_of_its_own(scene: Scene) -> None:
    """§OUT-60"""
    for hour in (1, 2):
        await ask(scene, cron=None, run_at=NOON + timedelta(hours=hour))
        await ask(scene, name=None)
        await dispatch(scene)
    found = await row(scene)
    assert found is not None
    assert (found.version, found.next_at) == (2, NOON + timedelta(hours=2))
    keys = {effect.idempotency_key for effect in await effects(scene)}
    names = {schedule.name for schedule in await scene.store.list_schedules(scene.tenant_id)}
    assert len(names) == 3
    assert names - {"report"} < keys


async def archive(scene: Scene, stream_id: str) -> None:
    streams = await scene.store.correlation(scene.tenant_id, stream_id)
    stones = bury(streams, archive="a", bundle="b", bundle_sha256="0" * 64, now=scene.clock.now())
    assert await scene.store.forget(stones)


async def take_back(scene: Scene) -> str:
    """Cancels it; the stream that it had."""
    found = await read_schedule(scene.store, scene.tenant_id, "report")
    assert found is not None
    await cancel_schedule(scene.store, scene.tenant_id, "report", "", context=scene.context())
    return found.stream_id


async def test_the_name_of_one_that_was_archived_can_be_scheduled_again(scene: Scene) -> None:
    """§STO-57: as often as one likes."""
    streams = []
    for _ in range(3):
        assert await read_schedule(scene.store, scene.tenant_id, "report") is None
        with pytest.raises(NotFound):
            await cancel_schedule(scene.store, scene.tenant_id, "report", "", context=scene.context())
        await ask(scene)
        await dispatch(scene)
        streams.append(await take_back(scene))
        await archive(scene, streams[-1])
    assert streams == [schedule_stream(scene.tenant_id, "report", generation) for generation in range(3)]
    assert {effect.status for effect in await effects(scene)} == {"COMPLETED"}


async def test_one_that_is_archived_while_somebody_knows_it_is_scheduled_again(scene: Scene) -> None:
    """§STO-57, §OUT-57: who has it in mind finds that it is gone, and that another has its place."""
    services = {service.effect_type: service for service in inner_services()}
    dispatcher = Dispatcher(
        scene.store,
        services,
        worker_id="d1",
        clock=scene.clock,
        new_id=scene.new_id,
        bell=Bell(),
        lease=LEASE,
        jitter=lambda: 1.0,
    )
    for generation in range(2):
        await ask(scene)
        await dispatcher.run_once()
        for _ in range(200):
            await asyncio.sleep(0)
        found = await read_schedule(scene.store, scene.tenant_id, "report")
        assert found is not None
        assert (found.stream_id, found.version) == (schedule_stream(scene.tenant_id, "report", generation), 1)
        await archive(scene, await take_back(scene))
    await dispatcher.drain(timedelta(0))


async def test_one_that_came_from_another_store_has_its_name(scene: Scene, elsewhere: Scene) -> None:
    """§ENT-32: also where none of that name was archived before."""
    elsewhere.tenant_id = scene.tenant_id
    for _ in range(2):
        await ask(elsewhere)
        await dispatch(elsewhere)
        gone = await take_back(elsewhere)
        await archive(elsewhere, gone)
    await ask(elsewhere)
    await dispatch(elsewhere)
    stream_id = schedule_stream(scene.tenant_id, "report", 2)
    bundle = read_bundle(await export_bundle(elsewhere.store, scene.tenant_id, stream_id))
    assert await import_bundle(scene.store, bundle, unfinished=True)
    await ask(scene, cron="30 * * * *")
    await dispatch(scene)
    found = await read_schedule(scene.store, scene.tenant_id, "report")
    assert found is not None
    assert (found.stream_id, found.version, found.cron) == (stream_id, 2, "30 * * * *")
    assert await scene.findings(stream_id) == []
    assert await take_back(scene) == stream_id
    await archive(scene, stream_id)
    await ask(scene)
    await dispatch(scene)
    again = await read_schedule(scene.store, scene.tenant_id, "report")
    assert again is not None
    assert again.stream_id == schedule_stream(scene.tenant_id, "report"), "nobody was there before"


async def test_a_row_that_leads_to_another_schedule_is_not_followed(scene: Scene) -> None:
    class Damaged(MemoryStore):
        async def find_schedule(self, tenant_id: str, name: str) -> Any:
            return await super().find_schedule(tenant_id, "other")

    await ask(scene, name="other")
    await dispatch(scene)
    other = await row(scene, "other")
    await ask(scene)
    assert isinstance(scene.store, MemoryStore)
    await dispatch(scene, Damaged(scene.store.data, clock=scene.clock))
    assert await row(scene, "other") == other
    assert sorted(effect.status for effect in await effects(scene)) == ["COMPLETED", "FAILED"]


async def test_one_that_is_archived_while_it_is_read_is_not_there(scene: Scene) -> None:
    class Archived(MemoryStore):
        async def fetch(self, tenant_id: str, stream_id: str, **named: Any) -> Any:
            await archive(scene, stream_id)
            return await super().fetch(tenant_id, stream_id, **named)

    await ask(scene)
    await dispatch(scene)
    await take_back(scene)
    assert isinstance(scene.store, MemoryStore)
    store = Archived(scene.store.data, clock=scene.clock)
    assert await read_schedules(store, scene.tenant_id) == []


async def test_it_says_whose_code_asked(scene: Scene) -> None:
    """§OUT-78"""
    case = await scene.running(orchestrator_version="2.7")
    spec = rs.ScheduleTask(task="nightly", name="report", cron="0 * * * *")
    await scene.carry(
        case,
        commands.StartStep(step_key="send", step_type="EFFECT_REQUEST"),
        commands.RequestEffect(step_key="send", effect_type=TYPE, spec=spec.checked()),
    )
    await dispatch(scene)
    found = await row(scene)
    assert found is not None
    (event,) = await scene.store.fetch(scene.tenant_id, found.id)
    assert msgspec.json.decode(event.event_data)["orchestrator_version"] == "2.7"


async def test_what_has_fired_often_is_replaced_without_reading_that(scene: Scene) -> None:
    class Read(MemoryStore):
        events = 0

        async def load(self, tenant_id: str, stream_id: str, **named: Any) -> Any:
            stream = await super().load(tenant_id, stream_id, **named)
            if stream is not None and stream.head.kind == "SCHEDULE":
                Read.events += len(stream.events)
            return stream

    await ask(scene)
    await dispatch(scene)
    for _ in range(20):
        scene.clock.advance(timedelta(hours=1))
        commit, _ = fired(scene, (await due(scene))[0], scene.clock.now() + timedelta(hours=1))
        await scene.store.commit(commit)
    assert isinstance(scene.store, MemoryStore)
    await ask(scene, cron="30 * * * *")
    await dispatch(scene, Read(scene.store.data, clock=scene.clock))
    found = await row(scene)
    assert found is not None
    assert (found.version, found.fired, found.cron) == (2, 20, "30 * * * *")
    assert Read.events == 0
    assert await scene.findings(found.id) == []


async def test_a_clock_that_was_set_back_has_it_due_no_earlier(scene: Scene) -> None:
    """§OUT-63"""
    await ask(scene)
    await dispatch(scene)
    scene.clock.advance(timedelta(hours=-5))
    await ask(scene)
    await dispatch(scene)
    found = await row(scene)
    assert found is not None
    assert (found.version, found.next_at) == (2, NOON + timedelta(hours=1))


async def test_whoever_asked_knows_what_can_be_started(scene: Scene) -> None:
    """§OUT-62: whoever carries it out may be another app, or an older one."""
    await ask(scene, task="of another app")
    await dispatch(scene)
    found = await row(scene)
    assert found is not None
    assert (found.task, found.status) == ("of another app", "ACTIVE")


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"cron": "0 0 30 2 *"}, "InvalidPayload", "/cron"),
        ({"timezone": "Mars/Olympus"}, "InvalidPayload", "/timezone"),
    ],
)
async def test_what_cannot_be_scheduled_is_a_dead_letter_at_once(
    scene: Scene, given: dict[str, Any], code: str, said: str
) -> None:
    """Both are refused before that, when a handler asks for them (§OUT-61)."""
    await ask(scene, **given)
    await dispatch(scene)
    (effect,) = await effects(scene)
    assert effect.status == "DEAD_LETTER"
    error = msgspec.json.decode(effect.error_details or b"", type=ErrorInfo)
    assert (error.code, error.retryable) == (code, False)
    assert said in error.message
    assert await row(scene) is None


async def scenario(scene: Scene) -> str:
    """An effect is asked for, and dispatchers die over it until one does not."""
    store = scene.store
    scene.store = store.store  # type: ignore[attr-defined]  # that it is asked for is not to fail
    await ask(scene)
    scene.store = store
    for number in range(4):
        with suppress(*FAULTS):
            await dispatch(scene, name=f"d{number}")
        scene.clock.advance(LEASE * 2)
    return schedule_stream(scene.tenant_id, "report")


async def check(scene: Scene, stream_id: str) -> None:
    (effect,) = await effects(scene)
    assert effect.status == "COMPLETED"
    events = await scene.store.fetch(scene.tenant_id, stream_id)
    assert [event.event_type for event in events] == ["TASK_SCHEDULED"]
    assert await scene.findings(stream_id) == []
    assert await scene.findings(effect.run_id) == []


async def test_whatever_fails_it_is_scheduled_once() -> None:
    """§OUT-55, §STO-19: refused, answer lost, cancelled before, midway and after, at every operation."""
    opened: list[MemoryData] = []

    async def open_store(clock: Any) -> MemoryStore:
        """Each walk opens it twice: empty, and again to be looked at."""
        opened.append(opened[-1] if len(opened) % 2 else MemoryData())
        return MemoryStore(opened[-1], clock=clock)

    assert await walk_faults(open_store, scenario, check) > 10
