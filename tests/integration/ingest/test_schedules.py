"""Schedules on real stores: from a handler to the run that its task is started as, whoever else looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

import runstone as rs
from runstone.audit.archive import Archive
from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.audit.rebuild import rebuild_all
from runstone.audit.retention import rest, retain
from runstone.audit.verify import verify_all
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.keys import schedule_stream
from runstone.core.schedule import CHANNEL
from runstone.engine.tasks import HandlerTasks
from runstone.errors import CommandRefused, CommitRefused
from runstone.ingest.scheduler import Scheduler
from runstone.ports.bell import Bell
from runstone.ports.clock import SystemClock, new_id
from runstone.ports.store import Store
from runstone.stores.postgres import PostgresStore
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.scene import Scene
from runstone.testing.conformance.schedules import put
from tests.integration.audit.columns import Behind

pytestmark = pytest.mark.asyncio

app = rs.App("desk")
ONCE = schedule_stream(DEFAULT_TENANT, "once")
Open = Callable[[Any], Awaitable[Store]]


@app.on()
async def nightly(run: rs.Run, what: dict[str, Any] | None = None) -> str:
    return f"did {what}"


@app.on()
async def ask(run: rs.Run, word: str) -> dict[str, Any]:
    task = rs.ScheduleTask(task="nightly", run_at=run.now(), arguments={"word": word}, name=word)
    done: dict[str, Any] = await run.effect(task, wait=True)
    return done


async def eventually(found: Callable[[], Awaitable[bool]]) -> None:
    """Waits until it is so."""
    for _ in range(1500):
        if await found():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never was")


async def findings(store: Store, archive: Archive | None = None) -> list[str]:
    parts = [part async for part in verify_all(store, archive=archive)]
    return [str(finding) for part in parts for finding in part.findings]


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A run has scheduled a task, whose time came at once."""
    async with await SqliteStore.open(tmp_path / "desk.db") as store:
        async with app.running(store):
            done = await (await app.start(ask, "once", key="ask")).result()
            assert (done["stream_id"], done["name"], done["version"]) == (ONCE, "once", 1)

            async def ended() -> bool:
                return await store.count_runs() == {"COMPLETED": 2}

            await eventually(ended)
        yield store


async def test_a_handler_schedules_and_its_task_is_started(store: SqliteStore) -> None:
    row = await store.get_schedule(DEFAULT_TENANT, ONCE)
    assert row is not None
    assert (row.status, row.fired) == ("DONE", 1)
    run = await store.get_run(DEFAULT_TENANT, row.last_run_id or "")
    assert run is not None
    assert (run.plan_id, run.run_type) == ("nightly", "SCHEDULED_TASK")
    assert msgspec.json.decode(run.result or b"") == "did {'word': 'once'}"
    assert await findings(store) == []


async def retired(store: Store, archive: Archive) -> list[str]:
    """Archives what has rested in a thousand days; the correlations that went."""
    later = SystemClock().now() + timedelta(days=1000)
    retained = [one async for one in retain(store, archive, rest(later), now=later)]
    assert all(one.removed for one in retained)
    return [one.correlation_id for one in retained]


async def test_retention_takes_what_is_over_and_leaves_what_is_active(
    store: SqliteStore, tmp_path: Path
) -> None:
    """§STO-56, §STO-57, §ORD-40: each by itself, and its name can be scheduled again."""
    scene = Scene(lambda clock: SqliteStore.open(tmp_path / "x.db"), store)
    scene.tenant_id = DEFAULT_TENANT
    active = await put(scene, SystemClock().now() + timedelta(days=1), name="active")
    archive = Archive(tmp_path / "archive")
    gone = await retired(store, archive)
    assert len(gone) == 3
    assert ONCE in gone
    assert await store.count_runs() == {}
    assert [row.id for row in await store.list_schedules(DEFAULT_TENANT)] == [active.stream_id]
    assert await findings(store, archive) == []
    async with app.running(store):
        again = await (await app.start(ask, "once", key="again")).result()
        assert (again["stream_id"], again["version"]) == (schedule_stream(DEFAULT_TENANT, "once", 1), 1)

        async def ended() -> bool:
            return await store.count_runs() == {"COMPLETED": 2}

        await eventually(ended)
    assert await findings(store, archive) == []
    async for rebuilt in rebuild_all(store):
        assert rebuilt.problem is None
    (name,) = [stone.bundle async for stone in store.graveyard() if stone.stream_id == ONCE]
    bundle = read_bundle((archive.folder / name).read_bytes())
    with pytest.raises(CommitRefused, match="has what has to be unique"):
        await import_bundle(store, bundle)
    assert len(await retired(store, archive)) == 3
    assert await import_bundle(store, bundle)
    assert await findings(store, archive) == []


