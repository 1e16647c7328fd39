"""kill -9: whatever was acknowledged is there, whole, and nothing is there in part (§STO-13, §STO-17)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

import pytest

from runstone.core.commit import Commit
from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.processes import child, inject, needs_strace

ROUNDS = 12
SEED = 2024
AT_ONCE = 3


async def test_nothing_acknowledged_is_lost_whenever_the_writer_is_killed(path: Path) -> None:
    moments = Random(SEED)
    acknowledged: set[str] = set()
    for turn in range(ROUNDS):
        with child("commit_for_ever", path, turn * 10_000) as writer:
            first = [writer.read() for _ in range(moments.randint(1, 60))]
            await asyncio.sleep(moments.uniform(0, 0.05))
            said = [*first, *writer.kill()]
        acknowledged |= {event_id for line in said for event_id in line.split()}
        async with await SqliteStore.open(path) as store:
            assert await store.self_check() == [], f"seed {SEED}, round {turn}"
            there = await scene.all_event_ids(store)
            assert acknowledged <= set(there), f"seed {SEED}, round {turn}"
    async with await SqliteStore.open(path) as store:
        assert await scene.problems(store) == [], f"seed {SEED}"
    assert len(acknowledged) > 10 * ROUNDS


@needs_strace
class TestEveryMoment:
    """Killed before each system call in turn that changes anything, until there is none left."""

    @pytest.fixture
    async def file(self, path: Path) -> Path:
        """A store with something in it, closed."""
        async with await SqliteStore.open(path) as store:
            await scene.write(store, [*scene.usual(1), *scene.usual(2)[:3]])
        return path

    @pytest.mark.parametrize(("call", "least"), [("pwrite64", 20), ("fdatasync", 2), ("flock", 4)])
    async def test_of_a_commit(self, call: str, least: int, file: Path) -> None:
        before, step = events([*scene.usual(1), *scene.usual(2)[:3]]), scene.usual(2)[3]
        deaths = await kill_at_every(call, file, "3 committed", "submit", 2, 3, 1, 1)
        for copy, said in deaths:
            async with await SqliteStore.open(copy, inline=True) as store:
                written = await store.count_events() - before
                assert written in ({len(step.events)} if said else {0, len(step.events)})
                assert (await store.commit(step)).repeated is (written > 0)
                assert await scene.problems(store) == []
        assert len(deaths) > least

    @pytest.mark.parametrize(
        ("call", "least"), [("pwrite64", 10), ("fdatasync", 2), ("ftruncate", 1), ("unlink", 2)]
    )
    async def test_of_emptying_the_log(self, call: str, least: int, file: Path) -> None:
        with child("submit", file, 2, 3, 3, 1) as submitter:
            assert len(submitter.rest()) == 3
        deaths = await kill_at_every(call, file, "closed", "close_cleanly")
        for copy, _ in deaths:
            async with await SqliteStore.open(copy, inline=True) as store:
                assert await store.count_events() == events([*scene.usual(1), *scene.usual(2)[:6]])
                assert await scene.problems(store) == []
        assert len(deaths) > least


def events(commits: list[Commit]) -> int:
    return sum(len(commit.events) for commit in commits)


async def kill_at_every(
    call: str, file: Path, done: str, program: str, *arguments: object
) -> list[tuple[Path, list[str]]]:
    """Runs a program on copies of a file, killed at its first such call, its second and so on.

    The copies and what was said of each; the last is the one that came through, and said so.
    """
    deaths: list[tuple[Path, list[str]]] = []
    while len(deaths) < 200:
        places = range(len(deaths) + 1, len(deaths) + 1 + AT_ONCE)
        runs = (asyncio.to_thread(_killed, call, when, file, program, arguments) for when in places)
        for copy, said in await asyncio.gather(*runs):
            deaths.append((copy, said))
            if said[-1:] == [done]:
                return deaths
    raise AssertionError("it never came through")


def _killed(
    call: str, when: int, file: Path, program: str, arguments: tuple[object, ...]
) -> tuple[Path, list[str]]:
    folder = file.with_name(f"{call} {when}")
    folder.mkdir()
    for part in file.parent.glob(file.name + "*"):
        shutil.copy(part, folder)
    copy = folder / file.name
    with child(program, copy, *arguments, faults=inject(call, "signal=KILL", when)) as victim:
        return copy, victim.rest()
