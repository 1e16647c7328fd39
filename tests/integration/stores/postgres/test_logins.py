"""Whom a store is opened for: row-level security shows an empty one to who may not see it (§TEN-28)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import StoreUnusable
from runstone.ports.store import Committed
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.migrations import connected, describe, migrate, pending
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.sqlite.scene import received
from tests.servers.fixtures import Logins

PATIENCE = 60.0
ENGINE, API, MIGRATOR = (f"IN ROLE runstone_{role}" for role in ("engine", "api", "migrator"))
LEASE = timedelta(seconds=30)

app = rs.App("shop", version="1")


@app.on()
async def ship(run: rs.Run, order: str) -> str:
    return f"{order} is shipped"


@pytest.mark.parametrize("right", [ENGINE, f"{ENGINE}, runstone_api"])
async def test_the_engine_sees_everything(right: str, postgres_url: str, postgres_logins: Logins) -> None:
    async with await PostgresStore.open(postgres_logins.url(postgres_url, right)) as store:
        assert await store.commit(received(1)) == Committed()
        assert await store.count_events() == 1


async def test_so_does_a_superuser(postgres_url: str) -> None:
    async with await PostgresStore.open(postgres_url) as store:
        assert await store.commit(received(1)) == Committed()
        assert await store.count_events() == 1


async def test_so_does_who_is_bound_by_no_policy(
    postgres_url: str, postgres_logins: Logins, connection: Connection
) -> None:
    """What he may do besides is for the server to say."""
    name = postgres_logins.name("BYPASSRLS")
    async with await PostgresStore.open(postgres_url) as store:
        await store.commit(received(1))
    await connection.execute(f"GRANT USAGE ON SCHEMA runstone TO {name}")
    await connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA runstone TO {name}")
    await connection.execute(f"GRANT EXECUTE ON FUNCTION runstone.feed_epoch() TO {name}")
    try:
        async with await PostgresStore.open(postgres_logins.url(postgres_url, "BYPASSRLS")) as store:
            assert await store.count_events() == 1
    finally:
        await connection.execute(f"DROP OWNED BY {name}")


@pytest.mark.parametrize(
    ("right", "api"),
    [
        (API, False),
        *((right, api) for right in (MIGRATOR, "") for api in (False, True)),
    ],
)
async def test_nobody_else_takes_the_store_for_empty(
    right: str, api: bool, postgres_url: str, postgres_logins: Logins
) -> None:
    name = postgres_logins.name(right)
    said = f'{name} is no member of runstone_engine and would see nothing: GRANT runstone_engine TO "{name}"'
    with pytest.raises(StoreUnusable, match=said):
        await PostgresStore.open(postgres_logins.url(postgres_url, right), api=api)


async def test_who_is_in_the_role_without_its_rights_is_told_how_to_have_them(
    postgres_url: str, postgres_logins: Logins, connection: Connection
) -> None:
    url = postgres_logins.url(postgres_url, "NOINHERIT IN ROLE runstone_engine")
    for api in (False, True):
        with pytest.raises(StoreUnusable, match="in runstone_engine without its rights") as refused:
            await PostgresStore.open(url, api=api)
    newer, older = re.findall(
        r'GRANT \w+ TO "\w+" WITH INHERIT TRUE|ALTER ROLE "\w+" INHERIT', str(refused.value)
    )
    await connection.execute(newer if connection.get_server_version().major >= 16 else older)
    async with await PostgresStore.open(url) as store:
        assert await store.commit(received(1)) == Committed()


async def test_who_migrates_can_look_at_the_schema(postgres_url: str, postgres_logins: Logins) -> None:
    async with connected(postgres_logins.url(postgres_url, MIGRATOR)) as connection:
        assert await pending(connection) == []
        assert await migrate(connection) == []
        server = await describe(connection)
    assert (server.behind, server.login.sees_all) == (0, False)


ASKED: list[Callable[[PostgresStore], Awaitable[object]]] = [
    lambda store: store.count_events(),
    lambda store: store.count_runs(),
    lambda store: store.find_signal(DEFAULT_TENANT, "test", "1"),
    lambda store: store.load_many([]),
    lambda store: store.feed(),
    lambda store: store.self_check(),
    lambda store: store.delete_strays(),
    lambda store: store.heartbeat("w", lease=LEASE),
    lambda store: store.claim("w", handlers=["ship"], code_rank="", limit=1, lease=LEASE),
    lambda store: store.claim_effects("w", types=["HTTP"], limit=1, lease=LEASE),
]


async def test_who_acts_for_a_tenant_is_answered_nothing(postgres_url: str, postgres_logins: Logins) -> None:
    async with await PostgresStore.open(postgres_logins.url(postgres_url, API), api=True) as store:
        for ask in ASKED:
            with pytest.raises(StoreUnusable, match=r"no member of runstone_engine.*`connection=`"):
                await ask(store)
        with pytest.raises(StoreUnusable, match="no member of runstone_engine"):
            await store.commit(received(1))


async def test_and_acts_in_its_own_transactions(postgres_url: str, postgres_logins: Logins) -> None:
    """Of a process whose store and whose connections are of the same user."""
    url = postgres_logins.url(postgres_url, API)
    web = await asyncpg.connect(url)
    try:
        async with app.running(url, worker=False):
            async with web.transaction():
                await web.execute("SELECT set_config('runstone.tenant', $1, true)", DEFAULT_TENANT)
                handle = await app.start(ship, "a book", key="order-1", connection=web)
            with pytest.raises(StoreUnusable, match="no member of runstone_engine"):
                await app.find(ship, "order-1")
            with pytest.raises(StoreUnusable, match="no member of runstone_engine"):
                await handle.result()
            with pytest.raises(StoreUnusable, match="no member of runstone_engine"):
                await app.start(ship, "a pen")
    finally:
        await web.close()
    async with app.running(postgres_url), asyncio.timeout(PATIENCE):
        found = await app.find(ship, "order-1")
        assert found is not None
        assert await found.result() == "a book is shipped"


@pytest.mark.parametrize(("worker", "outbox"), [(True, False), (False, True)])
async def test_a_worker_that_would_find_nothing_does_not_start(
    worker: bool, outbox: bool, postgres_url: str, postgres_logins: Logins
) -> None:
    with pytest.raises(StoreUnusable, match="no member of runstone_engine"):
        async with app.running(postgres_logins.url(postgres_url, API), worker=worker, outbox=outbox):
            pass
