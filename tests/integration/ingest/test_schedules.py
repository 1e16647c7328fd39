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
from runstone.engine.tasks import HandlerTasks
from runstone.errors import CommandRefused
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


async def test_retention_of_the_runs_leaves_the_schedule(store: SqliteStore, tmp_path: Path) -> None:
    """§STO-56, §ORD-40"""
    archive = Archive(tmp_path / "archive")
    later = SystemClock().now() + timedelta(days=1000)
    retained = [one async for one in retain(store, archive, rest(later), now=later)]
    assert [one.removed for one in retained] == [True, True]
    assert await store.count_runs() == {}
    assert await findings(store, archive) == []
    row = await store.get_schedule(DEFAULT_TENANT, ONCE)
    assert row is not None
    assert row.fired == 1


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
        assert any("schedules" in one and "task" in one for one in spoilt)
        assert any("that it fired 0 times" in one for one in spoilt)
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
