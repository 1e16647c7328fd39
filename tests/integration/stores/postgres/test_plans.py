"""The named statements find what they look for by an index, as the planner itself chooses on full tables."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import pytest
import pytest_asyncio

from runstone.core.schedule import Schedule
from runstone.stores.postgres import PostgresStore, commits
from runstone.stores.postgres.rows import EVENTS, ROWS, STREAMS, TOMBSTONES
from runstone.stores.sql import statements
from tests.integration.stores.postgres.filled import TENANT_TABLES, Connection, fill
from tests.integration.stores.sqlite.scene import usual
from tests.servers.postgres import Server, in_thread

NAMED: Final = statements("postgres")
TENANTS: Final = tuple(f"00000000-0000-7000-8000-00000000000{number}" for number in range(1, 5))
COPIES: Final = 400
"""How many times the rows of each tenant are there."""

SMALL: Final = {"workers", "feed_epochs"}
"""Tables of a few rows, which are read whole."""

EXPECTED: Final[dict[str, set[str]]] = {
    "head": {"streams_pkey"},
    "lock_head": {"streams_pkey"},
    "keyed": {"streams_pkey", "orchestration_events_stream_id_idempotency_key_key"},
    "load": {"streams_pkey", "orchestration_events_stream_id_run_seq_key"},
    "load_many": {"streams_pkey", "orchestration_events_stream_id_run_seq_key"},
    "fetch": {"orchestration_events_stream_id_run_seq_key"},
    "stretches": {"orchestration_events_stream_id_run_seq_key"},
    "run_by_key": {"runs_by_key"},
    "signal_by_source": {"signals_tenant_id_source_channel_source_id_key"},
    "list_runs": {"runs_by_status"},
    "correlation_heads": {"events_by_correlation", "streams_pkey"},
    "next_correlations": {"events_by_correlation"},
    "checkpoints": {"run_checkpoints_run_id_tenant_id_checkpoint_index_key"},
    "feed": {"events_in_order"},
    "feed_of_past_epoch": {"events_in_order"},
    "feed_is_held": {"events_in_order"},
    "heartbeat": {"run_queue_by_owner"},
    "claim": {"run_queue_due", "run_queue_by_lane", "run_queue_pkey", "streams_pkey"},
    "claim_effects": {"outbox_due", "outbox_events_pkey"},
    "extend_effects": {"outbox_events_pkey"},
    "release_stray_effects": {"outbox_due", "outbox_events_pkey"},
    "held_effects": {"effects_pkey", "outbox_events_pkey", "runs_pkey"},
    "effect_by_key": {"effects_tenant_id_idempotency_key_key"},
    "list_effects": {"effects_by_status"},
    "list_entities": {"entities_tenant_id_entity_type_entity_id_key"},
    "schedule_by_name": {"schedules_tenant_id_name_key"},
    "list_schedules": {"schedules_tenant_id_name_key"},
    "due_schedules": {"schedules_due", "streams_pkey"},
    "unfired": {"schedules_due"},
    "expired_schedules": {"schedules_over", "streams_pkey"},
}
"""The indexes that each statement may read by."""

_NEWEST: Final = "WHERE tenant_id = $1 AND status = $2 ORDER BY {} DESC LIMIT 50"

QUESTIONS: Final = {
    "runs_by_status": f"runs {_NEWEST.format('id')}",
    "runs_by_signal": "runs WHERE signal_id = $1",
    "runs_by_correlation": "runs WHERE correlation_id = $1",
    "signals_by_status": f"signals {_NEWEST.format('received_at')}",
    "signals_by_correlation": "signals WHERE correlation_id = $1",
    "steps_by_status": f"steps {_NEWEST.format('started_at')}",
    "steps_run_id_tenant_id_step_index_key": "steps WHERE run_id = $1 ORDER BY step_index",
    "effects_by_status": f"effects {_NEWEST.format('id')}",
    "effects_by_run": "effects WHERE run_id = $1",
    "effects_by_step": "effects WHERE step_id = $1",
    "outbox_by_status": f"outbox_events {_NEWEST.format('created_at')}",
    "tool_calls_by_step": "tool_calls WHERE step_id = $1 ORDER BY called_at",
    "tool_calls_by_run": "tool_calls WHERE run_id = $1",
    "tool_calls_by_duration": "tool_calls WHERE tenant_id = $1 AND tool_name = $2 "
    "ORDER BY execution_duration_ms DESC LIMIT 50",
    "step_corrections_by_run": "step_corrections WHERE run_id = $1",
    "checkpoints_by_expiry": "run_checkpoints WHERE expires_at <= $1 LIMIT 50",
    "signals_by_age": "signals WHERE ingested_at < $1 ORDER BY ingested_at, id LIMIT 50",
    "tombstones_by_correlation": "tombstones WHERE tenant_id = $1 AND correlation_id = $2",
    "events_by_correlation": "orchestration_events WHERE tenant_id = $1 AND correlation_id = $2 "
    "ORDER BY sequence_number",
}
"""What people and dashboards ask, by the index that answers."""


_UNANALYSED: Final = """
SELECT format('ALTER TABLE runstone.%I SET (autovacuum_enabled = off)', tablename)
FROM pg_tables
WHERE schemaname = 'runstone'
"""
_USED: Final = """
SELECT indexrelname
FROM pg_stat_user_indexes
WHERE schemaname = 'runstone'
    AND idx_tup_read > 0
    AND NOT EXISTS (
        SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'runstone'
    )
