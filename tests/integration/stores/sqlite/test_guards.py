"""The database keeps the core's laws by itself, whoever writes to it (§TRN-33 to §TRN-35)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pytest

from runstone.core.step import Step
from runstone.core.transitions import Machine
from runstone.errors import CommitRefused, StaleSequence
from runstone.stores.guards import GUARDED
from runstone.stores.sqlite import SqliteStore, commits
from runstone.stores.sqlite.files import open_writer
from tests.integration.stores.sqlite import scene

Rows: TypeAlias = dict[str, dict[str, Any]]

IMMUTABLE: Final = ("orchestration_events", "step_corrections")
FROZEN: Final = [(table, state) for table, machine in GUARDED.items() for state in sorted(machine.terminal)]
PAIRS: Final = [
    (table, before, after)
    for table, machine in GUARDED.items()
    for before in machine.states
    for after in machine.states
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with rows in every table. What tests do to it is undone."""
    path = tmp_path_factory.mktemp("guards") / "runstone.db"
    with closing(open_writer(str(path))) as connection:
        outcomes = commits.apply(connection, list(map(commits.Packed, scene.usual(1))), 0, str(path))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    return path


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    """A transaction in which rows need no parents."""
    with closing(open_writer(str(file))) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("ROLLBACK")


def refusal(connection: sqlite3.Connection, statement: str, *values: Any) -> str | None:
    """What the database says against the statement; if nothing, then what the statement did stays."""
    try:
        connection.execute(statement, values)
    except sqlite3.IntegrityError as error:
        return error.sqlite_errorname
    return None


TRIGGER: Final = "SQLITE_CONSTRAINT_TRIGGER"


def put(connection: sqlite3.Connection, table: str, status: str) -> str | None:
    """Puts a row in that state beside those that are there, with the id `new`; or what is said against it."""
    cursor = connection.execute(f"SELECT * FROM {table} LIMIT 1")
    row = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
    unique = {"source_id": "s", "run_request_id": "r", "idempotency_key": "k", "step_index": 99}
    row |= {name: value for name, value in unique.items() if name in row}
    row |= {"id": "new", "status": status} | ({"exit_reason": "SOME"} if table == "runs" else {})
    marks = ", ".join("?" * len(row))
    return refusal(connection, f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())


def columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """The type of each column."""
    return {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})")}


def contents(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def core_allows(machine: Machine, before: str, after: str) -> bool:
    """Whether a commit may leave an aggregate there: by some moves, or where it was if it has not ended."""
    return after in machine.reachable(before) or (before == after and before not in machine.terminal)


@pytest.mark.parametrize(("table", "before", "after"), PAIRS)
def test_core_and_trigger_agree_on_every_pair_of_states(
    table: str, before: str, after: str, connection: sqlite3.Connection
) -> None:
    assert put(connection, table, before) is None
    said = refusal(connection, f"UPDATE {table} SET status = ? WHERE id = 'new'", after)
    assert said == (None if core_allows(GUARDED[table], before, after) else TRIGGER)


@pytest.mark.parametrize("table", GUARDED)
def test_a_state_that_the_core_does_not_know_is_refused(table: str, connection: sqlite3.Connection) -> None:
    machine = GUARDED[table]
    for state in ("NONSENSE", "", machine.initial.lower()):
        assert put(connection, table, state) == "SQLITE_CONSTRAINT_CHECK"
    for state in machine.states:
        connection.execute("SAVEPOINT here")
        assert put(connection, table, state) is None
        connection.execute("ROLLBACK TO here")
    assert put(connection, table, machine.initial) is None
    assert refusal(connection, f"UPDATE {table} SET status = 'NONSENSE' WHERE id = 'new'") == TRIGGER
    assert refusal(connection, f"UPDATE {table} SET status = NULL WHERE id = 'new'") is not None


@pytest.mark.parametrize(("table", "state"), FROZEN)
def test_a_row_that_has_ended_is_frozen_in_every_column(
    table: str, state: str, connection: sqlite3.Connection
) -> None:
    put(connection, table, state)
    before = contents(connection, table)
    for column, kind in columns(connection, table).items():
        other = f"'other than ' || ifnull({column}, '')" if kind == "TEXT" else f"1 + ifnull({column}, 0)"
        for value in (column, other, "NULL"):
            for update in ("UPDATE", "UPDATE OR IGNORE", "UPDATE OR REPLACE"):
                said = refusal(connection, f"{update} {table} SET {column} = {value} WHERE id = 'new'")
                assert said == TRIGGER, (update, column, value)
    assert contents(connection, table) == before


@pytest.mark.parametrize(("table", "state"), FROZEN)
def test_a_row_that_has_ended_is_neither_deleted_nor_replaced(
    table: str, state: str, connection: sqlite3.Connection
) -> None:
    put(connection, table, state)
    before = contents(connection, table)
    assert refusal(connection, f"DELETE FROM {table}") == TRIGGER
    assert refusal(connection, f"DELETE FROM {table} WHERE id = 'new'") == TRIGGER
    copy = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} WHERE id = 'new'"
    assert refusal(connection, copy) == TRIGGER
    assert contents(connection, table) == before


