"""The feed in the order of commit: it may wait, it never skips (§ORD-25 to §ORD-29)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from runstone.errors import FeedEpochChanged
from runstone.ports.store import FeedItem, FeedPosition
from runstone.stores.postgres import PostgresStore
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.sqlite.scene import received, usual
from tests.servers.postgres import UNANALYSED, Cluster, Server, binaries


async def follow(store: PostgresStore, after: FeedPosition | None = None) -> list[FeedItem]:
    items: list[FeedItem] = []
    while page := await store.feed(items[-1].position if items else after, limit=7):
        items += page
    return items


def ids(items: list[FeedItem]) -> list[str]:
    return [item.event.id for item in items]


class TestOpenTransactions:
    async def test_a_transaction_that_is_open_is_waited_for(
        self, store: PostgresStore, connection: Connection
    ) -> None:
        """It took its number before a later one, and commits after that was read."""
        before = received(1)
        await store.commit(before)
        late = connection.transaction()
        await late.start()
        await connection.execute(
            """
            INSERT INTO runstone.orchestration_events
            SELECT (jsonb_populate_record(e, jsonb_build_object(
                'id', gen_random_uuid(), 'stream_id', gen_random_uuid(), 'sequence_number',
                nextval('runstone.orchestration_events_sequence_number_seq'),
                'transaction_id', pg_current_xact_id()))).*
            FROM runstone.orchestration_events AS e
            """
        )
        after = received(2)
        await store.commit(after)
        seen = await follow(store)
        assert ids(seen) == [before.events[0].id]
        assert await follow(store, seen[-1].position) == []
        await late.commit()
        seen += await follow(store, seen[-1].position)
        assert len(seen) == 3
        assert seen[2].event.id == after.events[0].id
        assert [item.position for item in seen] == sorted(item.position for item in seen)
        assert (await store.feed_status()).holder is None

    async def test_who_holds_the_feed_up_is_named(self, store: PostgresStore, connection: Connection) -> None:
        """§ORD-29: FEED_STALLED and the process."""
        await store.commit(received(1))
        held = connection.transaction()
        await held.start()
        await connection.execute("CREATE TABLE public.slow (id int)")
        await store.commit(received(2))
        status = await store.feed_status()
        assert status.held_events == 1
        assert status.holder is not None
        assert status.holder.pid == connection.get_server_pid()
        assert status.held_since is not None
        now = status.held_since + timedelta(seconds=11)
        alert = status.alert(now)
        assert alert is not None
        assert alert.startswith("FEED_STALLED")
        assert f"process {connection.get_server_pid()}" in alert
        assert status.alert(status.held_since + timedelta(seconds=1)) is None
        await held.rollback()
        assert (await store.feed_status()).held_events == 0

    async def test_of_whom_the_server_says_nothing_one_is_told_why(
        self, postgres_engine_url: str, connection: Connection
    ) -> None:
        """Only its own processes are for the engine's role to see."""
        async with await PostgresStore.open(postgres_engine_url) as store:
            held = connection.transaction()
            await held.start()
            await connection.execute("SELECT pg_current_xact_id()")
            await store.commit(received(1))
            status = await store.feed_status()
            await held.rollback()
        assert status.held_since is not None
        alert = status.alert(status.held_since + timedelta(seconds=11))
        assert alert is not None
        who = f"process {connection.get_server_pid()}"
        assert alert.endswith(f"for {who} (grant pg_read_all_stats to see whose it is)")

    async def test_two_processes_write_and_nothing_is_skipped(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        async def run(one: PostgresStore, seed: int) -> None:
            for commit in usual(seed):
                await one.commit(commit)

        writing = asyncio.gather(
            *(run(one, 100 * n + s) for n, one in enumerate((store, other)) for s in range(20))
        )
        seen: list[FeedItem] = []
        while not writing.done():
            seen += await follow(store, seen[-1].position if seen else None)
        await writing
        seen += await follow(store, seen[-1].position if seen else None)
        assert len(set(ids(seen))) == len(seen) == await store.count_events()
        places: dict[str, int] = {}
        for item in seen:
            assert item.event.run_seq == places.get(item.event.stream_id, 0) + 1
            places[item.event.stream_id] = item.event.run_seq


class TestEpochs:
    async def test_a_position_that_this_store_never_gave_is_told(self, store: PostgresStore) -> None:
        """§ORD-28."""
        await store.commit(received(1))
        (item,) = await follow(store)
        foreign = FeedPosition(item.position.epoch + 5, 1, 1)
        with pytest.raises(FeedEpochChanged) as told:
            await store.feed(foreign)
        assert ids(await follow(store, told.value.resume)) == [item.event.id]  # type: ignore[arg-type]

    async def test_a_backup_that_is_restored_twice_begins_two_epochs(
        self, postgres_url: str, connection: Connection
    ) -> None:
        """A position in the first is not taken for one in the second, where it would skip what is new."""
        async with await PostgresStore.open(postgres_url) as store:
            await store.commit(received(1))
        await connection.execute("UPDATE runstone.feed_epochs SET system_identifier = 0")
        backup = await connection.fetch("SELECT * FROM runstone.feed_epochs")
        async with await PostgresStore.open(postgres_url) as store:
            await store.commit(received(2))
            *_, read = await follow(store)
        await connection.execute("DELETE FROM runstone.feed_epochs WHERE system_identifier <> 0")
        assert await connection.fetch("SELECT * FROM runstone.feed_epochs") == backup
        async with await PostgresStore.open(postgres_url) as store:
            await store.commit(received(3))
            with pytest.raises(FeedEpochChanged) as told:
                await store.feed(read.position)
            resumed = await follow(store, told.value.resume)  # type: ignore[arg-type]
            assert ids(resumed) == ids(await follow(store))
            assert resumed[-1].event.id == received(3).events[0].id

    async def test_a_position_ahead_of_the_server_is_told(self, store: PostgresStore) -> None:
        """A disk that was put back has the same identity, and its transactions are used up once more."""
        await store.commit(received(1))
        (item,) = await follow(store)
        ahead = FeedPosition(item.position.epoch, item.position.transaction + 1_000_000, 1)
        with pytest.raises(FeedEpochChanged) as told:
            await store.feed(ahead)
        assert ids(await follow(store, told.value.resume)) == [item.event.id]  # type: ignore[arg-type]

    @pytest.fixture
    def fresh(self) -> Iterator[Cluster]:
        found = binaries()
        if found is None:
            pytest.skip("no PostgreSQL here to restore into")
        with Cluster(found, UNANALYSED) as cluster:
            yield cluster

    async def test_nothing_is_skipped_after_a_restore_into_a_fresh_cluster(
        self, postgres: Server, postgres_url: str, fresh: Cluster, tmp_path: Path
    ) -> None:
        """Its transaction ids begin again, far below those of the dump."""
        if not isinstance(postgres, Cluster):
            pytest.skip("the server's own pg_dump is not here")
        async with await PostgresStore.open(postgres_url) as store:
            await _use_up_transactions(postgres_url, 2_000)
            for seed in range(3):
                for commit in usual(seed):
                    await store.commit(commit)
            whole = await follow(store)
        read = whole[len(whole) // 2]
        await asyncio.to_thread(_dump_and_restore, postgres_url, fresh)
        async with await PostgresStore.open(fresh.url("postgres")) as restored:
            rest = await follow(restored, read.position)
            assert ids(rest) == ids(whole[len(whole) // 2 + 1 :])
            new = received(99)
            await restored.commit(new)
            assert ids(await follow(restored, rest[-1].position)) == [new.events[0].id]
            last = whole[-1].position
            unsaved = FeedPosition(last.epoch, last.transaction + 100, last.sequence + 100)
            assert ids(await follow(restored, unsaved)) == [new.events[0].id]  # was read after the dump
            everything = await follow(restored)
            assert ids(everything) == [*ids(whole), new.events[0].id]
            assert everything[-1].position.epoch > everything[-2].position.epoch
            assert everything[-1].position.transaction < everything[-2].position.transaction


async def _use_up_transactions(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"DO $$ BEGIN FOR n IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    )
    await connection.close()


def _dump_and_restore(url: str, fresh: Cluster) -> None:
    folder = binaries()
    assert folder is not None
    dump = subprocess.run([folder / "pg_dump", url], check=True, capture_output=True)
    roles = subprocess.run(
        [folder / "pg_dumpall", "--roles-only", "-d", url], check=True, capture_output=True
    )
    for script in (roles.stdout, dump.stdout):
        subprocess.run(
            [folder / "psql", "-X", "-q", "-d", fresh.url("postgres")],
            input=script,
            check=True,
            capture_output=True,
        )
