"""What a database has to be like before it is trusted with anything."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from runstone.errors import StoreClosed, StoreUnusable
from runstone.ports.store import Committed
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.clock import DatabaseClock
from runstone.stores.postgres.migrations import migrate
from runstone.stores.postgres.store import CONNECTIONS
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.postgres.load import LONG
from tests.integration.stores.sqlite.scene import received
from tests.servers.fixtures import Logins
from tests.servers.postgres import Cluster, Server, binaries


async def test_an_empty_database_says_what_to_do(empty_postgres_url: str) -> None:
    with pytest.raises(StoreUnusable, match="runstone db migrate"):
        await PostgresStore.open(empty_postgres_url)


async def test_a_server_that_is_not_there_is_told_without_a_password() -> None:
    with pytest.raises(StoreUnusable, match="Check that the server runs") as refusal:
        await PostgresStore.open("postgresql://ada:secret@127.0.0.1:1/db", patience=timedelta(0))
    assert "secret" not in str(refusal.value)


async def test_commits_that_are_not_waited_for_are_refused(postgres_url: str, connection: Connection) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    with pytest.raises(StoreUnusable, match="synchronous_commit = off"):
        await PostgresStore.open(postgres_url)
    with pytest.raises(StoreUnusable, match="synchronous_commit = off"):
        await PostgresStore.open(postgres_url, unsafe={"fsync"})
    async with await PostgresStore.open(postgres_url, unsafe={"synchronous_commit"}) as store:
        assert await store.commit(received(1)) == Committed()


async def test_only_known_settings_can_be_called_unsafe(postgres_url: str) -> None:
    with pytest.raises(ValueError, match="fsyncs"):
        await PostgresStore.open(postgres_url, unsafe={"fsyncs"})


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_may_lose_pages_is_refused(setting: str) -> None:
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL here that could be set up so")
    with Cluster(found, {setting: "off"}) as cluster:
        connection = await asyncpg.connect(cluster.url())
        await migrate(connection)
        await connection.close()
        with pytest.raises(StoreUnusable, match=f"{setting} = off"):
            await PostgresStore.open(cluster.url())
        async with await PostgresStore.open(cluster.url(), unsafe={setting}) as store:
            assert await store.commit(received(1)) == Committed()


async def test_another_encoding_is_refused(postgres: Server) -> None:
    name = f"runstone_ascii_{os.getpid()}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        with pytest.raises(StoreUnusable, match="UTF8"):
            await PostgresStore.open(postgres.url(name))
    finally:
        postgres.drop(name)


async def test_the_clock_follows_the_server(store: PostgresStore) -> None:
    assert isinstance(store.clock, DatabaseClock)
    store.clock.offset = timedelta(days=400)
    await store.heartbeat("w", lease=timedelta(seconds=30))
    assert abs(store.clock.offset) < timedelta(minutes=1)


async def test_a_closed_store_says_so(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.count_events()
    with pytest.raises(StoreClosed):
        await store.commit(received(1))


def _in_child(store: PostgresStore) -> int:
    async def closed() -> int:
        outcomes = await asyncio.gather(
            store.commit(received(2)), store.count_events(), return_exceptions=True
        )
        return 0 if all(isinstance(outcome, StoreClosed) for outcome in outcomes) else 1

    child = os.fork()
    if child == 0:
        try:
            os._exit(asyncio.run(closed()))
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_forked_child_has_no_store(store: PostgresStore) -> None:
    """It would share the parent's connections."""
    await store.commit(received(1))
    assert _in_child(store) == 0
    assert await store.commit(received(2)) == Committed()


async def refused(url: str) -> str:
    with pytest.raises(StoreUnusable) as refusal:
        await PostgresStore.open(url, patience=timedelta(0))
    assert "secret" not in str(refusal.value)
    return str(refusal.value)


async def test_what_is_wrong_with_a_url_is_told(postgres: Server, postgres_url: str) -> None:
    """As a real server answers."""
    nowhere = postgres.url("nodb")
    assert (await refused(nowhere)).endswith("createdb --encoding=UTF8 --template=template0 nodb")
    assert "drop sslmode=require" in await refused(f"{postgres_url}?sslmode=require")
    stranger = postgres.url(user="nobody_of_that_name:secret")
    assert "the user in the store's URL" in await refused(stranger)


async def test_connections_that_run_out_are_told_of(
    postgres_url: str, postgres_logins: Logins, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool has the only one, and the writer gets none: it says so while it tries, and in the end."""
    right = "IN ROLE runstone_engine CONNECTION LIMIT 1"
    url = postgres_logins.url(postgres_url, right)
    async with await PostgresStore.open(url, patience=timedelta(0)) as store:
        with pytest.raises(StoreUnusable, match=r"too many connections for role.*CONNECTION LIMIT"):
            await store.commit(received(1))
    async with await PostgresStore.open(url, patience=LONG) as store:
        commit = asyncio.ensure_future(store.commit(received(1)))
        async with asyncio.timeout(60):
            while "cannot write, tries again" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "too many connections for role" in caplog.text
        await connection.execute(f"ALTER ROLE {postgres_logins.name(right)} CONNECTION LIMIT -1")
        assert await commit == Committed()


async def test_a_process_that_works_takes_ten_connections_at_most(
    postgres_url: str, connection: Connection
) -> None:
    """As many as operators are told: for questions, for two writers, for ringing and for listening."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'runstone' AND datname = "
    async with await PostgresStore.open(postgres_url) as store, AsyncExitStack() as lent:
        for _ in range(CONNECTIONS):
            await lent.enter_async_context(store._pool.lent())
        for link in store._writer._links:
            await link.connection()
        store.bell.start()
        store.bell.ring("somebody")
        async with asyncio.timeout(60):
            while await connection.fetchval(f"{count}current_database()") != 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_host_that_says_nothing_does_not_use_up_the_time_of_the_next(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose machine is gone; the driver has one time for all the hosts that it is given."""
    silent = postgres_url.replace(postgres_url.rpartition("@")[2].partition("/")[0], "silent:1")
    connect = asyncpg.connect

    async def some_are_silent(dsn: str, **options: Any) -> Any:
        if dsn == silent:
            raise TimeoutError
        assert dsn == postgres_url
        return await connect(dsn, **options)

    monkeypatch.setattr(asyncpg, "connect", some_are_silent)
    async with await PostgresStore.open(postgres_url.replace("@", "@silent:1,", 1)) as store:
        assert store.where.startswith("postgresql://silent:1,")
        assert await store.count_events() == 0


async def test_of_several_hosts_the_primary_can_be_asked_for(postgres_url: str) -> None:
    twice = postgres_url.replace("@", f"@{postgres_url.rpartition('@')[2].partition('/')[0]},", 1)
    async with await PostgresStore.open(f"{twice}?target_session_attrs=primary") as store:
        assert await store.count_events() == 0
    assert "None of the hosts match" in await refused(f"{twice}?target_session_attrs=standby")
