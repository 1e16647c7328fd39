"""`SOR_UPDATE` from a handler to the system of record, on real stores, by several apps at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import runstone as rs
from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.audit.verify import verify_all
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.keys import entity_stream, schedule_stream
from runstone.ports.store import Store
from runstone.runtime import open_store
from runstone.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio

Opens = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["sqlite", "postgres"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    """Opens one and the same store again and again, as several processes would."""
    if request.param == "sqlite":
        return lambda: open_store(str(tmp_path / "desk.db"))
    url: str = request.getfixturevalue("postgres_engine_url")
    return lambda: open_store(url)


def desk() -> rs.App:
    app = rs.App("desk")

    @app.on()
    async def count(run: rs.Run, who: str) -> int:
        for number in range(2):
            change = rs.SorUpdate(
                entity_type="CASE",
                entity_id="42",
                change={f"{who}/{number}": 1},
                evidence_pack={"who": who},
            )
            await run.effect(change, at_most_once=number == 1)
        return 1

    return app


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _ended(handle: rs.Handle[Any]) -> bool:
    return (await handle.status()).status == "COMPLETED"


async def test_many_runs_change_one_entity_each_exactly_once(opens: Opens) -> None:
    """§OUT-55, §OUT-56: several dispatchers at once; versions without a gap, no change lost or made twice."""
    async with AsyncExitStack() as stack:
        apps = [desk() for _ in range(3)]
        for app in apps:
            store = await opens()
            stack.push_async_callback(store.close)
            await stack.enter_async_context(app.running(store, poll=0.02))
        stack_of = [
            app.start(app.handlers["count"], f"{place}-{number}")
            for place, app in enumerate(apps)
            for number in range(10)
        ]
        handles = await asyncio.gather(*stack_of)
        for handle in handles:
            await until(lambda handle=handle: _ended(handle))  # type: ignore[misc]
        history = await apps[0].entity_history("CASE", "42")
        assert [version.version for version in history] == list(range(1, 61))
        store = apps[0].runtime.store
        done = await store.list_effects(DEFAULT_TENANT, status="COMPLETED", limit=1000)
        assert Counter(version.effect_id for version in history) == Counter(effect.id for effect in done)
        entity = await apps[0].entity("CASE", "42")
        assert entity == history[-1]
        assert entity.data == {f"{a}-{b}/{c}": 1 for a in range(3) for b in range(10) for c in range(2)}
        findings = [found async for part in verify_all(store) for found in part.findings]
        assert findings == []


async def test_a_run_from_before_its_effects_were_done_goes_on_beside_what_they_did(
    opens: Opens, tmp_path: Path
) -> None:
    """§OUT-75: they are not done again, and the run has their outcome."""
    app = rs.App("desk")

    @app.on()
    async def both(run: rs.Run) -> list[int]:
        done = await run.gather(
            run.effect(update({"a": 1}), wait=True),
            run.effect(
                rs.ScheduleTask(
                    task="both", name="yearly", run_at=datetime.fromisoformat("2999-01-01T00:00Z")
                ),
                wait=True,
            ),
        )
        return [each["version"] for each in done]

    async def asked() -> bool:
        return len(await app.runtime.store.list_effects(DEFAULT_TENANT)) == 2

    async with AsyncExitStack() as stack:
        old, new = await open_store(str(tmp_path / "before.db")), await opens()
        for store in (old, new):
            stack.push_async_callback(store.close)
        async with app.running(old, outbox=False):
            handle = await app.start(both)
            await until(asked)
        run = await old.get_run(DEFAULT_TENANT, handle.id)
        assert run is not None
        bundles = [await export_bundle(old, DEFAULT_TENANT, run.correlation_id)]
        async with app.running(old):
            assert await app.handle(both, handle.id).result() == [1, 1]
        for stream_id in (
            entity_stream(DEFAULT_TENANT, "CASE", "1"),
            schedule_stream(DEFAULT_TENANT, "yearly"),
        ):
            bundles.append(await export_bundle(old, DEFAULT_TENANT, stream_id))
        for content in bundles:
            assert await import_bundle(new, read_bundle(content), unfinished=True)
        async with app.running(new):
            assert await app.handle(both, handle.id).result(timeout=rs.seconds(60)) == [1, 1]
            assert len(await app.entity_history("CASE", "1")) == 1
        results = [
            {effect.id: effect.execution_result for effect in await store.list_effects(DEFAULT_TENANT)}
            for store in (old, new)
        ]
        assert results[0] == results[1]
        assert [found async for part in verify_all(new) for found in part.findings] == []


# One app


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(tmp_path / "desk.db") as store:
        yield store


def update(change: dict[str, Any], **more: Any) -> rs.SorUpdate:
    return rs.SorUpdate(
        **{"entity_type": "CASE", "entity_id": "1", "evidence_pack": {"a": 1}} | more, change=change
    )


async def test_a_handler_waits_for_the_version_it_made_and_is_told_of_a_conflict(store: SqliteStore) -> None:
    app = rs.App("desk")

    @app.on()
    async def change(run: rs.Run) -> list[Any]:
        first = await run.effect(update({"a": 1, "b": {"c": 2}}, expected_version=0), wait=True)
        try:
            await run.effect(update({"a": 2}, expected_version=0), wait=True)
        except rs.EffectFailed as failed:
            return [first["version"], failed.code]
        return []

    async with app.running(store):
        handle = await app.start(change)
        assert await handle.result() == [1, "VERSION_CONFLICT"]
        entity = await app.entity("CASE", "1")
        assert entity is not None
        assert (entity.data, entity.change) == ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}})
        assert (entity.run_id, entity.inference, entity.evidence_pack) == (handle.id, False, {"a": 1})
        assert entity.source_id.startswith("orchestrator:")
        assert await app.entity("CASE", "2") is None
        assert await app.entity_history("CASE", "2") == []
        assert await app.entity("CASE", "1", tenant_id="00000000-0000-7000-8000-000000000002") is None


async def test_a_large_entity_is_read_whole(store: SqliteStore) -> None:
    app = rs.App("desk")

    @app.on()
    async def change(run: rs.Run) -> None:
        await run.effect(update({"text": "x" * 5000}), wait=True)

    async with app.running(store):
        await (await app.start(change)).result()
        entity = await app.entity("CASE", "1")
        assert entity is not None
        assert entity.data == {"text": "x" * 5000}


async def test_a_change_without_evidence_fails_the_step(store: SqliteStore) -> None:
    app = rs.App("desk")

    @app.on()
    async def change(run: rs.Run) -> None:
        await run.effect(rs.SorUpdate(entity_type="CASE", entity_id="1", change={"a": 1}))

    async with app.running(store):
        handle = await app.start(change)
        with pytest.raises(rs.RunFailed, match="/evidence_pack"):
            await handle.result()
        assert await app.entity("CASE", "1") is None


async def test_a_run_that_fails_takes_its_change_back(store: SqliteStore) -> None:
    """A compensation is an effect like any other."""
    app = rs.App("desk")

    @app.on()
    async def change(run: rs.Run) -> None:
        await run.compensate(update({"reserved": None}))
        await run.effect(update({"reserved": True, "by": "ann"}), wait=True)
        raise ValueError("no")

    async with app.running(store):
        handle = await app.start(change)
        with pytest.raises(rs.RunFailed):
            await handle.result()

        async def taken_back() -> bool:
            return len(await app.entity_history("CASE", "1")) == 2

        await until(taken_back)
        history = await app.entity_history("CASE", "1")
        assert [version.data for version in history] == [{"reserved": True, "by": "ann"}, {"by": "ann"}]


async def test_an_app_may_have_a_system_of_record_of_its_own(store: SqliteStore) -> None:
    app = rs.App("desk")
    seen: list[rs.SorUpdate] = []

    @app.executor(rs.SorUpdate)
    async def elsewhere(spec: rs.SorUpdate) -> str:
        seen.append(spec)
        return "there"

    @app.on()
    async def change(run: rs.Run) -> Any:
        return await run.effect(update({"a": 1}), wait=True)

    async with app.running(store):
        assert await (await app.start(change)).result() == "there"
        assert [spec.change for spec in seen] == [{"a": 1}]
        assert await app.entity("CASE", "1") is None
