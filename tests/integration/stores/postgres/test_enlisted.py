"""`app.start` and `app.send` in a transaction of the caller's: with it, or not at all (§STO-55)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import RunstoneError, SignalConflict, StoreBusy, StoreError, StoreUnusable
from runstone.stores.postgres import PostgresStore
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.postgres.load import LONG
from tests.integration.stores.sqlite import scene
from tests.servers.postgres import Server

PATIENCE = 60.0
POLL = 600.0
"""Seconds between two looks of the worker in these tests: whatever happens sooner, it was rung for."""

app = rs.App("shop", version="1")


@app.on()
async def ship(run: rs.Run, order: str) -> str:
    return f"{order} is shipped"


@app.on(rs.ApiRequest)
async def serve(run: rs.Run, request: rs.ApiRequest) -> str:
    return request.operation


@pytest_asyncio.fixture
async def running(postgres_url: str, connection: Connection) -> AsyncIterator[PostgresStore]:
    """The app works on a database that has a table of its user's too."""
    await connection.execute("CREATE TABLE orders (id text PRIMARY KEY)")
    async with (
        await PostgresStore.open(postgres_url, patience=LONG) as store,
        app.running(store, poll=POLL),
    ):
        yield store
        assert await scene.problems(store) == []  # type: ignore[arg-type]
    await connection.execute("DROP TABLE orders")  # the next test can have the same database then


async def result(handle: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await handle.result()


async def put(connection: Connection, order: str) -> None:
    await connection.execute("INSERT INTO orders VALUES ($1)", order)


async def orders(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("SELECT id FROM orders ORDER BY id")]


async def test_what_is_committed_happens(running: PostgresStore, connection: Connection) -> None:
    async with connection.transaction():
        await put(connection, "a book")
        handle = await app.start(ship, "a book", key="order-1", connection=connection)
        assert await running.get_run(DEFAULT_TENANT, handle.id) is None, "others do not see it yet"
        sent = await app.send(
            rs.ApiRequest(operation="x"), channel="door", source_id="1", connection=connection
        )
    assert await result(handle) == "a book is shipped"
    assert await result(sent) == "x"
    assert await orders(connection) == ["a book"]
    again = await app.start(ship, "a book", key="order-1")
    assert again.id == handle.id


async def test_the_first_to_write_after_a_failover_begins_an_epoch(
    running: PostgresStore, connection: Connection
) -> None:
    """The store asks when it opens a connection; this one is not its own, and may be rolled back."""
    await connection.execute("UPDATE runstone.feed_epochs SET timeline_id = timeline_id + 1")
    transaction = connection.transaction()
    await transaction.start()
    await app.start(ship, "a book", key="order-1", connection=connection)
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM runstone.feed_epochs") == 2


async def test_what_is_rolled_back_never_was(running: PostgresStore, connection: Connection) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await put(connection, "a book")
    undone = await app.start(ship, "a book", key="order-1", connection=connection)
    await transaction.rollback()
    assert await running.count_events() == 0
    assert await running.get_run(DEFAULT_TENANT, undone.id) is None
    assert await connection.fetchval("SELECT count(*) FROM runstone.run_queue") == 0
    handle = await app.start(ship, "a pen", key="order-1")
    assert handle.id != undone.id
    assert await result(handle) == "a pen is shipped"


async def test_a_part_that_is_rolled_back_goes_alone(running: PostgresStore, connection: Connection) -> None:
    async with connection.transaction():
        kept = await app.start(ship, "a book", connection=connection)
        part = connection.transaction()
        await part.start()
        await app.start(ship, "a pen", key="pen", connection=connection)
        await part.rollback()
    assert await result(kept) == "a book is shipped"
    assert await app.find(ship, "pen") is None
    assert await running.count_runs() == {"COMPLETED": 1}


async def test_the_same_key_again_finds_the_first(running: PostgresStore, connection: Connection) -> None:
    """In the same transaction, and in a later one; neither is broken by it."""
    async with connection.transaction():
        first = await app.start(ship, "a book", key="order-1", connection=connection)
        await put(connection, "before")
        second = await app.start(ship, "a book", key="order-1", connection=connection)
        await put(connection, "after")
    async with connection.transaction():
        third = await app.start(ship, "a book", key="order-1", connection=connection)
        await put(connection, "later")
    assert first.id == second.id == third.id
    assert await orders(connection) == ["after", "before", "later"]
    assert await result(first) == "a book is shipped"
    assert await running.count_runs() == {"COMPLETED": 1}


@pytest.mark.parametrize("keep", [True, False])
async def test_a_conflict_is_recorded_with_the_transaction(
    running: PostgresStore, connection: Connection, keep: bool
) -> None:
    handle = await app.start(ship, "a book", key="order-1")
    assert await result(handle) == "a book is shipped"
    before = await running.count_events()
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(SignalConflict):
        await app.start(ship, "a pen", key="order-1", connection=connection)
    await put(connection, "after")
    await (transaction.commit() if keep else transaction.rollback())
    assert await running.count_events() == before + keep
    assert await orders(connection) == ["after"] * keep


@pytest.mark.parametrize("keep", [True, False])
async def test_two_transactions_with_one_key(
    running: PostgresStore, connection: Connection, postgres_url: str, keep: bool
) -> None:
    """The second waits for the first, and does what that has left to do."""
    other = await asyncpg.connect(postgres_url)

    async def second() -> Any:
        async with other.transaction():
            return await app.start(ship, "a book", key="order-1", connection=other)

    transaction = connection.transaction()
    await transaction.start()
    first = await app.start(ship, "a book", key="order-1", connection=connection)
    waiting = asyncio.ensure_future(second())
    async with asyncio.timeout(PATIENCE):
        while not await running._read(_waiting):  # noqa: ASYNC110  (only the server knows)
            await asyncio.sleep(0.01)
    await (transaction.commit() if keep else transaction.rollback())
    found = await waiting
    await other.close()
    assert (found.id == first.id) is keep
    assert await result(found) == "a book is shipped"
    assert await running.count_runs() == {"COMPLETED": 1}


async def _waiting(connection: Connection) -> bool:
    found: bool = await connection.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)")
    return found


