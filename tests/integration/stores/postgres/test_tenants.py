"""Who sees and changes whose rows: every table and view × verb × role × tenant (§TEN-12 to §TEN-25)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from runstone.core.rows import TABLES
from runstone.stores.guards import GUARDED
from tests.integration.stores.postgres.filled import TENANT_TABLES, WRITTEN_ONCE, Connection, fill
from tests.servers.postgres import Server, in_thread

MINE: Final = "00000000-0000-7000-8000-000000000001"
THEIRS: Final = "00000000-0000-7000-8000-000000000002"
NOBODYS: Final = "00000000-0000-7000-8000-00000000000f"

OWNER, MIGRATOR, ENGINE, API = "runstone_owner", "runstone_migrator", "runstone_engine", "runstone_api"
STRANGER: Final = "pg_monitor"
"""A role that is none of ours."""

READABLE: Final = (*TENANT_TABLES, "run_summary")
DENIED: Final = "42501"
GUARDED_BY: Final = ("P0001", "23503")
"""A trigger or a foreign key says no: the row was found, and the role may touch it."""

KEPT: Final = {"streams", "orchestration_events"}
"""What the engine may not delete; the function of retention does."""

GOES: Final = {"run_queue", "run_checkpoints", "tombstones"}
"""What goes when its time has come: a run ends, or a stream that was archived is back."""

STAYS: Final = {"entities", "schedules"}
"""What outlives every run."""

PLACED: Final = {"tombstones"}
"""What no role may even write: the same function does."""


@pytest.fixture(scope="module")
def both_url(postgres: Server, postgres_template: str) -> Iterator[str]:
    """A database with the rows of two tenants."""
    name = f"{postgres_template}_both"
    try:
        url = postgres.create(name, postgres_template)
        in_thread(_fill_both(url))
        yield url
    finally:
        postgres.drop(name)


async def _fill_both(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await fill(connection, 1, MINE)
        await fill(connection, 2, THEIRS)
    finally:
        await connection.close()


@pytest_asyncio.fixture
async def both(both_url: str) -> AsyncIterator[Connection]:
    """A transaction on it that is rolled back."""
    connection = await asyncpg.connect(both_url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


async def become(connection: Connection, role: str, tenant: str | None) -> None:
    await connection.execute(f"SET LOCAL ROLE {role}")
    if tenant is not None:
        await connection.execute("SELECT set_config('runstone.tenant', $1, true)", tenant)


async def outcome(connection: Connection, statement: str) -> int | str:
    """How many rows it touched, or what was said against it."""
    try:
        async with connection.transaction():
            return int((await connection.execute(statement)).split()[-1])
    except asyncpg.PostgresError as error:
        return error.sqlstate or "?"


async def tenants(connection: Connection, relation: str) -> set[str]:
    rows = await connection.fetch(f"SELECT DISTINCT tenant_id::text FROM runstone.{relation}")
    return {row["tenant_id"] for row in rows}


class TestReading:
    @pytest.mark.parametrize("relation", READABLE)
    async def test_the_engine_sees_every_tenant(self, relation: str, both: Connection) -> None:
        for tenant in (None, "", MINE):
            await become(both, ENGINE, tenant)
            assert await tenants(both, relation) == {MINE, THEIRS}

    @pytest.mark.parametrize("role", [API, OWNER, MIGRATOR])
    @pytest.mark.parametrize("relation", READABLE)
    async def test_everybody_else_sees_the_tenant_that_is_set(
        self, relation: str, role: str, both: Connection
    ) -> None:
        for tenant, seen in (
            (None, set()),
            ("", set()),
            (NOBODYS, set()),
            (MINE, {MINE}),
            (THEIRS, {THEIRS}),
        ):
            await become(both, role, tenant)
            assert await tenants(both, relation) == seen, tenant
            theirs = f"SELECT 1 FROM runstone.{relation} WHERE tenant_id = '{THEIRS}'"
            assert bool(await both.fetch(theirs)) == (tenant == THEIRS)

    @pytest.mark.parametrize("relation", READABLE)
    async def test_a_stranger_sees_nothing(self, relation: str, both: Connection) -> None:
        await become(both, STRANGER, MINE)
        assert await outcome(both, f"SELECT * FROM runstone.{relation}") == DENIED

    async def test_what_is_no_tenant_is_an_error_and_no_tenant(self, both: Connection) -> None:
        await become(both, API, "nonsense")
        assert await outcome(both, "SELECT * FROM runstone.runs") == "22P02"

    async def test_a_tenant_is_set_for_its_transaction_only(self, both_url: str) -> None:
        """§TEN-14: what a pool hands on has no tenant."""
        connection = await asyncpg.connect(both_url)
        try:
            await connection.execute("SET ROLE runstone_api")
            for _ in range(2):
                async with connection.transaction():
                    await connection.execute("SELECT set_config('runstone.tenant', $1, true)", MINE)
                    assert await tenants(connection, "runs") == {MINE}
                assert await tenants(connection, "runs") == set()
        finally:
            await connection.close()

    async def test_a_join_a_count_and_a_subquery_see_no_more(self, both: Connection) -> None:
        await become(both, API, MINE)
        assert await both.fetchval("SELECT count(*) FROM runstone.runs") == 1
        joined = (
            "SELECT count(*) FROM runstone.steps AS s JOIN runstone.runs AS r ON r.tenant_id <> s.tenant_id"
        )
        assert await both.fetchval(joined) == 0
        assert (
            await both.fetchval("SELECT EXISTS (SELECT FROM runstone.runs WHERE tenant_id = $1)", THEIRS)
            is False
        )

    async def test_what_a_function_of_the_callers_sees_is_the_same(self, both: Connection) -> None:
        """A condition that tells what it is given is asked about no foreign row."""
        await both.execute(
            "CREATE FUNCTION pg_temp.tell(uuid) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS "
            "$$ BEGIN IF $1 <> $2$ THEN RAISE EXCEPTION 'told %', $1; END IF; RETURN true; END $$".replace(
                "$2$", f"'{MINE}'::uuid"
            )
        )
        await become(both, API, MINE)
        assert await both.fetch("SELECT 1 FROM runstone.runs WHERE pg_temp.tell(tenant_id)")


class TestWriting:
    @pytest.mark.parametrize("role", [API, OWNER, MIGRATOR])
    @pytest.mark.parametrize("tenant", [None, "", NOBODYS, MINE])
    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_no_foreign_row_is_changed_or_deleted(
        self, table: str, tenant: str | None, role: str, both: Connection
    ) -> None:
        await become(both, role, tenant)
        for verb in (f"UPDATE runstone.{table} SET tenant_id = tenant_id", f"DELETE FROM runstone.{table}"):
            assert await outcome(both, f"{verb} WHERE tenant_id = '{THEIRS}'") in (0, DENIED), verb
            if tenant != MINE:
                assert await outcome(both, verb) in (0, DENIED), verb
        await both.execute("RESET ROLE")
        assert await tenants(both, table) == {MINE, THEIRS}

    @pytest.mark.parametrize("role", [API, OWNER, MIGRATOR])
    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_no_row_is_written_for_another_tenant(
        self, table: str, role: str, both: Connection
    ) -> None:
        """Nor with none set, nor given away."""
        copy = await _copy_of(both, table, THEIRS)
        for tenant in (None, "", NOBODYS, MINE):
            await become(both, role, tenant)
            assert await outcome(both, copy) == DENIED
        gift = f"UPDATE runstone.{table} SET tenant_id = '{THEIRS}'"
        assert await outcome(both, gift) in (DENIED, *GUARDED_BY)

    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_the_api_writes_rows_of_its_own(self, table: str, both: Connection) -> None:
        copy = await _copy_of(both, table, MINE)
        await become(both, API, MINE)
        assert await outcome(both, copy) == (DENIED if table in PLACED else 1)

    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_what_the_api_may_change_and_delete(self, table: str, both: Connection) -> None:
        await become(both, API, MINE)
        updated = await outcome(both, f"UPDATE runstone.{table} SET tenant_id = tenant_id")
        deleted = await outcome(both, f"DELETE FROM runstone.{table}")
        assert (updated == DENIED) == (table in WRITTEN_ONCE)
        assert (deleted == DENIED) == (table not in GOES)

    @pytest.mark.parametrize("tenant", [None, MINE])
    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_the_engine_writes_for_every_tenant(
        self, table: str, tenant: str | None, both: Connection
    ) -> None:
        """§TEN-17"""
        copies = [await _copy_of(both, table, of) for of in (MINE, THEIRS)]
        await become(both, ENGINE, tenant)
        for copy in copies:
            assert await outcome(both, copy) == (DENIED if table in PLACED else 1)
        updated = await outcome(both, f"UPDATE runstone.{table} SET tenant_id = tenant_id")
        deleted = await outcome(both, f"DELETE FROM runstone.{table}")
        assert (updated == DENIED) == (table in WRITTEN_ONCE)
        assert (deleted == DENIED) == (table in KEPT)

    @pytest.mark.parametrize("verb", ["SELECT * FROM", "DELETE FROM", "UPDATE", "INSERT INTO", "TRUNCATE"])
    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_a_stranger_may_do_nothing(self, table: str, verb: str, both: Connection) -> None:
        rest = {"UPDATE": " SET tenant_id = tenant_id", "INSERT INTO": " (tenant_id) VALUES (NULL)"}.get(
            verb, ""
        )
        await become(both, STRANGER, MINE)
        assert await outcome(both, f"{verb} runstone.{table}{rest}") == DENIED

    @pytest.mark.parametrize("role", [ENGINE, API])
    @pytest.mark.parametrize("table", TENANT_TABLES)
    async def test_nobody_who_runs_truncates_or_alters(self, table: str, role: str, both: Connection) -> None:
        await become(both, role, MINE)
        for statement in (
            f"TRUNCATE runstone.{table}",
            f"ALTER TABLE runstone.{table} DISABLE TRIGGER ALL",
            f"ALTER TABLE runstone.{table} NO FORCE ROW LEVEL SECURITY",
            f"DROP TABLE runstone.{table}",
            "CREATE TABLE runstone.mine (id bigint)",
        ):
            assert await outcome(both, statement) == DENIED, statement

    @pytest.mark.parametrize("role", [ENGINE, API])
    async def test_the_summary_is_for_reading(self, role: str, both: Connection) -> None:
        await become(both, role, MINE)
        no_such_view = "55000"  # what reads through a function, as on 14, cannot be written to by anybody
        for change in (
            "UPDATE runstone.run_summary SET status = 'FAILED'",
            "DELETE FROM runstone.run_summary",
        ):
            assert await outcome(both, change) in (DENIED, no_such_view)

    async def test_an_upsert_finds_no_foreign_row(self, both: Connection) -> None:
        """The one key that tenants share is a stream's id, and it tells nothing but that it is taken."""
        theirs = await both.fetchval(f"SELECT id FROM runstone.streams WHERE tenant_id = '{THEIRS}' LIMIT 1")
        await become(both, API, MINE)
        upsert = (
            "INSERT INTO runstone.streams (id, tenant_id, kind, last_seq, head, last_at, fence) "
            f"VALUES ('{theirs}', '{MINE}', 'RUN', 9, '', now(), 9) "
            "ON CONFLICT (id) DO UPDATE SET last_seq = 9, fence = 9"
        )
        assert await outcome(both, upsert) == DENIED


