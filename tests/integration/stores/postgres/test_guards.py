"""The database keeps the core's laws by itself, whoever writes to it (§TRN-33 to §TRN-35)."""

from __future__ import annotations

from typing import Any, Final

import asyncpg
import pytest

from runstone.core.transitions import Machine
from runstone.stores.guards import GUARDED, IMMUTABLE
from tests.integration.stores.postgres.filled import Connection

FROZEN: Final = [(table, state) for table, machine in GUARDED.items() for state in sorted(machine.terminal)]
PAIRS: Final = [
    (table, before, after)
    for table, machine in GUARDED.items()
    for before in machine.states
    for after in machine.states
]
NEW: Final = "00000000-0000-7000-8000-0000000000ff"
TRIGGER: Final = "P0001"
CHECK: Final = "23514"


async def refusal(connection: Connection, statement: str, *values: Any) -> str | None:
    """What the database says against the statement; if nothing, then what the statement did stays."""
    try:
        async with connection.transaction():
            await connection.execute(statement, *values)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    return None


async def columns(connection: Connection, table: str) -> dict[str, str]:
    """The type of each column that can be written."""
    found = await connection.fetch(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        f"runstone.{table}",
    )
    return {row[0]: row[1] for row in found}


async def put(connection: Connection, table: str, status: str) -> str | None:
    """Puts a row in that state beside those that are there, with the id `NEW`; or what is said against it."""
    unique = {"source_id": "'s'", "run_request_id": "'r'", "idempotency_key": "'k'", "step_index": "99"}
    given = unique | {"id": f"'{NEW}'::uuid", "status": f"'{status}'", "exit_reason": "'SOME'"}
    names = list(await columns(connection, table))
    values = ", ".join(given.get(name, name) for name in names)
    copy = f"INSERT INTO runstone.{table} ({', '.join(names)}) SELECT {values} FROM runstone.{table} LIMIT 1"
    return await refusal(connection, copy)


async def contents(connection: Connection, table: str) -> list[str]:
    rows = await connection.fetch(f"SELECT t::text AS line FROM runstone.{table} AS t ORDER BY 1")
    return [row["line"] for row in rows]


def core_allows(machine: Machine, before: str, after: str) -> bool:
    """Whether a commit may leave an aggregate there: by some moves, or where it was if it has not ended."""
    return after in machine.reachable(before) or (before == after and before not in machine.terminal)


@pytest.mark.parametrize(("table", "before", "after"), PAIRS)
async def test_core_and_trigger_agree_on_every_pair_of_states(
    table: str, before: str, after: str, filled: Connection
) -> None:
    assert await put(filled, table, before) is None
    said = await refusal(filled, f"UPDATE runstone.{table} SET status = $1 WHERE id = $2", after, NEW)
    assert said == (None if core_allows(GUARDED[table], before, after) else TRIGGER)


@pytest.mark.parametrize("table", GUARDED)
async def test_a_state_that_the_core_does_not_know_is_refused(table: str, filled: Connection) -> None:
    machine = GUARDED[table]
    for state in ("NONSENSE", "", machine.initial.lower()):
        assert await put(filled, table, state) == CHECK
    assert await put(filled, table, machine.initial) is None
    said = await refusal(filled, f"UPDATE runstone.{table} SET status = 'NONSENSE' WHERE id = $1", NEW)
    assert said == TRIGGER
    assert await refusal(filled, f"UPDATE runstone.{table} SET status = NULL WHERE id = $1", NEW) == "23502"


async def test_a_run_that_ended_badly_says_why(filled: Connection) -> None:
    assert await put(filled, "runs", "RUNNING") is None
    for state in ("FAILED", "CANCELLED"):
        update = "UPDATE runstone.runs SET status = $1, exit_reason = NULL WHERE id = $2"
        assert await refusal(filled, update, state, NEW) == CHECK


@pytest.mark.parametrize(("table", "state"), FROZEN)
async def test_a_row_that_has_ended_is_frozen_in_every_column(
    table: str, state: str, filled: Connection
) -> None:
    assert await put(filled, table, state) is None
    before = await contents(filled, table)
    for column in await columns(filled, table):
        for value in (column, "NULL"):
            update = f"UPDATE runstone.{table} SET {column} = {value} WHERE id = $1"
            assert await refusal(filled, update, NEW) == TRIGGER, (column, value)
    assert await contents(filled, table) == before


