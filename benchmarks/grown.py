"""A log that has grown: one real run, multiplied by the server itself until there are so many events.

The rows of a five-step run, written by the store, are inserted again and again with other ids and times. Ids
are as UUIDv7 makes them: the time first, so that they come in order; references stay among a run's own rows.
Every index is there from the start and grows as it would. Hash chains are copied, so they prove nothing here:
what is measured never reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from benchmarks.workloads import five_step_run
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.rows import SCHEMA

TABLES: Final = ("streams", "orchestration_events", "signals", "runs", "steps")
EVENTS: Final = 17
"""Events of one run and its signal."""

APART: Final = timedelta(milliseconds=20)
"""Between one run and the next."""

AGO: Final = timedelta(minutes=10)
"""How long ago the last was: no id may have the time of the run that is multiplied."""

AT_ONCE: Final = 2_000
"""Runs in one transaction."""

LANES: Final = 2
_GIVEN: Final = frozenset({"sequence_number", "transaction_id"})
"""Columns that the server fills in."""

_OWN: Final = frozenset({"source_id", "run_request_id"})
"""Text that is different for every run."""

_COLUMNS: Final = (
    "SELECT column_name::text, data_type::text FROM information_schema.columns "
    "WHERE table_schema = $1 AND table_name = $2 ORDER BY ordinal_position"
)


async def grow(
    url: str, events: int, *, at_once: int = AT_ONCE, told: Callable[[int], None] = lambda events: None
) -> int:
    """Fills an empty log with at least so many events; how many there are then."""
    async with await PostgresStore.open(url) as store:
        for commit in five_step_run():
            await store.commit(commit)
    runs = -(-events // EVENTS)
    connections = [await asyncpg.connect(url) for _ in range(LANES)]
    try:
        inserts = [await _template(connections[0], table) for table in TABLES]
        began = datetime.now(UTC) - AGO - APART * runs
        parts = iter([(first, min(first + at_once, runs)) for first in range(1, runs, at_once)])

        async def lane(connection: Any) -> None:
            # Rows that refer to each other come in one transaction, from a run that was checked.
            await connection.execute("SET session_replication_role = replica")
            for first, end in parts:
                async with connection.transaction():
                    for insert in inserts:
                        await connection.execute(insert, first, end - 1, began, APART, timeout=600)
                told(end * EVENTS)

        await asyncio.gather(*map(lane, connections))
    finally:
        for connection in connections:
            await connection.close()
    return runs * EVENTS


async def _template(connection: Any, table: str) -> str:
    """Keeps a table's rows as they are now, and says how to insert them again for the runs $1 to $2."""
    await connection.execute(
        f"CREATE SCHEMA IF NOT EXISTS bench; CREATE TABLE bench.{table} AS SELECT * FROM {SCHEMA}.{table}"
    )
    columns = [row for row in await connection.fetch(_COLUMNS, SCHEMA, table) if row[0] not in _GIVEN]
    names = ", ".join(name for name, _ in columns)
    again = ", ".join(_again(name, kind) for name, kind in columns)
    return (
        f"INSERT INTO {SCHEMA}.{table} ({names}) SELECT {again} "
        "FROM generate_series($1::bigint, $2::bigint) AS n "
        "CROSS JOIN LATERAL (SELECT $3::timestamptz + $4::interval * n AS moment OFFSET 0) AS m "
        "CROSS JOIN LATERAL ("
        "SELECT lpad(to_hex((extract(epoch FROM m.moment) * 1000)::bigint), 12, '0') AS hex OFFSET 0"
        ") AS h "
        "CROSS JOIN LATERAL (SELECT left(h.hex, 8) || '-' || right(h.hex, 4) AS began OFFSET 0) AS p "
        # It depends on n, so it is read again for each run and rows come in the order of runs.
        f"CROSS JOIN LATERAL (SELECT * FROM bench.{table} WHERE n > 0 OFFSET 0) AS t"
    )


def _again(name: str, kind: str) -> str:
    if name in _OWN or (kind == "uuid" and name != "tenant_id"):
        return f"(p.began || substr(t.{name}::text, 14))::{kind}"
    if kind == "timestamp with time zone":
        return f"CASE WHEN t.{name} IS NOT NULL THEN m.moment END"
    return f"t.{name}"


async def settle(url: str) -> None:
    """Does now what would disturb later: what was written is vacuumed, counted and brought to disk."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("VACUUM ANALYZE", timeout=3600)
        await connection.execute("CHECKPOINT", timeout=600)
    finally:
        await connection.close()


async def count(url: str, tables: Sequence[str] = TABLES) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    try:
        return {
            table: await connection.fetchval(f"SELECT count(*) FROM {SCHEMA}.{table}") for table in tables
        }
    finally:
        await connection.close()