class TestDoors:
    """Maintenance, leases and epochs."""

    @pytest.mark.parametrize(
        ("role", "allowed"), [(ENGINE, True), (API, False), (OWNER, True), (MIGRATOR, True)]
    )
    async def test_who_may_rebuild(self, role: str, allowed: bool, both: Connection) -> None:
        await become(both, role, MINE)
        said = await outcome(both, "SELECT runstone.begin_rebuild('test')")
        assert said == (1 if allowed else DENIED)

    @pytest.mark.parametrize("role", [ENGINE, API])
    async def test_nobody_who_runs_opens_the_door_of_retention(self, role: str, both: Connection) -> None:
        await become(both, role, MINE)
        opened = "INSERT INTO runstone.maintenance (reason, kind) VALUES ('mine', 'RETENTION')"
        for statement in (opened, "UPDATE runstone.maintenance SET kind = 'RETENTION'"):
            assert await outcome(both, statement) == DENIED

    async def test_the_function_of_retention_removes_what_belongs_to_the_tenant_named(
        self, both: Connection
    ) -> None:
        """§TEN-25: for an engine that could not by itself; what it is told of another tenant is not there."""
        (theirs,) = await both.fetch(f"SELECT correlation_id FROM runstone.runs WHERE tenant_id = '{THEIRS}'")
        stones = await both.fetchval(_STONES, theirs[0])
        forget = "SELECT outcome FROM runstone.forget_correlation($1, $2, $3)"
        await become(both, ENGINE, None)
        assert await both.fetchval(forget, MINE, theirs[0], stones) == "STALE"
        assert await both.fetchval(forget, THEIRS, theirs[0], stones) == "REMOVED"
        await both.execute("RESET ROLE")
        for table in set(TENANT_TABLES) - PLACED:
            assert await tenants(both, table) == ({MINE, THEIRS} if table in STAYS else {MINE}), table
        assert await both.fetchval("SELECT count(*) FROM runstone.maintenance") == 0

    async def test_retention_is_not_for_the_api(self, both: Connection) -> None:
        await become(both, API, MINE)
        forget = f"SELECT runstone.forget_correlation('{MINE}', '{MINE}', '[]')"
        assert await outcome(both, forget) == DENIED

    async def test_the_engine_makes_rows_again(self, both: Connection) -> None:
        await become(both, ENGINE, None)
        await both.execute("SELECT runstone.begin_rebuild('test')")
        for table in ("run_queue", "outbox_events", "tool_calls", "effects", "step_corrections"):
            assert await outcome(both, f"DELETE FROM runstone.{table}") != 0
        for table in ("steps", "runs", "signals"):
            assert isinstance(await outcome(both, f"DELETE FROM runstone.{table}"), int), table
        assert await outcome(both, "DELETE FROM runstone.orchestration_events") == DENIED
        assert set(TABLES.values()) >= set(GUARDED)

    @pytest.mark.parametrize("verb", ["SELECT * FROM runstone.workers", "DELETE FROM runstone.workers"])
    async def test_leases_are_the_engines(self, verb: str, both: Connection) -> None:
        await become(both, API, MINE)
        assert await outcome(both, verb) == DENIED
        await become(both, ENGINE, None)
        assert await outcome(both, verb) == 0

    async def test_no_role_of_ours_logs_in_or_stands_above_the_rules(self, both: Connection) -> None:
        found = await both.fetch(
            "SELECT rolname FROM pg_roles WHERE rolname LIKE 'runstone\\_%' "
            "AND NOT rolcanlogin AND NOT rolsuper AND NOT rolbypassrls AND NOT rolcreaterole"
        )
        assert {row["rolname"] for row in found} >= {OWNER, MIGRATOR, ENGINE, API}