@pytest.mark.parametrize(("table", "state"), FROZEN)
async def test_a_row_that_has_ended_is_neither_deleted_nor_replaced(
    table: str, state: str, filled: Connection
) -> None:
    assert await put(filled, table, state) is None
    before = await contents(filled, table)
    assert await refusal(filled, f"DELETE FROM runstone.{table} WHERE id = $1", NEW) == TRIGGER
    copy = f"INSERT INTO runstone.{table} SELECT * FROM runstone.{table} WHERE id = $1"
    upsert = f"{copy} ON CONFLICT (id, tenant_id) DO UPDATE SET correlation_id = excluded.correlation_id"
    assert await refusal(filled, upsert, NEW) == TRIGGER
    assert await contents(filled, table) == before


@pytest.mark.parametrize("table", GUARDED)
async def test_a_row_that_has_not_ended_can_change(table: str, filled: Connection) -> None:
    assert await put(filled, table, GUARDED[table].initial) is None
    for column in (await columns(filled, table)).keys() - {"id", "status"}:
        update = f"UPDATE runstone.{table} SET {column} = {column} WHERE id = $1"
        assert await refusal(filled, update, NEW) is None
    assert await refusal(filled, f"DELETE FROM runstone.{table} WHERE id = $1", NEW) is None


@pytest.mark.parametrize("table", IMMUTABLE)
async def test_what_was_said_cannot_be_unsaid(table: str, filled: Connection) -> None:
    before = await contents(filled, table)
    for column in await columns(filled, table):
        assert await refusal(filled, f"UPDATE runstone.{table} SET {column} = {column}") == TRIGGER, column
    assert await refusal(filled, f"DELETE FROM runstone.{table}") == TRIGGER
    assert await contents(filled, table) == before


@pytest.mark.parametrize("table", [*GUARDED, *IMMUTABLE, "streams"])
async def test_no_table_can_be_emptied_at_a_stroke(table: str, filled: Connection) -> None:
    before = await contents(filled, table)
    assert before
    for how in ("", " CASCADE"):
        assert await refusal(filled, f"TRUNCATE runstone.{table}{how}") in (TRIGGER, "0A000")
        assert await contents(filled, table) == before
    assert await refusal(filled, f"TRUNCATE runstone.{table} CASCADE") == TRIGGER


async def test_an_entity_rises_stays_itself_and_does_not_vanish(filled: Connection) -> None:
    """§TRN-36"""
    change = "UPDATE runstone.entities SET "
    assert await refusal(filled, change + "version = version + 1, data = '{}'") is None
    for refused in ("data = '[]'", "version = version - 1", "version = version + 1, entity_id = 'other'"):
        assert await refusal(filled, change + refused) == TRIGGER
    assert await refusal(filled, "DELETE FROM runstone.entities") == TRIGGER
    assert await refusal(filled, "TRUNCATE runstone.entities") == TRIGGER
    await filled.execute("SELECT runstone.begin_rebuild('test')")
    assert await refusal(filled, change + "version = 1, entity_id = 'other'") is None
    assert await refusal(filled, "DELETE FROM runstone.entities") is None


async def test_a_schedule_counts_on_stays_itself_and_does_not_vanish(filled: Connection) -> None:
    """§TRN-38"""
    change = "UPDATE runstone.schedules SET "
    assert await refusal(filled, change + "fired = fired + 1, version = version + 1") is None
    assert await refusal(filled, change + "status = 'DONE', next_at = NULL") is None
    assert await refusal(filled, change + "status = 'ACTIVE', next_at = now()") is None
    for refused in ("fired = fired - 1", "version = version - 1", "name = 'other'"):
        assert await refusal(filled, change + refused) == TRIGGER
    assert await refusal(filled, change + "next_at = NULL") not in (None, TRIGGER)
    assert await refusal(filled, change + "status = 'ODD'") not in (None, TRIGGER)
    assert await refusal(filled, "DELETE FROM runstone.schedules") == TRIGGER
    assert await refusal(filled, "TRUNCATE runstone.schedules") == TRIGGER
    await filled.execute("SELECT runstone.begin_rebuild('test')")
    assert await refusal(filled, change + "version = 1, name = 'other'") is None
    assert await refusal(filled, "DELETE FROM runstone.schedules") is None


