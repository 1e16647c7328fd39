"""Rows that were lost, changed or made up are made again from the log, and nothing else is (§STO-40)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import Raw

from runstone.audit.rebuild import Rebuilt, rebuild_all, rebuild_run
from runstone.core.commands import SetVariable
from runstone.core.commit import Context
from runstone.core.rows import TABLES, Row
from runstone.ports.cases import carry_out
from runstone.ports.clock import SystemClock, new_id
from runstone.stores.sqlite import SqliteStore
from tests.integration.audit import columns, scene
from tests.integration.audit.columns import Behind
from tests.integration.audit.test_changed_rows import add, change

DERIVED = sorted(TABLES.values())


async def rebuild(path: Path) -> list[Rebuilt]:
    async with await SqliteStore.open(path, inline=True) as store:
        store._connection.execute("PRAGMA synchronous = OFF")  # durability is proven elsewhere
        return [rebuilt async for rebuilt in rebuild_all(store)]


async def assert_restored(path: Path, pristine: Path) -> None:
    """Rows, events and leases are what they were."""
    assert [rebuilt.problem for rebuilt in await rebuild(path) if rebuilt.problem] == []
    assert await scene.findings(path) == []
    assert columns.dump(path, operational=True) == columns.dump(pristine, operational=True)


@pytest.mark.parametrize(("table", "column"), [place for place in columns.history() if place[0] in DERIVED])
async def test_a_changed_value_is_restored(table: str, column: str, store_path: Path, pristine: Path) -> None:
    with Behind(store_path) as connection:
        change(connection, table, column)
        if (table, column) == ("run_queue", "run_id"):  # its lease went with it
            connection.execute("UPDATE run_queue SET owner = NULL, attempts = 0")
    if (table, column) == ("run_queue", "run_id"):
        assert [rebuilt.problem for rebuilt in await rebuild(store_path) if rebuilt.problem] == []
        assert await scene.findings(store_path) == []
    else:
        await assert_restored(store_path, pristine)


@pytest.mark.parametrize("table", [table for table in DERIVED if table != "run_queue"])
async def test_a_table_that_was_emptied_is_filled_again(table: str, store_path: Path, pristine: Path) -> None:
    with Behind(store_path) as connection:
        connection.execute(f"DELETE FROM {table}")
    await assert_restored(store_path, pristine)


async def test_all_rows_can_be_made_again_from_nothing(store_path: Path) -> None:
    with Behind(store_path) as connection:
        for table in DERIVED:
            connection.execute(f"DELETE FROM {table}")
    rebuilt = await rebuild(store_path)
    assert len(rebuilt) == scene.STREAMS
    assert await scene.findings(store_path) == []


@pytest.mark.parametrize("table", DERIVED)
async def test_a_row_that_was_made_up_goes(table: str, store_path: Path, pristine: Path) -> None:
    with Behind(store_path) as connection:
        add(connection, table)
    await assert_restored(store_path, pristine)


async def test_leases_of_runs_and_effects_stay(store_path: Path) -> None:
    with Behind(store_path) as connection:
        connection.execute("UPDATE outbox_events SET owner = 'dispatcher', fence = 7")
        connection.execute("UPDATE run_queue SET attempts = 5 WHERE owner = ?", (scene.WORKER,))
        connection.execute("UPDATE runs SET total_steps = 77")
    before = columns.dump(store_path, operational=True)
    await rebuild(store_path)
    after = columns.dump(store_path, operational=True)
    assert after["outbox_events"] == before["outbox_events"]
    assert after["run_queue"] == before["run_queue"]
    assert after["runs"] != before["runs"]


async def test_one_run_is_rebuilt_with_its_correlation_and_no_other(store_path: Path) -> None:
    async with await SqliteStore.open(store_path, inline=True) as store:
        run = await store.find_run(scene.TENANT, scene.KEY)
        assert run is not None
        with Behind(store_path) as connection:
            connection.execute("UPDATE runs SET plan_id = 'x'")
        rebuilt = [stream async for stream in rebuild_run(store, scene.TENANT, run.id)]
        assert len(rebuilt) == 4
        others = {
            found.correlation_id for found in await store.list_runs(scene.TENANT) if found.plan_id == "x"
        }
    assert run.correlation_id not in others
    assert len(others) == 2


async def test_a_damaged_log_leaves_the_rows_as_they_are(store_path: Path) -> None:
    with Behind(store_path) as connection:
        (run_id,) = connection.execute("SELECT id FROM runs WHERE key = ?", (scene.KEY,)).fetchone()
        connection.execute(
            "UPDATE orchestration_events SET actor = 'mallory' WHERE stream_id = ? AND run_seq = 2", (run_id,)
        )
        connection.execute("UPDATE runs SET plan_id = 'x'")
    problems = {rebuilt.stream_id: rebuilt.problem for rebuilt in await rebuild(store_path)}
    assert len(problems) == scene.STREAMS
    assert [stream_id for stream_id, problem in problems.items() if problem] == [run_id]
    assert "log is damaged" in (problems[run_id] or "")
    async with await SqliteStore.open(store_path, inline=True) as store:
        left = [run.id for run in await store.list_runs(scene.TENANT) if run.plan_id == "x"]
    assert left == [run_id]


async def test_rows_of_a_stream_that_lost_its_head_are_kept(store_path: Path) -> None:
    """They are all that is left beside the events; whoever repairs the head will want them."""
    with Behind(store_path) as connection:
        connection.execute("DELETE FROM streams")
    before = columns.dump(store_path)
    assert await rebuild(store_path) == []
    assert columns.dump(store_path) == before


class Busy(SqliteStore):
    """A store in which others write to a run whenever somebody is about to replace its rows."""

    writes = 2

    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        run = await self.get_run(tenant_id, stream_id)
        if self.writes and run is not None and run.key == scene.KEY:
            self.writes -= 1
            context = Context(now=SystemClock().now(), new_id=new_id, actor="other")
            await carry_out(
                self,
                tenant_id,
                stream_id,
                SetVariable(name="n", value=Raw(b"1")),
                context=context,
            )
        await super().replace_rows(tenant_id, stream_id, last_seq, rows)


async def test_a_run_that_others_write_to_is_read_again(store_path: Path) -> None:
    async with await Busy.open(store_path, inline=True) as store:
        rebuilt = [stream async for stream in rebuild_all(store)]
        assert store.writes == 0  # type: ignore[attr-defined]
    assert [stream.problem for stream in rebuilt if stream.problem] == []
    assert await scene.findings(store_path) == []


async def test_a_run_that_is_never_left_alone_is_given_up(store_path: Path) -> None:
    async with await Busy.open(store_path, inline=True) as store:
        store._connection.execute("PRAGMA synchronous = OFF")
        store.writes = 1000  # type: ignore[attr-defined]
        problems = [stream.problem async for stream in rebuild_all(store) if stream.problem]
    assert problems == ["Others write to it without a pause: try again later"]


async def test_an_event_that_cannot_be_read_leaves_the_rows_as_they_are(store_path: Path) -> None:
    with Behind(store_path) as connection:
        connection.execute("UPDATE orchestration_events SET occurred_at = 1 << 62 WHERE run_seq = 22")
    problems = [rebuilt.problem for rebuilt in await rebuild(store_path) if rebuilt.problem]
    assert len(problems) == 1
    assert "its occurred_at cannot be read" in problems[0]


async def test_verify_finds_nothing_while_others_write(store_path: Path) -> None:
    """A stream and its rows are read as of one moment."""
    done = asyncio.Event()

    async def write() -> None:
        async with await SqliteStore.open(store_path) as store:
            run = await store.find_run(scene.TENANT, scene.KEY)
            assert run is not None
            for _ in range(60):
                context = Context(now=SystemClock().now(), new_id=new_id, actor="other")
                await carry_out(
                    store,
                    scene.TENANT,
                    run.id,
                    SetVariable(name="n", value=Raw(b"1")),
                    context=context,
                )
        done.set()

    async def verify() -> int:
        times = 0
        while not done.is_set():
            assert await scene.findings(store_path, inline=False) == []
            times += 1
        return times

    _, times = await asyncio.gather(write(), verify())
    assert times > 1