@pytest.mark.parametrize("table", GUARDED)
def test_a_row_that_has_not_ended_can_change(table: str, connection: sqlite3.Connection) -> None:
    put(connection, table, GUARDED[table].initial)
    for column in columns(connection, table).keys() - {"id", "status"}:
        assert refusal(connection, f"UPDATE {table} SET {column} = {column} WHERE id = 'new'") is None
    assert refusal(connection, f"DELETE FROM {table} WHERE id = 'new'") is None


def test_an_entity_rises_stays_itself_and_does_not_vanish(connection: sqlite3.Connection) -> None:
    """§TRN-36"""
    put_one = (
        "INSERT INTO entities VALUES ('id', 't', 'CASE', '42', 1, '{}', '{}', 's', 'h', 0, 0, 'r', 'e', 0, 0)"
    )
    change = "UPDATE entities SET "
    assert refusal(connection, put_one) is None
    assert refusal(connection, change + "version = 3, data = '[]'") is None
    for refused in ("data = '[]'", "version = 2", "version = 4, entity_id = 'other'"):
        assert refusal(connection, change + refused) == TRIGGER
    assert refusal(connection, "DELETE FROM entities") == TRIGGER
    assert refusal(connection, put_one.replace("INSERT", "REPLACE")) == TRIGGER
    connection.execute("INSERT INTO maintenance (reason) VALUES ('test')")
    assert refusal(connection, change + "version = 1, entity_id = 'other'") is None
    assert refusal(connection, "DELETE FROM entities") is None


def test_a_schedule_counts_on_stays_itself_and_does_not_vanish(connection: sqlite3.Connection) -> None:
    """§TRN-38"""
    put_one = (
        "INSERT INTO schedules VALUES ('id', 't', 'nightly', 2, 'task', NULL, 'UTC', 'null', 'ACTIVE', 5, 3, "
        "NULL, NULL, 'r', 'e', 1, 0, 0)"
    )
    change = "UPDATE schedules SET "
    assert refusal(connection, put_one) is None
    assert refusal(connection, change + "fired = 4, next_at = 9") is None
    assert refusal(connection, change + "status = 'DONE', next_at = NULL") is None
    assert refusal(connection, change + "version = 3, status = 'ACTIVE', next_at = 1") is None
    for refused in ("fired = 3", "version = 2", "version = 4, name = 'other'"):
        assert refusal(connection, change + refused) == TRIGGER
    assert refusal(connection, change + "next_at = NULL") not in (None, TRIGGER)
    assert refusal(connection, change + "status = 'ODD'") not in (None, TRIGGER)
    assert refusal(connection, "DELETE FROM schedules") == TRIGGER
    connection.execute("INSERT INTO maintenance (reason) VALUES ('test')")
    assert refusal(connection, change + "version = 1, name = 'other'") is None
    assert refusal(connection, "DELETE FROM schedules") is None