"""
_COLUMNS: Final = """
SELECT array_agg(attname::text)
FROM pg_attribute
WHERE attrelid = $1::regclass AND attnum > 0 AND attname <> 'sequence_number'
"""
_SPREAD: Final = """
SELECT setseed(0.5); -- the same rows each time
INSERT INTO runstone.workers VALUES ('w1', now());
UPDATE runstone.run_queue SET owner = 'w' || trunc(random() * 50), wake_at = NULL WHERE random() < 0.9;
UPDATE runstone.run_queue SET lane = run_id::text WHERE random() < 0.02;
UPDATE runstone.outbox_events SET status = 'PENDING' WHERE random() < 0.02;
UPDATE runstone.schedules SET status = 'DONE', next_at = NULL WHERE random() < 0.9;
"""
"""Most runs sleep, few effects are left to do."""


@pytest.fixture
def postgres_url(fresh_postgres_url: str) -> str:
    """Plans depend on what was in the tables before."""
    return fresh_postgres_url


@pytest.fixture(scope="module")
def grown_url(postgres: Server, postgres_template: str) -> Iterator[str]:
    """A database with some thousand runs of four tenants."""
    name = f"{postgres_template}_grown"
    try:
        url = postgres.create(name, postgres_template)
        in_thread(_grow(url))
        yield url
    finally:
        postgres.drop(name)


async def _grow(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SET session_replication_role = replica"
        )  # without foreign keys and triggers
        for seed, tenant in enumerate(TENANTS):
            await fill(connection, seed, tenant)
        for table in TENANT_TABLES:
            names = await connection.fetchval(_COLUMNS, f"runstone.{table}")
            await connection.execute(_multiply(table, names))
        await connection.execute(_SPREAD)
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


def _multiply(table: str, names: list[str]) -> str:
    """The same rows again under other ids; what belongs together stays together."""
    others = {
        name: f"md5({name}::text || n)::uuid"
        for name in names
        if name == "id" or name.endswith(("stream_id", "run_id", "step_id", "signal_id", "correlation_id"))
    }
    others |= {
        name: f"{name} || n::text"
        for name in names
        if name in ("source_id", "key", "run_request_id", "entity_id", "name")
    }
    if "idempotency_key" in names:
        others["idempotency_key"] = (
            "decode(md5(idempotency_key::text || n), 'hex')"
            if table == "orchestration_events"
            else "idempotency_key || n::text"
        )
    listed = ", ".join(names)
    values = ", ".join(others.get(name, name) for name in names)
    series = f"generate_series(1, {COPIES}) AS n"
    return f"INSERT INTO runstone.{table} ({listed}) SELECT {values} FROM runstone.{table}, {series}"


@pytest_asyncio.fixture
async def grown(grown_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(grown_url)
    yield connection
    await connection.close()


async def reads(connection: Connection, statement: str) -> set[str]:
    """By what a statement reads our tables, whatever its values: indexes, and tables read whole."""
    found: set[str] = set()
    for node in await plan(connection, statement):
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] not in SMALL:
            found.add(f"all of {node['Relation Name']}")
        if "Index Name" in node:
            found.add(node["Index Name"])
    return found


async def plan(connection: Connection, statement: str) -> list[dict[str, Any]]:
    """The nodes of a statement's plan, whatever its values."""
    await connection.execute(f"SET plan_cache_mode = force_generic_plan; PREPARE asked AS {statement}")
    count = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'asked'"
    values = ", ".join(["NULL"] * await connection.fetchval(count))
    shown = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked{f'({values})' if values else ''}")
    await connection.execute("DEALLOCATE asked")
    return list(_nodes(json.loads(shown)[0]["Plan"]))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def filled_in(statement: str) -> str:
    columns = "*" if "transaction_id" not in statement else "event_data"
    statement = statement.replace("{head_once}", "s.fence").replace(" ({head_columns})", "")
    return re.sub(r"\{\w*selected\}", columns, statement)


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_statement_reads_by_its_indexes(name: str, grown: Connection) -> None:
    found = await reads(grown, filled_in(NAMED[name])) - {"workers_pkey", "feed_epochs_pkey"}
    assert found
    assert found <= EXPECTED[name]


@pytest.mark.parametrize("name", ["feed", "feed_of_past_epoch", "next_correlations", "graveyard"])
async def test_a_page_is_read_in_the_order_of_its_index(name: str, grown: Connection) -> None:
    """To sort is to read all that is left for every page."""
    statement = NAMED[name].replace("{event_selected}", EVENTS.selected)
    nodes = await plan(grown, statement.replace("{tombstone_selected}", TOMBSTONES.selected))
    assert "Sort" not in {node["Node Type"] for node in nodes}


