"""A disk that is full or fails: a clear error, nothing acknowledged lost, and the store goes on afterwards.

The child submits commits and says what it was told. After its death, which no store is closed for, its
parent looks for every commit that was acknowledged.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from runstone.errors import StoreFull
from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.processes import child, inject, needs_strace

COUNT = 4
"""How many commits of the usual run a child submits."""

FAULTS = [
    # Before the log's head, before a frame, in the middle of one, while the disk stays full.
    *(("pwrite64", "error=ENOSPC", when, "StoreFull") for when in (1, 2, 3, 24, "2..9")),
    *(("pwrite64", "error=EIO", when, "OutcomeUnknown") for when in (1, 2, 3, "24..26")),
    # The sync of the log's head, those of the first two commits, and several in a row.
    *(("fdatasync", "error=EIO", when, "OutcomeUnknown") for when in (1, 2, 3, "2..4")),
    ("fdatasync", "error=ENOSPC", 2, "OutcomeUnknown"),
]


@pytest.fixture
async def file(path: Path) -> Path:
    """A store with something in it, closed."""
    async with await SqliteStore.open(path) as store:
        await scene.write(store, scene.usual(1))
    return path


async def prove(path: Path, said: list[str]) -> None:
    """Everything acknowledged is there and whole, and whatever was submitted can be submitted again."""
    outcomes = [line.split() for line in said]
    acknowledged = {int(place) for place, outcome in outcomes if outcome in ("committed", "repeated")}
    commits = scene.usual(2)
    async with await SqliteStore.open(path) as store:
        assert await scene.problems(store) == []
        there = set(await scene.all_event_ids(store))
        for place in acknowledged:
            assert there.issuperset(scene.event_ids(commits[place]))
        for place, commit in enumerate(commits):
            repeated = (await store.commit(commit)).repeated
            assert repeated or place not in acknowledged
        assert await scene.problems(store) == []


@needs_strace
@pytest.mark.parametrize(("call", "fault", "when", "error"), FAULTS)
async def test_a_commit_that_failed_is_submitted_again_and_lands(
    call: str, fault: str, when: int | str, error: str, file: Path
) -> None:
    faults = inject(call, fault, when, scene.wal(file))
    with child("submit", file, 2, 0, COUNT, 100, faults=faults) as submitter:
        said = submitter.rest()
    outcomes = [line.split()[1] for line in said]
    assert outcomes.count("committed") + outcomes.count("repeated") == COUNT
    assert set(outcomes) - {"committed", "repeated"} == {error}
    await prove(file, said)


@needs_strace
@pytest.mark.parametrize(("call", "fault", "when", "error"), FAULTS)
async def test_a_process_that_dies_of_the_fault_loses_nothing(
    call: str, fault: str, when: int | str, error: str, file: Path
) -> None:
    faults = inject(call, fault, when, scene.wal(file))
    with child("submit", file, 2, 0, COUNT, 1, faults=faults) as submitter:
        said = submitter.rest()
    assert said[-1].split()[1] == error
    await prove(file, said)


@needs_strace
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "ftruncate"])
async def test_a_log_that_cannot_be_emptied_is_kept(call: str, file: Path) -> None:
    """The last to close a file writes the log into it. If that fails, the log stays and is read again."""
    with child("submit", file, 2, 0, COUNT, 1) as submitter:
        said = submitter.rest()
    assert scene.wal(file).stat().st_size > 0
    with child("close_cleanly", file, faults=inject(call, "error=EIO", "1+", file)) as closer:
        assert closer.rest() == ["opened", "closed"]
    assert scene.wal(file).exists()
    await prove(file, said)


@needs_strace
async def test_a_disk_that_cannot_be_read_is_an_error_until_it_can(file: Path) -> None:
    with child("read", file, 30, faults=inject("pread64", "error=EIO", "2..5", file)) as reader:
        said = reader.rest()
    events = sum(len(commit.events) for commit in scene.usual(1))
    assert set(said) == {"StoreUnusable", str(events)}
    assert said[-1] == str(events)


async def test_a_store_that_has_no_page_left_says_so(store: SqliteStore) -> None:
    async def limit(pages: int) -> None:
        def set_limit(connection: sqlite3.Connection) -> None:
            connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()

        await store._writer.execute(set_limit)

    await scene.write(store, scene.usual(1))
    await limit(100)
    many = [scene.received(seed, payload=scene.large(100_000)) for seed in range(8)]
    outcomes = await asyncio.gather(*map(store.commit, many), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {StoreFull}
    assert "Free some space" in str(outcomes[0])
    assert await scene.problems(store) == []
    await limit(1_000_000)
    again = await asyncio.gather(*map(store.commit, many))
    assert not any(committed.repeated for committed in again)
    assert await scene.problems(store) == []
