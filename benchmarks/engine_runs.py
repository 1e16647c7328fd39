"""Runs of five steps through the whole engine, in one process or in several on one file or database.

A process has a share of the runs and of the clients, as a worker of a web server has. Each client starts a
run, waits for its result, starts the next. Every process keeps the commits that it made and hands them over
in a file, for the bare writer.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from benchmarks import apps, postgres
from benchmarks.apps import STEPS, five_steps
from benchmarks.conversation import Conversation
from benchmarks.measure import undisturbed
from benchmarks.team import Style, Team, open_team
from runstone.core.commit import Commit

COMMAND: Final = (sys.executable, "-m", "benchmarks.engine_runs")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes did together."""

    rate: float
    """Steps per second."""
    warm_runs: int
    """How many runs went before."""
    warm: Sequence[Commit]
    commits: Sequence[Commit]
    """What they committed before they were measured, and then."""


def open_engine(folder: Path) -> AbstractContextManager[Team]:
    """Processes that run the engine, for as long as this is open."""
    return open_team(COMMAND, folder)


def run_engine(team: Team, store: str, folder: Path, style: Style, at_once: int, runs: int) -> Ran:
    """One round on a store that is empty so far; `folder` is for what they hand over."""
    turn = team.take_turn(style.processes, at_once, runs, store=store, folder=str(folder))
    warm: list[Commit] = []
    commits: list[Commit] = []
    for found in turn.found:
        handed = Path(found["commits"])
        before, after = pickle.loads(handed.read_bytes())  # by a process of our own
        handed.unlink()
        warm += before
        commits += after
    return Ran(rate=STEPS * runs / turn.seconds, warm_runs=turn.warm, warm=warm, commits=commits)


# In the companion


async def take_round(
    talk: Conversation, store: str, folder: str, place: int, at_once: int, runs: int
) -> dict[str, Any]:
    """A process's share of a round.

    One run goes before. On PostgreSQL as many as are under way at once do: connections are opened and
    statements prepared by them.
    """
    playable = five_steps()
    app = playable.app

    async def client(questions: Iterator[int]) -> None:
        for question in questions:
            handle = await app.start(playable.handler, question)
            assert await handle.result() == "done"

    async def clients(count: int) -> None:
        questions = iter(range(count))
        await asyncio.gather(*(client(questions) for _ in range(at_once)))

    opened = await _open(store)
    before = min(at_once, runs) if isinstance(opened, postgres.RememberingStore) else 0
    async with opened, app.running(opened, concurrency=at_once):
        await client(iter((0,)))
        await clients(before)
        with undisturbed():
            await asyncio.to_thread(talk.pause, warm=1 + before)
            warm, opened.commits = opened.commits, []
            began = perf_counter()
            await clients(runs)
            ended = perf_counter()
        await asyncio.to_thread(talk.pause, began=began, ended=ended)
    handed = Path(folder) / f"commits-{place}.pickle"
    handed.write_bytes(pickle.dumps((warm, opened.commits), pickle.HIGHEST_PROTOCOL))
    return {"commits": str(handed)}


async def _open(store: str) -> apps.RememberingStore | postgres.RememberingStore:
    if store.startswith("postgresql://"):
        remote = await postgres.RememberingStore.open(store)
        assert isinstance(remote, postgres.RememberingStore)
        return remote
    local = await apps.RememberingStore.open(Path(store))
    assert isinstance(local, apps.RememberingStore)
    return local


def main() -> None:
    talk = Conversation()
    for question in talk.questions():
        talk.answer(**asyncio.run(take_round(talk, **question)))


if __name__ == "__main__":
    main()