@pytest.mark.parametrize("name", ["feed", "feed_of_past_epoch", "next_correlations", "graveyard"])
async def test_a_page_begins_where_the_one_before_has_ended(name: str, grown: Connection) -> None:
    """What was read before is a condition of the index: else the pages of a walk get longer and longer."""
    scans = [node for node in await plan(grown, filled_in(NAMED[name])) if "Index Name" in node]
    assert scans
    assert all(" > " in scan.get("Index Cond", "") for scan in scans)


@pytest.mark.parametrize("name", ["feed_is_held", "feed_status"])
async def test_what_holds_the_feed_up_is_found_among_the_transactions_under_way(
    name: str, grown: Connection
) -> None:
    """Not among those above them too, of which a restore may have brought millions."""
    scans = [node for node in await plan(grown, NAMED[name]) if node.get("Index Name") == "events_in_order"]
    assert ["xmin" in scan["Index Cond"] and "xmax" in scan["Index Cond"] for scan in scans] == [True]


async def test_a_page_of_what_is_due_is_looked_up_at_both_ends(grown: Connection) -> None:
    """In the order of the index: what is due at one time is not sorted anew for each page of it."""
    statement = NAMED["due_schedules"].replace("{schedule_selected}", ROWS[Schedule].selected)
    nodes = await plan(grown, statement.replace("{head_selected}", STREAMS.selected))
    (place,) = (place for place, node in enumerate(nodes) if node["Node Type"] == "Limit")
    scan = nodes[place + 1]
    assert scan["Index Name"] == "schedules_due"
    assert "next_at <=" in scan["Index Cond"]
    assert "ROW(next_at, id) >" in scan["Index Cond"]


async def test_a_page_of_schedules_that_are_over_is_looked_up_at_both_ends(grown: Connection) -> None:
    nodes = await plan(grown, NAMED["expired_schedules"])
    (scan,) = (node for node in nodes if node.get("Index Name") == "schedules_over")
    assert "created_at <=" in scan["Index Cond"]
    assert "ROW(created_at, id) >" in scan["Index Cond"]
    assert "Sort" not in {node["Node Type"] for node in nodes}


async def test_a_page_of_a_small_tenant_is_found_among_those_of_large_ones(grown: Connection) -> None:
    """Tenant, status and place are all looked up, and nothing else is read."""
    for name in ("list_runs", "list_effects"):
        (scan,) = (node for node in await plan(grown, filled_in(NAMED[name])) if "Index Name" in node)
        assert all(column in scan["Index Cond"] for column in ("tenant_id", "status", "id <"))


class TestFreshDatabases:
    """Plans are made while tables are empty, and kept as they grow; nobody has analysed anything yet."""

    async def test_a_batch_is_written_by_keys(self, connection: Connection) -> None:
        await connection.execute(NAMED["session"])
        everything = commits.statement(tuple(range(len(commits.PARTS))), opens=True, moves=True, holds=True)
        written = ("streams", "signals", "runs", "outbox_events", "run_queue")  # the rest is only added to
        assert await reads(connection, everything) == {f"{table}_pkey" for table in written}

    async def test_what_refers_to_others_finds_them_by_keys(
        self, postgres_url: str, connection: Connection
    ) -> None:
        """The checks of foreign keys too, which no EXPLAIN shows: the server counts the use of indexes."""

        async def run(store: PostgresStore, seed: int) -> None:
            for commit in usual(seed):
                await store.commit(commit)

        for (statement,) in await connection.fetch(_UNANALYSED):
            await connection.execute(statement)
        async with await PostgresStore.open(postgres_url) as store:
            await asyncio.gather(*(run(store, seed) for seed in range(60)))
        async with asyncio.timeout(30):  # a process tells its counts when it ends
            while not (used := {row[0] for row in await connection.fetch(_USED)}):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert {"runs_pkey", "steps_pkey", "signals_pkey", "streams_pkey"} <= used
        assert {index for index in used if not index.endswith("_pkey")} == set()


@pytest.mark.parametrize("index", QUESTIONS)
async def test_a_question_reads_by_its_index(index: str, grown: Connection) -> None:
    assert await reads(grown, f"SELECT * FROM runstone.{QUESTIONS[index]}") == {index}


async def test_every_index_is_there_for_some_question(grown: Connection) -> None:
    """An index costs every write: one that answers nothing has to go."""
    rows = await grown.fetch("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'runstone'")
    used = set().union(*EXPECTED.values()) | QUESTIONS.keys()
    idle = {row["indexname"] for row in rows if not row["indexdef"].startswith("CREATE UNIQUE")} - used
    assert idle == set()


@pytest.mark.parametrize("role", ["runstone_engine", "runstone_api"])
async def test_row_level_security_keeps_the_index(role: str, grown: Connection) -> None:
    async with grown.transaction():
        await grown.execute(f"SET LOCAL ROLE {role}")
        assert await reads(grown, filled_in(NAMED["fetch"])) == EXPECTED["fetch"]
        assert await reads(grown, f"SELECT * FROM runstone.{QUESTIONS['runs_by_status']}") == {
            "runs_by_status"
        }
        assert "all of runs" not in await reads(grown, "SELECT * FROM runstone.run_summary WHERE id = $1")
