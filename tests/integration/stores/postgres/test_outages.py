"""Connections that are lost, servers that are gone: a late success or a clear error, never a wrong answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import asyncpg
import pytest

from runstone.core.commit import Commit
from runstone.errors import CommitRefused, OutcomeUnknown, StoreFull, StoreUnusable
from runstone.ports.store import Committed
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.migrations import migrate
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.postgres.load import LONG, PATIENCE, waiting_for_ever
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.scene import received, usual
from tests.servers.postgres import UNANALYSED, Cluster, binaries

SHORT = timedelta(milliseconds=300)


async def problems(store: PostgresStore) -> list[str]:
    return await scene.problems(store)  # type: ignore[arg-type]


async def terminate(connection: Connection, wanted: str = "%batch_streams%") -> int:
    """Ends the server's processes whose last statement looks like this; how many."""
    ended: int = await connection.fetchval(
        """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE $1
        """,
        wanted,
    )
    return ended


async def failing(connection: Connection, state: str, times: int) -> None:
    """Lets the first so many inserts of signals fail with this SQLSTATE."""
    await connection.execute("CREATE SEQUENCE runstone.tries")
    await connection.execute(
        f"""
        CREATE FUNCTION runstone.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('runstone.tries') <= {times} THEN
                RAISE EXCEPTION 'as planned' USING ERRCODE = '{state}';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    await connection.execute(
        "CREATE TRIGGER fail BEFORE INSERT ON runstone.signals FOR EACH ROW EXECUTE FUNCTION runstone.fail()"
    )


class TestOneServer:
    @pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "53200", "57014"])
    async def test_what_passes_is_tried_again(
        self, store: PostgresStore, connection: Connection, state: str
    ) -> None:
        await failing(connection, state, 3)
        outcomes = await asyncio.gather(*(store.commit(received(seed)) for seed in range(5)))
        assert outcomes == [Committed()] * 5
        assert await store.count_events() == 5

    async def test_a_full_disk_is_named_when_patience_is_at_an_end(
        self, postgres_url: str, connection: Connection
    ) -> None:
        await failing(connection, "53100", 1_000_000)
        async with await PostgresStore.open(postgres_url, patience=SHORT) as store:
            with pytest.raises(StoreFull):
                await store.commit(received(1))
            assert await store.count_events() == 0

    async def test_a_refusal_is_not_tried_for_ever(
        self, store: PostgresStore, connection: Connection
    ) -> None:
        await failing(connection, "P0001", 1_000_000)
        with pytest.raises(CommitRefused, match="as planned"):
            await store.commit(received(1))

    async def test_connections_that_are_ended_under_load_lose_nothing(
        self, store: PostgresStore, connection: Connection
    ) -> None:
        acknowledged: list[Commit] = []

        async def run(seed: int) -> None:
            for commit in usual(seed):
                await store.commit(commit)
                acknowledged.append(commit)

        running = asyncio.gather(*(run(seed) for seed in range(60)))
        ended = 0
        while not running.done() and ended < 12:  # then it is left in peace, however slow the machine is
            ended += await terminate(connection)
            await asyncio.sleep(0.1)
        await running
        assert ended > 0
        written = {event.id for commit in acknowledged for event in commit.events}
        assert await store.count_events() == len(written)
        assert await problems(store) == []

    async def test_reads_survive_a_lost_connection(
        self, store: PostgresStore, connection: Connection
    ) -> None:
        for commit in usual(1):
            await store.commit(commit)
        stream_id = commit.writes[-1].stream_id
        for _ in range(5):
            reading = [store.load(scene.TENANT, stream_id) for _ in range(6)]
            loaded = asyncio.gather(*reading)
            await asyncio.sleep(0)
            await terminate(connection, "%")
            assert all(stream is not None for stream in await loaded)

    async def test_a_commit_whose_answer_is_lost_is_written_once(
        self, store: PostgresStore, connection: Connection
    ) -> None:
        """The old statement still waits for a lock when the new one comes: both carry the same bytes."""
        first, second, third, *_ = usual(1)
        await store.commit(first)
        await waiting_for_ever(store)
        held = connection.transaction()
        await held.start()
        stream_id = second.writes[-1].stream_id
        await connection.execute("SELECT 1 FROM runstone.streams WHERE id = $1 FOR UPDATE", stream_id)
        waiting = asyncio.ensure_future(_commit(store, second))
        await _until_blocked(connection, 1)
        for link in store._writer._links:  # the way is cut; the server's process knows nothing of it
            if link._connection is not None:
                link._connection._transport.abort()  # type: ignore[attr-defined]
        await _until_blocked(connection, 2)
        await held.rollback()
        assert await waiting == Committed()
        assert await store.commit(third) == Committed()
        assert await problems(store) == []


async def _commit(store: PostgresStore, commit: Commit) -> Committed:
    return await store.commit(commit)


async def _until_blocked(connection: Connection, count: int) -> None:
    """Until so many statements wait for a lock. (What a transaction sees of activity stays as it was.)"""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(PATIENCE):
        while await connection.fetchval(waiting) < count:  # noqa: ASYNC110  (only the server knows)
            await asyncio.sleep(0.01)


class TestItsOwnServer:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        found = binaries()
        if found is None:
            pytest.skip("no PostgreSQL here to be killed")
        with Cluster(found, UNANALYSED) as cluster:
            yield cluster

    async def _migrated(self, cluster: Cluster) -> str:
        url = cluster.url()
        connection = await asyncpg.connect(url)
        await migrate(connection)
        await connection.close()
        return url

    async def test_every_acknowledged_commit_survives_kill_9(self, cluster: Cluster) -> None:
        """§STO-17: callers that were waiting have a late success."""
        async with await PostgresStore.open(await self._migrated(cluster), patience=LONG) as store:
            acknowledged: list[Commit] = []

            async def run(seed: int) -> None:
                for commit in usual(seed):
                    await store.commit(commit)
                    acknowledged.append(commit)

            running = asyncio.gather(*(run(seed) for seed in range(80)))
            while len(acknowledged) < 100 and not running.done():  # noqa: ASYNC110  (many are counted)
                await asyncio.sleep(0.005)
            assert not running.done()
            await asyncio.to_thread(cluster.kill)
            before = {event.id for commit in acknowledged for event in commit.events}
            await asyncio.to_thread(cluster.start)
            await running
            items = await scene.all_event_ids(store)  # type: ignore[arg-type]
            assert before <= set(items)
            assert sorted(items) == sorted(e.id for commit in acknowledged for e in commit.events)
            assert await problems(store) == []

    async def test_a_server_that_stays_away_is_a_clear_error(self, cluster: Cluster) -> None:
        async with await PostgresStore.open(await self._migrated(cluster), patience=SHORT) as store:
            first, second, *_ = usual(1)
            await store.commit(first)
            await asyncio.to_thread(cluster.kill)
            with pytest.raises((StoreUnusable, OutcomeUnknown), match=r"127\.0\.0\.1"):
                await store.commit(second)
            with pytest.raises(StoreUnusable, match="Check that the server runs"):
                await store.commit(second)  # nothing could be sent any more
            with pytest.raises(StoreUnusable):
                await store.count_events()
            await asyncio.to_thread(cluster.start)
            assert await store.commit(second) in (Committed(), Committed(repeated=True))
            assert await problems(store) == []