async def test_a_transaction_that_sees_one_moment_is_told_to_try_again(
    running: PostgresStore, connection: Connection
) -> None:
    async with connection.transaction(isolation="repeatable_read"):
        assert await orders(connection) == []
        handle = await app.start(ship, "a book", key="order-1")
        with pytest.raises(StoreBusy, match="try again"):
            await app.start(ship, "a book", key="order-1", connection=connection)
        await put(connection, "after")
    assert await result(handle) == "a book is shipped"
    assert await orders(connection) == ["after"]


async def test_a_connection_that_is_lost_takes_everything_with_it(
    running: PostgresStore, postgres_url: str, connection: Connection
) -> None:
    lost = await asyncpg.connect(postgres_url)
    transaction = lost.transaction()
    await transaction.start()
    await app.start(ship, "a book", key="order-1", connection=lost)
    await connection.execute("SELECT pg_terminate_backend($1)", lost.get_server_pid())
    with pytest.raises(StoreUnusable):
        await app.start(ship, "a pen", key="order-2", connection=lost)
    await lost.close()
    assert await running.count_events() == 0


@pytest.mark.parametrize(
    "text",
    ["", '"', "\\", '\\"', "{a,b}", "(1,)", "NULL", "two\nlines\r\t", "ünï ✓ 🂡", "$1::text", "%s'; --"],
)
async def test_whatever_the_caller_has_taught_the_connection(
    running: PostgresStore, postgres_url: str, text: str
) -> None:
    """JSON as Python's own objects is what many want; our bytes must be stored as they are."""
    taught = await asyncpg.connect(postgres_url, statement_cache_size=0)
    for kind in ("json", "jsonb"):
        await taught.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await taught.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
    await taught.execute("SET datestyle = 'German'; SET timezone = 'Asia/Kathmandu'; SET search_path = ''")
    async with taught.transaction():
        first = await app.start(ship, text, key=f"order {text}", connection=taught)
        again = await app.start(ship, text, key=f"order {text}", connection=taught)
        with pytest.raises(SignalConflict):
            await app.start(ship, text + "!", key=f"order {text}", connection=taught)
    await taught.close()
    assert first.id == again.id
    assert await result(first) == f"{text} is shipped"


async def test_one_who_may_only_act_for_a_tenant(
    running: PostgresStore, postgres: Server, postgres_url: str, connection: Connection
) -> None:
    """Somebody's web process: a member of `runstone_api`, for the tenant that its transaction has set."""
    name = f"web_{urlsplit(postgres_url).path[1:]}"
    await connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE runstone_api")
    web = await asyncpg.connect(postgres.url(urlsplit(postgres_url).path[1:], user=name))
    try:
        async with web.transaction():
            with pytest.raises(StoreError):
                await app.start(ship, "a book", key="order-1", connection=web)
            await web.execute("SELECT set_config('runstone.tenant', $1, true)", DEFAULT_TENANT)
            handle = await app.start(ship, "a book", key="order-1", connection=web)
        assert await result(handle) == "a book is shipped"
    finally:
        await web.close()
        await connection.execute(f"DROP ROLE {name}")


async def test_nobody_else_waits_for_a_transaction_that_stays_open(
    running: PostgresStore, connection: Connection
) -> None:
    """Only who wants the same key does, though others were to go down in one statement with it."""
    async with connection.transaction():
        first = await app.start(ship, "a book", key="order-1", connection=connection)
        same = [asyncio.ensure_future(app.start(ship, "a book", key="order-1")) for _ in range(3)]
        others = [asyncio.ensure_future(app.start(ship, f"pen {number}")) for number in range(30)]
        for number, other in enumerate(others):
            assert await result(await other) == f"pen {number} is shipped"
        assert not any(task.done() for task in same)
    assert [handle.id for handle in await asyncio.gather(*same)] == [first.id] * 3
    assert await result(first) == "a book is shipped"


async def test_it_takes_a_transaction(running: PostgresStore, connection: Connection) -> None:
    with pytest.raises(StoreError, match="no transaction open"):
        await app.start(ship, "a book", connection=connection)
    await connection.execute("BEGIN")  # by hand, as some do
    handle = await app.start(ship, "a book", connection=connection)
    await connection.execute("COMMIT")
    assert await result(handle) == "a book is shipped"


async def test_other_stores_say_that_they_cannot(tmp_path: Path, connection: Connection) -> None:
    async with app.running(str(tmp_path / "shop.db"), worker=False), connection.transaction():
        with pytest.raises(RunstoneError, match="PostgreSQL"):
            await app.start(ship, "a book", connection=connection)