async def test_a_head_does_not_go_back(filled: Connection) -> None:
    """§TEN-3"""
    for change in ("last_seq = last_seq - 1", "fence = fence - 1", "tenant_id = id", "id = tenant_id"):
        assert await refusal(filled, f"UPDATE runstone.streams SET {change}") == TRIGGER, change
    assert await refusal(filled, "DELETE FROM runstone.streams") == TRIGGER
    onwards = "UPDATE runstone.streams SET last_seq = last_seq + 1, fence = fence + 1, head = '\\x00'"
    assert await refusal(filled, onwards) is None


class TestMaintenance:
    """The one way past the guards (§STO-50)."""

    FOLDED: Final = (*GUARDED, "step_corrections")

    async def test_a_rebuild_opens_those_of_folded_rows(self, filled: Connection) -> None:
        for table in GUARDED:
            assert await put(filled, table, sorted(GUARDED[table].terminal)[0]) is None
        await filled.execute("SELECT runstone.begin_rebuild('test')")
        for table in GUARDED:
            for change in (f"UPDATE runstone.{table} SET id = id", f"DELETE FROM runstone.{table}"):
                assert await refusal(filled, f"{change} WHERE id = $1", NEW) is None, change
        assert await refusal(filled, "DELETE FROM runstone.step_corrections") is None

    async def test_a_rebuild_opens_no_event(self, filled: Connection) -> None:
        await filled.execute("SELECT runstone.begin_rebuild('test')")
        for table in ("orchestration_events", "streams"):
            assert await refusal(filled, f"DELETE FROM runstone.{table}") == TRIGGER
        assert await refusal(filled, "UPDATE runstone.orchestration_events SET actor = 'eve'") == TRIGGER
        assert await refusal(filled, "TRUNCATE runstone.runs CASCADE") == TRIGGER

    async def test_retention_deletes_events_and_changes_none(self, filled: Connection) -> None:
        await filled.execute("INSERT INTO runstone.maintenance (reason, kind) VALUES ('test', 'RETENTION')")
        changed = "UPDATE runstone.orchestration_events SET actor = 'eve'"
        assert await refusal(filled, changed) == TRIGGER
        assert await refusal(filled, "TRUNCATE runstone.orchestration_events") == TRIGGER
        for table in ("orchestration_events", "streams"):
            assert await refusal(filled, f"DELETE FROM runstone.{table}") is None

    async def test_they_close_with_it(self, filled: Connection) -> None:
        await filled.execute("SELECT runstone.begin_rebuild('test')")
        await filled.execute("SELECT runstone.end_rebuild()")
        for table in self.FOLDED:
            assert await refusal(filled, f"DELETE FROM runstone.{table}") in (TRIGGER, "23503")
        assert await refusal(filled, "DELETE FROM runstone.step_corrections") == TRIGGER

    async def test_no_other_connection_ever_sees_it(self, filled: Connection, filled_url: str) -> None:
        await filled.execute("SELECT runstone.begin_rebuild('test')")
        other = await asyncpg.connect(filled_url)
        try:
            assert await other.fetchval("SELECT count(*) FROM runstone.maintenance") == 0
            assert await refusal(other, "DELETE FROM runstone.step_corrections") == TRIGGER
        finally:
            await other.close()

    async def test_it_cannot_be_left_behind(self, connection: Connection) -> None:
        left = "INSERT INTO runstone.maintenance (reason, kind) VALUES ('for ever', 'RETENTION')"
        for statement in ("SELECT runstone.begin_rebuild('for ever')", left):
            assert await refusal(connection, statement) == "23503"
        async with connection.transaction():
            await connection.execute("SELECT runstone.begin_rebuild('for now')")
            for forged in ("SET over = id", "SET id = 2", "SET over = NULL"):
                said = await refusal(connection, f"UPDATE runstone.maintenance {forged}")
                assert said in ("23514", "23502"), forged
            await connection.execute("SELECT runstone.end_rebuild()")
        assert await connection.fetchval("SELECT count(*) FROM runstone.maintenance") == 0