@pytest.mark.parametrize("table", IMMUTABLE)
def test_what_was_said_cannot_be_unsaid(table: str, connection: sqlite3.Connection) -> None:
    before = contents(connection, table)
    for column in columns(connection, table):
        for update in ("UPDATE", "UPDATE OR IGNORE", "UPDATE OR REPLACE"):
            assert refusal(connection, f"{update} {table} SET {column} = {column}") == TRIGGER, column
    assert refusal(connection, f"DELETE FROM {table}") == TRIGGER
    assert refusal(connection, f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}") == TRIGGER
    assert contents(connection, table) == before


class TestMaintenance:
    """The one way past the guards."""

    def test_a_row_in_maintenance_opens_them(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO maintenance (reason) VALUES ('test')")
        for table in (*GUARDED, *IMMUTABLE):
            assert refusal(connection, f"UPDATE {table} SET id = id") is None
            assert refusal(connection, f"DELETE FROM {table}") is None

    def test_they_close_with_it(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO maintenance (reason) VALUES ('test')")
        connection.execute("DELETE FROM maintenance")
        for table in (*GUARDED, *IMMUTABLE):
            assert refusal(connection, f"DELETE FROM {table}") == TRIGGER

    def test_no_other_connection_ever_sees_it(self, file: Path) -> None:
        with closing(open_writer(str(file))) as mine, closing(open_writer(str(file))) as other:
            mine.execute("BEGIN IMMEDIATE")
            mine.execute("INSERT INTO maintenance (reason) VALUES ('test')")
            assert other.execute("SELECT count(*) FROM maintenance").fetchone() == (0,)
            other.execute("PRAGMA busy_timeout = 0")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("DELETE FROM orchestration_events")
            mine.execute("ROLLBACK")
            assert refusal(other, "DELETE FROM orchestration_events") == TRIGGER

    def test_it_cannot_be_left_behind(self, file: Path) -> None:
        with closing(open_writer(str(file))) as connection:
            said = refusal(connection, "INSERT INTO maintenance (reason) VALUES ('for ever')")
            assert said == "SQLITE_CONSTRAINT_FOREIGNKEY"
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO maintenance (reason) VALUES ('for ever')")
            assert refusal(connection, "COMMIT") == "SQLITE_CONSTRAINT_FOREIGNKEY"
            for forged in ("UPDATE maintenance SET over = id", "UPDATE maintenance SET id = 2"):
                refusal(connection, forged)
            connection.execute("ROLLBACK")
            assert connection.execute("SELECT count(*) FROM maintenance").fetchone() == (0,)

    async def test_a_rebuild_leaves_nothing_open(self, store: SqliteStore) -> None:
        await scene.write(store, scene.usual(1))
        (run,) = await store.list_runs(scene.TENANT)
        rows = await store.rows(scene.TENANT, run.id)
        head = await store.load(scene.TENANT, run.id)
        assert head is not None
        await store.replace_rows(scene.TENANT, run.id, head.head.last_seq, rows)
        await self._guarded(store)
        with pytest.raises(StaleSequence):
            await store.replace_rows(scene.TENANT, run.id, 1, rows)
        await self._guarded(store)
        orphans = [msgspec.structs.replace(row, run_id="?") if isinstance(row, Step) else row for row in rows]
        with pytest.raises(CommitRefused, match="FOREIGN KEY"):
            await store.replace_rows(scene.TENANT, run.id, head.head.last_seq, orphans)
        await self._guarded(store)

    async def _guarded(self, store: SqliteStore) -> None:
        with closing(open_writer(store.path)) as connection:
            assert refusal(connection, "DELETE FROM orchestration_events") == TRIGGER
        assert await scene.problems(store) == []
