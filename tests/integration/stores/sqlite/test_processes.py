"""Several processes on one file: fair turns, and nobody waits for ever for one that hangs."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path

import pytest

from runstone.errors import StoreBusy
from runstone.stores.sqlite import SqliteStore, turnstile, writer
from runstone.stores.sqlite.turnstile import Turnstile
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.child import SEEDS_APART
from tests.integration.stores.sqlite.processes import TIMEOUT, child

WRITERS = 4
SECONDS = 3
LEAST_SHARE = 0.1
MOST_OVERTAKEN = 400
"""Commits between two of one writer: some come while it has nothing to write yet, or no processor. They are
counted, not timed: when the disk or the machine is slow, it is so for all of them."""


async def test_no_writer_starves_beside_others(path: Path) -> None:
    async with await SqliteStore.open(path):
        pass
    with ExitStack() as stack:
        writers = [stack.enter_context(child("saturate", path, place, SECONDS)) for place in range(WRITERS)]
        assert [writer.read() for writer in writers] == ["ready"] * WRITERS
        for writer in writers:
            writer.tell()
        said = [writer.rest() for writer in writers]
    counts = [int(lines[-1]) for lines in said]
    assert min(counts) > LEAST_SHARE * sum(counts)
    async with await SqliteStore.open(path) as store:
        there = await scene.all_event_ids(store)
        assert await scene.problems(store) == []
    places = {event_id: at for at, event_id in enumerate(there)}
    commits = [commits_of(place, places) for place in range(WRITERS)]
    assert list(map(len, commits)) == counts
    order = sorted((at, place) for place, made in enumerate(commits) for at in made)
    for place in range(WRITERS):
        turns = [turn for turn, (_, whose) in enumerate(order) if whose == place]
        assert max(later - earlier for earlier, later in pairwise(turns)) <= MOST_OVERTAKEN


def commits_of(writer: int, places: dict[str, int]) -> list[int]:
    """The places of a writer's commits in the store."""
    found: list[int] = []
    for seed in itertools.count(writer, SEEDS_APART):
        events = map(scene.event_ids, scene.usual(seed))
        commits = [places[ids[0]] for ids in events if places.keys() >= set(ids)]
        if not commits:
            return found
        found += commits
    raise AssertionError("it counts for ever")


class TestOneThatHangs:
    """A process that was stopped in the middle of a commit, or just before it."""

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """It is short, until this is called: who was in line needs a processor to step out of it."""
        monkeypatch.setattr(turnstile, "BUSY_SECONDS", 0.3)
        return lambda: monkeypatch.setattr(turnstile, "BUSY_SECONDS", TIMEOUT)

    async def test_the_others_give_up_and_name_it(
        self, store: SqliteStore, patience: Callable[[], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        with child("hang_in_a_commit", store.path) as holder:
            assert holder.read() == "holding"
            os.kill(holder.pid, signal.SIGSTOP)
            said = f"process {holder.pid} had the lock last, and hangs or was stopped"
            async with asyncio.timeout(20):  # without the fixture, they would wait for longer
                with pytest.raises(StoreBusy, match=said):
                    await store.commit(scene.received(1))
            assert (
                f"waiting for a turn to write: process {holder.pid} had the lock last" in caplog.messages[0]
            )
            with pytest.raises(StoreBusy, match=f"process {holder.pid} "):
                await store.claim("w", handlers=["h"], code_rank="z", limit=1, lease=scene.LEASE)
            assert await store.count_events() == 0, "readers need no lock"
            holder.kill()
        patience()
        assert not (await store.commit(scene.received(1))).repeated
        assert await scene.problems(store) == []

    async def test_one_that_goes_on_is_waited_for_again(
        self, store: SqliteStore, patience: Callable[[], None]
    ) -> None:
        """Whoever gave up left somebody in line, who steps out of it when it is their turn."""
        with child("hang_in_a_commit", store.path) as holder:
            assert holder.read() == "holding"
            for _ in range(3):
                with pytest.raises(StoreBusy):
                    await store.commit(scene.received(1))
            holder.kill()
        patience()
        async with await SqliteStore.open(store.path) as other:
            for seed in range(1, 20):
                await (store if seed % 2 else other).commit(scene.received(seed))
            assert await scene.problems(other) == []
            assert await other.count_events() == 19

    async def test_one_that_hangs_in_line_is_named_too(
        self, store: SqliteStore, patience: Callable[[], None]
    ) -> None:
        gate = Turnstile(Path(store.path))
        with gate(), child("hang_in_line", store.path) as next_in_line:
            assert next_in_line.read() == "opened"
            wait_until(lambda: f"{next_in_line.pid}" in Path(store.path + "-turn").read_text())
            os.kill(next_in_line.pid, signal.SIGSTOP)
            with pytest.raises(StoreBusy, match=f"process {next_in_line.pid} is next in line"):
                await store.commit(scene.received(1))
        gate.close()
        patience()
        assert not (await store.commit(scene.received(1))).repeated

    async def test_closing_does_not_wait_for_it(self, path: Path) -> None:
        store = await SqliteStore.open(path)
        with child("hang_in_a_commit", path) as holder:
            assert holder.read() == "holding"
            with pytest.raises(StoreBusy):
                await store.commit(scene.received(1))
            await store.close()

    async def test_a_file_that_is_up_to_date_opens_beside_it(self, store: SqliteStore) -> None:
        await store.commit(scene.received(1))
        with child("hang_in_a_commit", store.path) as holder:
            assert holder.read() == "holding"
            async with await SqliteStore.open(store.path) as other:
                assert await other.count_events() == 1


async def test_another_program_is_waited_for_aloud(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It passes no turnstile: it has SQLite's own lock, and a person wonders why nothing happens."""
    monkeypatch.setattr(writer, "NOTICE_SECONDS", 0.1)
    async with await SqliteStore.open(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            commit = asyncio.ensure_future(store.commit(scene.received(1)))
            await asyncio.to_thread(wait_until, lambda: bool(caplog.messages))
            assert not commit.done()
            other.execute("ROLLBACK")
        assert not (await commit).repeated
        assert not (await store.commit(scene.received(2))).repeated
    (said,) = caplog.messages
    assert said == f"{path}: another program holds the file; waiting for up to 30 s"


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls, and fails when it takes far too long."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
