"""Readers beside the writer: neither waits for the other, and the log does not grow because of them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from runstone.stores.sqlite import SqliteStore, files, wal
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.scene import received, usual

MEGABYTE = 1024 * 1024


class LongRead:
    """Counts the events of one moment, twice, with as much time in between as it is given."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> tuple[int, int]:
        connection.execute("BEGIN")
        first = self._count(connection)
        self.begun.set()
        assert self.go_on.wait(60)
        second = self._count(connection)
        connection.execute("COMMIT")
        return first, second

    def _count(self, connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT count(*) FROM orchestration_events").fetchone()
        assert isinstance(count, int)
        return count


async def test_a_long_read_holds_up_no_commit_and_sees_one_moment(store: SqliteStore) -> None:
    await scene.write(store, usual(1))
    before = await store.count_events()
    read = LongRead()
    reading = asyncio.create_task(store._read(read))
    await asyncio.to_thread(read.begun.wait)
    await asyncio.wait_for(scene.write(store, usual(2)), 30)
    assert await store.count_events() == 2 * before, "another reader sees what is new"
    assert not reading.done()
    read.go_on.set()
    assert await reading == (before, before)


async def test_a_commit_under_way_holds_up_no_read(store: SqliteStore) -> None:
    await scene.write(store, usual(1))
    before = await store.count_events()
    reached, go_on = threading.Event(), threading.Event()

    def hold(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE streams SET fence = fence + 1")
        reached.set()
        assert go_on.wait(60)

    holding = asyncio.create_task(store._writer.execute(hold))
    await asyncio.to_thread(reached.wait)
    stream = (await store.list_runs(scene.TENANT))[0].id
    loaded = await asyncio.wait_for(store.load(scene.TENANT, stream), 30)
    assert loaded is not None
    assert loaded.head.fence == 0, "nothing is seen before it is committed"
    assert await store.count_events() == before
    go_on.set()
    await holding


async def test_more_readers_than_threads_all_get_their_answer(store: SqliteStore) -> None:
    await scene.write(store, usual(1))
    events = await store.count_events()
    counts = await asyncio.gather(*(store.count_events() for _ in range(200)))
    assert counts == [events] * 200


class TestTheLog:
    """Its length after many commits, whose sum is far above it."""

    async def test_without_readers(self, store: SqliteStore) -> None:
        assert await write(store, 60 * MEGABYTE) < 30 * MEGABYTE

    async def test_beside_reads_that_overlap_without_a_gap(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "LOG_BYTES", 4 * MEGABYTE)
        monkeypatch.setattr(wal, "LOG_BYTES", 4 * MEGABYTE)
        async with await SqliteStore.open(path) as store:
            readers = Relay(store)
            async with readers:
                assert await write(store, 60 * MEGABYTE) < 30 * MEGABYTE
            assert readers.reads > 10
            assert await scene.problems(store) == []

    async def test_a_read_that_never_ends_does_not_stop_the_commits(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They wait a moment whenever the log has doubled; once the read has ended, it starts anew."""
        monkeypatch.setattr(files, "LOG_BYTES", 4 * MEGABYTE)
        monkeypatch.setattr(wal, "LOG_BYTES", 4 * MEGABYTE)
        async with await SqliteStore.open(path) as store:
            read = LongRead()
            reading = asyncio.create_task(store._read(read))
            await asyncio.to_thread(read.begun.wait)
            assert await asyncio.wait_for(write(store, 30 * MEGABYTE), 60) > 30 * MEGABYTE
            read.go_on.set()
            assert await reading == (0, 0)
            await write(store, 40 * MEGABYTE, first=1_000)
            assert await write(store, 40 * MEGABYTE, first=2_000) < 30 * MEGABYTE
            assert await store.self_check() == []


async def write(store: SqliteStore, size: int, *, first: int = 0) -> int:
    """Commits of half a megabyte each; how long the log was at its longest."""
    payload = scene.large(MEGABYTE // 2)
    longest = 0
    for seed in range(first, first + size // len(bytes(payload))):
        await store.commit(received(seed, payload=payload))
        longest = max(longest, os.stat(store.path + "-wal").st_size)
    return longest


class Relay:
    """Two reads at any time: the next begins before the last has ended."""

    def __init__(self, store: SqliteStore) -> None:
        self.reads = 0
        self._store = store
        self._stopped = False

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._run(delay)) for delay in (0.0, 0.01)]
        await asyncio.sleep(0.05)

    async def __aexit__(self, *error: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def _run(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while not self._stopped:
            await self._store._read(self._slow)
            self.reads += 1

    def _slow(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM streams").fetchone()
        threading.Event().wait(0.02)
        connection.execute("COMMIT")
