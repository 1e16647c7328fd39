"""Dispatchers that take effects out of one store, in one process or in several.

None of them knows when all is done, for each hears only of the runs that it ended itself: a process is
through when it has heard of none for a while, and its time ends with the last one.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from benchmarks.conversation import Conversation
from benchmarks.effects import NoOp, Ping, RecordingStore, new_dispatcher
from benchmarks.measure import undisturbed
from benchmarks.team import Style, Team, open_team
from runstone.core.commit import Commit
from runstone.core.run import Run
from runstone.outbox.dispatcher import CONCURRENCY
from runstone.outbox.services import Service

COMMAND: Final = (sys.executable, "-m", "benchmarks.outbox_runs")
QUIET: Final = 1.0
"""Seconds without a run that ends, after which a process is through."""


class Unfinished(Exception):
    """Not every run has ended."""


class Taken(msgspec.Struct, frozen=True):
    """What the processes did together."""

    seconds: float
    commits: Sequence[Commit]
    claims: Sequence[int]
    """How many effects each claim brought."""


def open_dispatchers(folder: Path) -> AbstractContextManager[Team]:
    """Processes with a dispatcher each, for as long as this is open."""
    return open_team(COMMAND, folder)


def take_out(team: Team, store: str, folder: Path, style: Style, runs: int) -> Taken:
    """What so many runs have asked for is done; `Unfinished` if some of it is not."""
    turn = team.take_turn(style.processes, CONCURRENCY, runs, store=store, folder=str(folder))
    commits: list[Commit] = []
    claims: list[int] = []
    for found in turn.found:
        handed = Path(found["handed"])
        own_commits, own_claims = pickle.loads(handed.read_bytes())  # by a process of our own
        handed.unlink()
        commits += own_commits
        claims += own_claims
    ended = sum(found["runs"] for found in turn.found)
    if ended != runs:
        raise Unfinished(f"{ended} runs have ended, of {runs}")
    return Taken(turn.seconds, commits, claims)


# In the companion


async def take_round(
    talk: Conversation, store: str, folder: str, place: int, at_once: int, runs: int
) -> dict[str, Any]:
    """A process's part in a round: whatever it gets hold of, so many at once."""
    opened = await _open(store)
    heard: list[float] = []

    def ended(run: Run) -> None:
        heard.append(perf_counter())

    service = Service(spec=Ping, executor=NoOp())
    dispatcher = new_dispatcher(opened, service, at_once, ended, place)
    try:
        with undisturbed():
            await asyncio.to_thread(talk.pause, warm=0)
            began = perf_counter()
            running = asyncio.create_task(dispatcher.run())
            while perf_counter() - (heard[-1] if heard else began) < QUIET:  # noqa: ASYNC110  (nobody says so)
                await asyncio.sleep(QUIET / 4)
        await dispatcher.drain()
        await running
        await asyncio.to_thread(talk.pause, began=began, ended=heard[-1] if heard else began)
    finally:
        await opened.close()
    handed = Path(folder) / f"outbox-{place}.pickle"
    handed.write_bytes(pickle.dumps((opened.commits, opened.claims), pickle.HIGHEST_PROTOCOL))
    return {"handed": str(handed), "runs": len(heard)}


async def _open(store: str) -> RecordingStore:
    if store.startswith("postgresql://"):
        from benchmarks import outbox_postgres

        return await outbox_postgres.opened(store)
    from benchmarks import outbox_sqlite

    return await outbox_sqlite.opened(store)


def main() -> None:
    talk = Conversation()
    for question in talk.questions():
        talk.answer(**asyncio.run(take_round(talk, **question)))


if __name__ == "__main__":
    main()
