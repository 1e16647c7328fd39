"""Values, rows, events, heads and guards are changed with SQL; `verify` finds each (§STO-41)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from runstone.audit.verify import verify_run
from runstone.core.rows import TABLES
from runstone.stores.sqlite import SqliteStore
from tests.integration.audit import columns, scene
from tests.integration.audit.columns import Behind

DERIVED = sorted(TABLES.values())
_TO_SPARE = "ffffffff-ffff-7fff-bfff-ffffffffffff"


def other(value: object) -> object:
    """Another value of the same type."""
    match value:
        case None:
            return None
        case int():
            return value + 1
        case _:
            text = str(value)
            return ("0" if text[:1] != "0" else "1") + text[1:]


def change(connection: sqlite3.Connection, table: str, column: str) -> str:
    """Gives one row that has a value in the column another one; what the row was called."""
    key = columns.key_of(connection, table)
    row_id, value = connection.execute(
        f"SELECT {key}, {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {key} DESC"
    ).fetchone()
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (other(value), row_id))
    return str(row_id)


@pytest.mark.parametrize(("table", "column"), columns.history())
async def test_a_changed_value_is_found(table: str, column: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        change(connection, table, column)
    assert await scene.findings(store_path)


@pytest.mark.parametrize(("table", "column"), columns.history(nullable=True))
async def test_a_value_that_is_gone_or_made_up_is_found(table: str, column: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        kinds = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})")}
        made_up: object = 1 if kinds[column] == "INTEGER" else "1"
        key = columns.key_of(connection, table)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(
            f"UPDATE {table} SET {column} = iif({column} IS NULL, ?, NULL) "
            f"WHERE {key} = (SELECT max({key}) FROM {table})",
            (made_up,),
        )
    assert await scene.findings(store_path)


async def test_the_finding_names_the_row_the_column_and_both_values(store_path: Path) -> None:
    with Behind(store_path) as connection:
        run_id = connection.execute("SELECT id FROM runs WHERE status = 'FAILED'").fetchone()[0]
        connection.execute("UPDATE runs SET status = 'COMPLETED' WHERE id = ?", (run_id,))
    (finding,) = await scene.findings(store_path)
    assert (finding.stream_id, finding.check) == (run_id, "rows")
    assert finding.place == f"runs {run_id}, column status"
    assert (finding.expected, finding.found) == ('"FAILED"', '"COMPLETED"')


async def test_a_finding_names_the_event_that_cannot_be_read(store_path: Path) -> None:
    """§STO-42"""
    with Behind(store_path) as connection:
        stream_id = connection.execute("SELECT id FROM runs WHERE key = ?", (scene.KEY,)).fetchone()[0]
        connection.execute(
            "UPDATE orchestration_events SET event_data = CAST(x'22ff22' AS TEXT) "
            "WHERE stream_id = ? AND run_seq = 5",
            (stream_id,),
        )
    (finding,) = await scene.findings(store_path)
    assert (finding.stream_id, finding.check, finding.place) == (stream_id, "unreadable", "run_seq 5")
    assert "UTF-8" in finding.found


@pytest.mark.parametrize("table", DERIVED)
async def test_a_deleted_row_is_found(table: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        key = columns.key_of(connection, table)
        connection.execute(f"DELETE FROM {table} WHERE {key} = (SELECT max({key}) FROM {table})")
    assert await scene.findings(store_path)


@pytest.mark.parametrize("table", [*DERIVED, "streams"])
async def test_an_added_row_is_found(table: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        add(connection, table)
    assert await scene.findings(store_path)


def add(connection: sqlite3.Connection, table: str) -> None:
    """A copy of a row under another id, with other values in all that has to be unique."""
    key = columns.key_of(connection, table)
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    row = dict(
        zip(names, connection.execute(f"SELECT * FROM {table} ORDER BY {key}").fetchone(), strict=True)
    )
    row[key] = _TO_SPARE
    for unique in ("source_id", "run_request_id", "key", "idempotency_key", "entity_id", "name"):
        if row.get(unique) is not None:
            row[unique] = _TO_SPARE
    for unique in ("step_index", "version"):
        if unique in row:
            row[unique] = 99
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", list(row.values()))


@pytest.mark.parametrize("end", ["min", "max"])
async def test_a_deleted_event_is_found(end: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        connection.execute(
            "DELETE FROM orchestration_events "
            f"WHERE sequence_number = (SELECT {end}(sequence_number) FROM orchestration_events)"
        )
    assert await scene.findings(store_path)


async def test_an_added_event_is_found(store_path: Path) -> None:
    with Behind(store_path) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(orchestration_events)")]
        last = connection.execute(
            "SELECT * FROM orchestration_events ORDER BY sequence_number DESC"
        ).fetchone()
        row = dict(zip(names, last, strict=True))
        row |= {
            "sequence_number": None,
            "id": _TO_SPARE,
            "idempotency_key": "f" * 64,
            "run_seq": row["run_seq"] + 1,
        }
        connection.execute(
            f"INSERT INTO orchestration_events VALUES ({', '.join('?' * len(names))})", list(row.values())
        )
    assert await scene.findings(store_path)


async def test_events_that_changed_places_are_found(store_path: Path) -> None:
    with Behind(store_path) as connection:
        for before, after in ((3, -1), (4, 3), (-1, 4)):
            connection.execute(
                "UPDATE orchestration_events SET run_seq = ? WHERE run_seq = ?", (after, before)
            )
    assert await scene.findings(store_path)


@pytest.mark.parametrize("kind", ["RUN", "SIGNAL"])
async def test_a_deleted_head_is_found(kind: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        connection.execute(
            "DELETE FROM streams WHERE id = (SELECT max(id) FROM streams WHERE kind = ?)", (kind,)
        )
    assert await scene.findings(store_path)


@pytest.mark.parametrize("kind", ["RUN", "SIGNAL"])
async def test_a_stream_that_is_gone_without_its_rows_is_found(kind: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        (stream_id,) = connection.execute("SELECT max(id) FROM streams WHERE kind = ?", (kind,)).fetchone()
        connection.execute("DELETE FROM streams WHERE id = ?", (stream_id,))
        connection.execute("DELETE FROM orchestration_events WHERE stream_id = ?", (stream_id,))
    assert await scene.findings(store_path)


async def test_a_cause_that_does_not_exist_is_found(store_path: Path) -> None:
    async with await SqliteStore.open(store_path, inline=True) as store:
        signal = (await store.list_runs(scene.TENANT, status="FAILED"))[0].signal_id
    with Behind(store_path) as connection:
        connection.execute(
            "UPDATE orchestration_events SET causation_id = ? WHERE stream_id = ? AND run_seq = 1",
            (_TO_SPARE, signal),
        )
    assert any(finding.check == "causation" for finding in await scene.findings(store_path))


async def test_a_guard_that_is_gone_is_found(store_path: Path) -> None:
    connection = sqlite3.connect(store_path)
    connection.execute("DROP TRIGGER runs_frozen_update")
    connection.close()
    (finding,) = await scene.findings(store_path)
    assert finding.found == "trigger runs_frozen_update is missing"


async def test_a_foreign_trigger_and_maintenance_left_open_are_found(store_path: Path) -> None:
    connection = sqlite3.connect(store_path, isolation_level=None)
    connection.execute("CREATE TRIGGER evil AFTER INSERT ON runs BEGIN SELECT 1; END")
    connection.execute("DROP INDEX runs_by_status")
    connection.execute("CREATE INDEX runs_by_status ON runs (status)")
    connection.execute("INSERT INTO maintenance (reason) VALUES ('none')")
    connection.close()
    assert [finding.found for finding in await scene.findings(store_path)] == [
        "index runs_by_status was changed",
        "trigger evil is not ours",
        "maintenance was left open: none",
    ]


async def test_an_index_of_somebody_elses_is_no_finding(store_path: Path) -> None:
    connection = sqlite3.connect(store_path)
    connection.execute("CREATE INDEX mine ON runs (plan_id)")
    connection.close()
    assert await scene.findings(store_path) == []


async def test_one_run_is_proven_with_its_correlation_and_no_other(store_path: Path) -> None:
    async with await SqliteStore.open(store_path, inline=True) as store:
        run = await store.find_run(scene.TENANT, scene.KEY)
        assert run is not None
        clean = await verify_run(store, scene.TENANT, run.id)
    assert (clean.streams, clean.correlation_id, clean.findings) == (4, run.correlation_id, ())
    with Behind(store_path) as connection:
        child = connection.execute("SELECT id FROM runs WHERE causation_id = ?", (run.id,)).fetchone()[0]
        connection.execute("UPDATE runs SET exit_reason = 'E2' WHERE id = ?", (child,))
        connection.execute("UPDATE runs SET plan_id = 'x' WHERE correlation_id <> ?", (run.correlation_id,))
    async with await SqliteStore.open(store_path, inline=True) as store:
        found = (await verify_run(store, scene.TENANT, run.id)).findings
    assert [finding.place for finding in found] == [f"runs {child}, column exit_reason"]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM runs WHERE id = :run_id",
        "DELETE FROM streams WHERE id = :run_id",
        "DELETE FROM orchestration_events WHERE stream_id = :run_id",
        "UPDATE orchestration_events SET occurred_at = 1 << 62 WHERE stream_id = :run_id AND run_seq = 1",
        "UPDATE runs SET created_at = 1 << 62 WHERE id = :run_id",
        "UPDATE orchestration_events SET correlation_id = id WHERE stream_id = :run_id",
        "UPDATE streams SET kind = CAST(x'ff' AS TEXT) WHERE id = :run_id",
    ],
)
async def test_a_run_is_proven_whatever_is_left_of_it(damage: str, store_path: Path) -> None:
    with Behind(store_path) as connection:
        run_id = connection.execute("SELECT id FROM runs WHERE key = ?", (scene.KEY,)).fetchone()[0]
        connection.execute(damage, {"run_id": run_id})
    async with await SqliteStore.open(store_path, inline=True) as store:
        assert (await verify_run(store, scene.TENANT, run_id)).findings