_STONES: Final = """
SELECT json_agg(
    json_build_object(
        'stream_id', s.id, 'tenant_id', s.tenant_id, 'kind', s.kind, 'last_seq', s.last_seq, 'head', s.head,
        'correlation_id', $1::uuid, 'archive', 'a', 'bundle', 'b', 'bundle_sha256', 'c', 'removed_at', now(),
        'digest', 'd'
    )
)::text
FROM runstone.streams AS s
WHERE s.id IN (SELECT stream_id FROM runstone.orchestration_events WHERE correlation_id = $1::uuid)
"""
"""The tombstones of all streams of a correlation."""


async def _copy_of(connection: Connection, table: str, tenant: str) -> str:
    """A statement that writes another row of a tenant, made by a superuser from one that is there."""
    names = await connection.fetchval(
        "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute "
        "WHERE attrelid = $1::regclass AND attnum > 0 "
        "AND attname NOT IN ('sequence_number', 'transaction_id')",
        f"runstone.{table}",
    )
    listed = ", ".join(names)
    one = f"SELECT {listed} FROM runstone.{table} WHERE tenant_id = $1 LIMIT 1"
    row = await connection.fetchval(f"SELECT row_to_json(r)::text FROM ({one}) AS r", tenant)
    fresh = {
        "id": "gen_random_uuid()",
        "run_seq": "run_seq + 100000",
        "step_index": "step_index + 1000",
        "checkpoint_index": "1000",
        "version": "version + 1000",
        "source_id": "gen_random_uuid()::text",
        "run_request_id": "gen_random_uuid()::text",
        "key": "NULL",
        "entity_id": "gen_random_uuid()::text",
        "name": "gen_random_uuid()::text",
        "idempotency_key": "gen_random_uuid()::text",
    }
    if table == "orchestration_events":
        fresh["idempotency_key"] = "decode(md5(random()::text), 'hex')"
    if table == "outbox_events":  # belongs to an effect, which has one already: put this one in its place
        await connection.execute(
            "ALTER TABLE runstone.outbox_events DROP CONSTRAINT IF EXISTS outbox_events_id_tenant_id_fkey"
        )
    if table == "run_queue":
        await connection.execute(
            "ALTER TABLE runstone.run_queue DROP CONSTRAINT IF EXISTS run_queue_run_id_tenant_id_fkey"
        )
        fresh["run_id"] = "gen_random_uuid()"
    if table == "tombstones":
        fresh["stream_id"] = "gen_random_uuid()"
    values = ", ".join(fresh.get(name, name) for name in names)
    quoted = row.replace("'", "''")
    return (
        f"INSERT INTO runstone.{table} ({listed}) "
        f"SELECT {values} FROM json_populate_record(NULL::runstone.{table}, '{quoted}')"
    )
