"""Two tenants share the few connections of one transaction-mode pool, and never see each other (§TEN-14).

The queries are made up at random and judged where they run: one that finds a foreign row, or misses one of
its own, divides by zero. Many go down in one message, so that there can be very many.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from tests.integration.stores.postgres.filled import TENANT_TABLES, WRITTEN_ONCE, fill
from tests.servers.pgbouncer import PgBouncer, program

QUERIES: Final = int(os.environ.get("RUNSTONE_POOL_QUERIES", "100000"))
CLIENTS: Final = 16
CONNECTIONS: Final = 3
BATCH: Final = 25
TENANTS: Final = ("00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002")
RELATIONS: Final = (*TENANT_TABLES, "run_summary")
CHANGEABLE: Final = tuple(table for table in TENANT_TABLES if table not in WRITTEN_ONCE)

Counts = dict[tuple[str, str | None], int]


@pytest_asyncio.fixture
async def pool(postgres_url: str) -> AsyncIterator[PgBouncer]:
    if program() is None:
        pytest.skip("no pgbouncer here: apt-get install pgbouncer")
    user = f"runstone_pooled_{os.getpid()}"
    connection = await asyncpg.connect(postgres_url)
    try:
        for seed, tenant in enumerate(TENANTS):
            await fill(connection, seed, tenant)
        await connection.execute(f"CREATE ROLE {user} LOGIN IN ROLE runstone_api")
        bouncer = PgBouncer(postgres_url, user, CONNECTIONS)
        try:
            await bouncer.ready()
            yield bouncer
        finally:
            bouncer.remove()
            await connection.execute(f"DROP ROLE {user}")
    finally:
        await connection.close()


async def counted(url: str) -> Counts:
    """How many rows each tenant has, as a superuser sees it; who has no tenant has none."""
    connection = await asyncpg.connect(url)
    try:
        found: Counts = Counter()
        for relation in RELATIONS:
            for tenant in TENANTS:
                query = f"SELECT count(*) FROM runstone.{relation} WHERE tenant_id = $1"
                found[relation, tenant] = await connection.fetchval(query, tenant)
                assert found[relation, tenant] > 0
        return found
    finally:
        await connection.close()


def judged(random: Random, counts: Counts, tenant: str | None) -> str:
    """A query and its judgement. Without a tenant there is nothing to be found, whatever is asked for."""
    relation, mine = random.choice(RELATIONS), f"tenant_id = '{tenant or TENANTS[0]}'"
    other = next(one for one in random.sample(TENANTS, 2) if one != tenant)
    own = counts.get((relation, tenant), 0)
    shape = random.randrange(6)
    if shape == 0:
        right = f"count(*) = {own} AND count(*) FILTER (WHERE NOT {mine}) = 0"
        return f"SELECT 1 / ({right})::int FROM runstone.{relation};"
    if shape == 1:
        return f"SELECT 1 / (count(*) = 0)::int FROM runstone.{relation} WHERE tenant_id = '{other}';"
    if shape == 2:
        both = f"tenant_id IN ('{TENANTS[0]}', '{TENANTS[1]}')"
        return f"SELECT 1 / (count(*) = {own})::int FROM runstone.{relation} WHERE {both} OR true;"
    if shape == 3:
        joined = f"runstone.{relation} AS a JOIN runstone.runs AS b ON a.tenant_id <> b.tenant_id"
        return f"SELECT 1 / (count(*) = 0)::int FROM {joined};"
    table = random.choice(CHANGEABLE)
    if shape == 4:
        change = f"UPDATE runstone.{table} SET tenant_id = tenant_id WHERE tenant_id = '{other}' RETURNING 1"
    else:
        table = random.choice(("run_queue", "run_checkpoints"))
        change = f"DELETE FROM runstone.{table} WHERE tenant_id = '{other}' RETURNING 1"
    return f"WITH changed AS ({change}) SELECT 1 / (count(*) = 0)::int FROM changed;"


async def client(url: str, seed: int, counts: Counts, queries: int) -> int:
    """Transactions of this tenant and that, well ended, undone or broken; returns how many queries."""
    random = Random(seed)
    connection = await asyncpg.connect(url, statement_cache_size=0)
    done = 0
    try:
        while done < queries:
            tenant = random.choice((*TENANTS, None))
            size = min(random.randint(1, 2 * BATCH), queries - done)
            asked = [judged(random, counts, tenant) for _ in range(size)]
            if tenant is not None:
                asked.insert(0, f"SELECT set_config('runstone.tenant', '{tenant}', true);")
            end = random.choice(("COMMIT", "COMMIT", "ROLLBACK", "SELECT no_such_column"))
            try:
                await connection.execute(f"BEGIN; {' '.join(asked)} {end};")
            except asyncpg.UndefinedColumnError:
                await connection.execute("ROLLBACK")
            done += size
    finally:
        await connection.close()
    return done


async def test_no_query_of_very_many_finds_a_foreign_row(pool: PgBouncer, postgres_url: str) -> None:
    counts = await counted(postgres_url)
    share = -(-QUERIES // CLIENTS)
    async with asyncio.timeout(600):
        done = await asyncio.gather(*(client(pool.url, seed, counts, share) for seed in range(CLIENTS)))
    assert sum(done) >= QUERIES
    assert await counted(postgres_url) == counts


async def test_the_judgement_would_notice(pool: PgBouncer, postgres_url: str) -> None:
    """The same queries without row-level security on one table."""
    counts = await counted(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("ALTER TABLE runstone.runs DISABLE ROW LEVEL SECURITY")
    finally:
        await connection.close()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await client(pool.url, 1, counts, 2_000)


async def test_rows_fetched_one_by_one_are_ones_own(pool: PgBouncer) -> None:
    """The same through the driver's usual way, with parameters."""

    async def fetch(seed: int) -> None:
        random = Random(seed)
        connection = await asyncpg.connect(pool.url, statement_cache_size=0)
        try:
            for _ in range(50):
                tenant = random.choice((*TENANTS, ""))
                async with connection.transaction():
                    await connection.execute("SELECT set_config('runstone.tenant', $1, true)", tenant)
                    await asyncio.sleep(0)
                    rows = await connection.fetch(
                        f"SELECT tenant_id::text AS t FROM runstone.{random.choice(RELATIONS)}"
                    )
                    assert {row["t"] for row in rows} == ({tenant} if tenant else set())
        finally:
            await connection.close()

    await asyncio.gather(*map(fetch, range(CLIENTS)))