async def test_a_run_of_a_schedule_of_the_same_name_elsewhere_is_no_fault(
    store: SqliteStore, tmp_path: Path
) -> None:
    """§OUT-66, §ORD-40: neither does it stop the schedule here."""
    row = await store.get_schedule(DEFAULT_TENANT, ONCE)
    assert row is not None
    run = await store.get_run(DEFAULT_TENANT, row.last_run_id or "")
    assert run is not None
    bundle = read_bundle(await export_bundle(store, DEFAULT_TENANT, run.correlation_id))
    async with await SqliteStore.open(tmp_path / "other.db") as other:
        assert await import_bundle(other, bundle)
        async with app.running(other):
            await (await app.start(ask, "once")).result()

            async def ended() -> bool:
                return await other.count_runs() == {"COMPLETED": 3}

            await eventually(ended)
        assert await findings(other) == []


async def test_two_signals_of_one_firing_are_found(store: SqliteStore, tmp_path: Path) -> None:
    """§ORD-40"""
    _, fired = await store.fetch(DEFAULT_TENANT, ONCE)
    scene = Scene(lambda clock: SqliteStore.open(tmp_path / "x.db"), store)
    scene.tenant_id = DEFAULT_TENANT
    again = scene.receive(f"{ONCE}:2:again")
    again = msgspec.structs.replace(again, source_channel=CHANNEL, cause=fired.id)
    case = await scene.carry(scene.new_case(), again, scene.create())
    (found,) = await findings(store)
    assert case.signal.stream_id in found
    assert f"run_seq 2 of schedule {ONCE} to have sent it" in found


async def test_each_is_carried_by_itself_and_made_again(store: SqliteStore, tmp_path: Path) -> None:
    row = await store.get_schedule(DEFAULT_TENANT, ONCE)
    assert row is not None
    run = await store.get_run(DEFAULT_TENANT, row.last_run_id or "")
    assert run is not None
    bundles = [
        await export_bundle(store, DEFAULT_TENANT, correlation) for correlation in (run.correlation_id, ONCE)
    ]
    async with await SqliteStore.open(tmp_path / "other.db") as other:
        for bundle in bundles:
            await import_bundle(other, read_bundle(bundle))
            assert await findings(other) == []
        assert await other.get_schedule(DEFAULT_TENANT, ONCE) == row
        with Behind(tmp_path / "other.db") as behind:
            behind.execute("UPDATE schedules SET fired = 0, task = 'spoilt'")
        spoilt = await findings(other)
        for column in ("task", "fired"):
            assert any("schedules" in one and column in one for one in spoilt)
        async for _ in rebuild_all(other):
            pass
        assert await findings(other) == []
        assert await other.get_schedule(DEFAULT_TENANT, ONCE) == row


async def test_an_active_schedule_is_carried_only_by_who_says_so(store: SqliteStore, tmp_path: Path) -> None:
    """It would fire here as well as where it came from."""
    scene = Scene(lambda clock: SqliteStore.open(tmp_path / "x.db"), store)
    scene.tenant_id = DEFAULT_TENANT
    active = await put(scene, SystemClock().now() + timedelta(days=1), name="active")
    bundle = read_bundle(await export_bundle(store, DEFAULT_TENANT, active.stream_id))
    async with await SqliteStore.open(tmp_path / "other.db") as other:
        with pytest.raises(CommandRefused, match="'active' is active"):
            await import_bundle(other, bundle)
        assert await import_bundle(other, bundle, unfinished=True)
        assert await other.get_schedule(DEFAULT_TENANT, active.stream_id) == active.schedule


