"""A connection to a fresh database for each test, and one to a filled one whose transaction is undone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from runstone.stores.postgres import PostgresStore
from tests.integration.stores.postgres.filled import Connection, fill
from tests.servers.postgres import Server, in_thread


@pytest_asyncio.fixture
async def connection(postgres_url: str) -> AsyncIterator[Connection]:
    """To a fresh database, as superuser."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def filled_url(postgres: Server, postgres_template: str) -> Iterator[str]:
    """A database with rows in every table, for the tests of a module; what they do to it is undone."""
    name = f"{postgres_template}_filled"
    try:
        url = postgres.create(name, postgres_template)
        in_thread(_fill(url))
        yield url
    finally:
        postgres.drop(name)


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await fill(connection)
    finally:
        await connection.close()


@pytest_asyncio.fixture
async def filled(filled_url: str) -> AsyncIterator[Connection]:
    """A transaction on the filled database that is rolled back."""
    connection = await asyncpg.connect(filled_url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A store on a fresh database."""
    async with await PostgresStore.open(postgres_url) as store:
        yield store


@pytest_asyncio.fixture
async def other(postgres_url: str, store: PostgresStore) -> AsyncIterator[PostgresStore]:
    """A second store on the same database, as another process would have it."""
    async with await PostgresStore.open(postgres_url) as other:
        yield other
