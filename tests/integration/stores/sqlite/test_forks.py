"""A fork copies what SQLite knows of its locks, but not the locks: nothing of a store crosses it."""

from __future__ import annotations

from pathlib import Path

from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.processes import child

EVENTS = sum(len(commit.events) for commit in scene.usual(1))


async def test_what_was_open_at_a_fork_stays_shut_in_the_child(path: Path) -> None:
    with child("fork", path) as forked:
        said = forked.rest()
    assert said == [
        "commit StoreClosed",
        "read StoreClosed",
        "open StoreUnusable",
        "close done",
        f"another file {EVENTS}",
        f"after it was closed {3 * EVENTS}",
    ]
    async with await SqliteStore.open(path) as store:
        assert await store.count_events() == 3 * EVENTS
        assert await scene.problems(store) == []
