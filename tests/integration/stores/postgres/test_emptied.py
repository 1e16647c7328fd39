"""A database that tests use one after the other: what one leaves in it, the next does not find."""

from __future__ import annotations

import asyncpg
import pytest

from tests.integration.stores.postgres.filled import fill
from tests.servers.fixtures import Database
from tests.servers.postgres import Server


@pytest.fixture
def database(postgres: Server, postgres_template: str) -> Database:
    return Database(postgres, postgres_template)


async def do(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def rows(url: str) -> dict[str, int]:
    connection = await asyncpg.connect(url)
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'runstone'")
    counts = {name: await connection.fetchval(f"SELECT count(*) FROM runstone.{name}") for (name,) in tables}
    await connection.close()
    return counts


async def test_rows_are_gone_and_anything_else_makes_a_new_one(database: Database) -> None:
    first = database.emptied()
    fresh = await rows(first)
    try:
        connection = await asyncpg.connect(first)  # left open, as by a test that failed
        await fill(connection)
        assert await rows(first) != fresh
        assert database.emptied() == first
        assert await rows(first) == fresh
        connection.terminate()
        for change in (
            "CREATE TABLE mine (id text)",
            "ALTER TABLE runstone.runs DISABLE TRIGGER ALL",
            "INSERT INTO runstone.feed_epochs VALUES (7, 7, 7, 7)",
            "DROP SCHEMA runstone CASCADE",
        ):
            before = database.emptied()
            await do(before, change)
            after = database.emptied()
            assert after != before, change
            assert await rows(after) == fresh
    finally:
        database.drop()