# Several at once


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same data, each time as a process of its own would."""
    if request.param == "sqlite":
        return lambda clock: SqliteStore.open(tmp_path / "race.db", clock=clock)
    url = request.getfixturevalue("postgres_engine_url")
    return lambda clock: PostgresStore.open(url, clock=clock)


async def test_of_several_schedulers_on_one_store_one_fires(open_store: Open) -> None:
    """§OUT-68: each time has one run, though all of them look at once."""
    clock = VirtualClock()
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(3):
            stores.append(await open_store(clock))
            stack.push_async_callback(stores[-1].close)
        scene = Scene(open_store, stores[0], clock)
        names = [f"n{number}" for number in range(6)]
        for name in names:
            await put(scene, clock.now(), name=name, task="nightly", cron="* * * * *")
        schedulers = [
            Scheduler(
                store,
                HandlerTasks(app.handlers),
                worker_id=f"s{place}",
                clock=clock,
                new_id=new_id,
                bell=Bell(),
                jitter=lambda: 0.5,
            )
            for place, store in enumerate(stores * 2)
        ]
        for minute in range(1, 4):
            await asyncio.gather(*(scheduler.run_once() for scheduler in schedulers))
            rows = await stores[0].list_schedules(scene.tenant_id)
            assert [(row.name, row.fired) for row in rows] == [(name, minute) for name in names]
            clock.advance(60)
        runs = await stores[1].list_runs(scene.tenant_id)
        assert len(runs) == 18
        assert {row.last_run_id for row in rows} <= {run.id for run in runs}
        assert await findings(stores[0]) == []


async def test_older_workers_leave_it_to_newer_ones(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """§OUT-78: what newer code has scheduled, older code could not start; a run of it would have failed."""
    older, newer = rs.App("desk", version="1.9"), rs.App("desk", version="1.10")

    @older.on(name="task")
    async def before(run: rs.Run, what: dict[str, int]) -> int:
        return what["number"]

    @newer.on(name="task")
    async def after(run: rs.Run, what: dict[str, str]) -> str:
        return what["word"]

    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            stores.append(await open_store(SystemClock()))
            stack.push_async_callback(stores[-1].close)
        scene = Scene(open_store, stores[0])
        scene.tenant_id = DEFAULT_TENANT
        now = SystemClock().now()
        given = {"task": "task", "arguments": {"word": "new"}, "version": "1.10"}
        state = await put(scene, now, cron=None, **given)
        await stack.enter_async_context(older.running(stores[0]))

        async def left() -> bool:
            return "is left to others: version '1.10' asked for it, this is '1.9'" in caplog.text

        await eventually(left)
        assert await stores[0].count_runs() == {}
        await stack.enter_async_context(newer.running(stores[1]))

        async def ended() -> bool:
            return await stores[0].count_runs() == {"COMPLETED": 1}

        await eventually(ended)
        row = await stores[0].get_schedule(DEFAULT_TENANT, state.stream_id)
        assert row is not None
        run = await stores[0].get_run(DEFAULT_TENANT, row.last_run_id or "")
        assert run is not None
        assert (run.orchestrator_version, run.result) == ("1.10", msgspec.Raw(b'"new"'))


async def test_an_app_without_the_task_carries_it_out_all_the_same(open_store: Open) -> None:
    """§OUT-62: of two apps on one store, either may be the one to schedule it."""
    other = rs.App("other")
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            stores.append(await open_store(SystemClock()))
            stack.push_async_callback(stores[-1].close)
        await stack.enter_async_context(other.running(stores[1]))
        await stack.enter_async_context(app.running(stores[0], outbox=False))
        done = await (await app.start(ask, "theirs")).result()
        assert done["version"] == 1

        async def fired() -> bool:
            return (await stores[0].list_schedules(DEFAULT_TENANT))[0].fired == 1

        await eventually(fired)


async def test_apps_on_one_store_start_each_task_once(open_store: Open) -> None:
    """Through workers and dispatchers, in real time."""
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            stores.append(await open_store(SystemClock()))
            stack.push_async_callback(stores[-1].close)
        twin = rs.App("desk")
        twin.on()(nightly.function)
        await stack.enter_async_context(twin.running(stores[1]))
        await stack.enter_async_context(app.running(stores[0]))
        words = [f"w{number}" for number in range(8)]
        await asyncio.gather(*[(await app.start(ask, word)).result() for word in words])

        async def ended() -> bool:
            return await stores[0].count_runs() == {"COMPLETED": 16}

        await eventually(ended)
        rows = await stores[0].list_schedules(DEFAULT_TENANT)
        assert [(row.name, row.status, row.fired) for row in rows] == [(word, "DONE", 1) for word in words]
        assert await findings(stores[0]) == []
