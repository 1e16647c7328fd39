"""Entities beside the runs that wrote them: proven together, archived and carried apart (§ORD-37)."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from runstone.core.keys import entity_stream
from runstone.ports.clock import SystemClock
from runstone.stores.sqlite import SqliteStore
from tests.integration.audit.columns import Behind

pytestmark = pytest.mark.asyncio

CASE = entity_stream(DEFAULT_TENANT, "CASE", "42")
app = rs.App("desk")


@app.on()
async def note(run: rs.Run, word: str) -> dict[str, Any]:
    change = rs.SorUpdate(entity_type="CASE", entity_id="42", change={word: 1}, evidence_pack={"said": word})
    done: dict[str, Any] = await run.effect(change, wait=True)
    return done


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """Two runs have written to one entity."""
    async with await SqliteStore.open(tmp_path / "desk.db") as store:
        async with app.running(store):
            for word in ("red", "blue"):
                handle = await app.start(note, word, key=word)
                done = await handle.result()
                assert done["stream_id"] == CASE
        yield store


async def findings(store: SqliteStore, archive: Archive | None = None) -> list[str]:
    parts = [part async for part in verify_all(store, archive=archive)]
    return [str(finding) for part in parts for finding in part.findings]


async def version(store: SqliteStore) -> int | None:
    row = await store.get_entity(DEFAULT_TENANT, CASE)
    return row.version if row else None


async def bundle_of(store: SqliteStore, word: str) -> bytes:
    run = await store.find_run(DEFAULT_TENANT, word)
    assert run is not None
    return await export_bundle(store, DEFAULT_TENANT, run.correlation_id)


async def test_retention_of_the_runs_leaves_the_entity(store: SqliteStore, tmp_path: Path) -> None:
    """§STO-56, §ORD-39"""
    assert await findings(store) == []
    archive = Archive(tmp_path / "archive")
    later = SystemClock().now() + timedelta(days=1000)
    retained = [one async for one in retain(store, archive, rest(later), now=later)]
    assert [one.removed for one in retained] == [True, True]
    assert await store.count_runs() == {}
    assert await version(store) == 2
    assert await findings(store, archive) == []
    (events,) = [stream.events for stream in await store.correlation(DEFAULT_TENANT, CASE)]
    assert [msgspec.json.decode(event.event_data)["data"] for event in events] == [
        {"red": 1},
        {"blue": 1, "red": 1},
    ]


async def test_an_entity_and_a_run_are_carried_each_by_itself(store: SqliteStore, tmp_path: Path) -> None:
    """In whatever order they come, or if one never does."""
    entity = await export_bundle(store, DEFAULT_TENANT, CASE)
    runs = [await bundle_of(store, word) for word in ("red", "blue")]
    for place, carried in enumerate(([entity], [runs[0]], [runs[1], entity, runs[0]])):
        async with await SqliteStore.open(tmp_path / f"target {place}.db") as target:
            for content in carried:
                assert await import_bundle(target, read_bundle(content))
                assert not await import_bundle(target, read_bundle(content))
            assert await findings(target) == []
            assert await version(target) == (2 if entity in carried else None)
            if entity in carried:
                assert await export_bundle(target, DEFAULT_TENANT, CASE) == entity


async def test_rows_of_entities_are_made_again(store: SqliteStore) -> None:
    with Behind(Path(store.path)) as connection:
        connection.execute("DELETE FROM entities")
    assert len(await findings(store)) == 1
    assert [one.problem async for one in rebuild_all(store)] == [None] * 5
    assert await findings(store) == []
    assert await version(store) == 2


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        (
            "UPDATE orchestration_events SET causation_id = id WHERE stream_id = ? AND run_seq = 2",
            "causation",
        ),
        (
            "UPDATE orchestration_events SET causation_id = '00000000-0000-7000-8000-00000000000a' "
            "WHERE stream_id = ? AND run_seq = 2",
            "a cause in run",
        ),
        (
            "UPDATE orchestration_events SET event_data = json_set(event_data, '$.effect_id', "
            "'00000000-0000-7000-8000-00000000000a') WHERE stream_id = ? AND run_seq = 2",
            "to have written it",
        ),
        ("UPDATE orchestration_events SET event_data = '[]' WHERE stream_id = ? AND run_seq = 2", "fold"),
    ],
)
async def test_what_an_entity_says_of_a_run_is_held_against_it(
    store: SqliteStore, statement: str, check: str
) -> None:
    """§ORD-39"""
    with Behind(Path(store.path)) as connection:
        connection.execute(statement, (CASE,))
    assert any(check in finding for finding in await findings(store))


async def test_a_run_whose_effect_says_something_else_is_found(store: SqliteStore) -> None:
    with Behind(Path(store.path)) as connection:
        connection.execute(
            "UPDATE orchestration_events SET event_data = json_set(event_data, '$.execution_result', 'x') "
            "WHERE event_type = 'EFFECT_COMPLETED'"
        )
    assert sum("to have written it" in finding for finding in await findings(store)) == 2
