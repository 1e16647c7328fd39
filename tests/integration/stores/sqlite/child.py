"""Programs for processes of their own: `python -m tests.integration.stores.sqlite.child NAME ARGUMENT…`.

Each tells on its standard output what it did, a line at a time and not a moment before it is true.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from runstone.core.commit import Commit
from runstone.errors import StoreError
from runstone.stores.sqlite import SqliteStore
from tests.integration.stores.sqlite.scene import event_ids, usual, wild, write

_T = TypeVar("_T")

AT_ONCE = 8
"""Runs that a busy writer has under way."""

SEEDS_APART = 1_000
"""Between the seeds of a saturated writer; other writers take those in between."""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def die() -> None:
    """As if the parent had killed it, but at a moment that the child chooses."""
    os.kill(os.getpid(), signal.SIGKILL)


async def create(*paths: str) -> None:
    """Opens and closes files, each at the parent's word; says what came of it."""
    say("ready")
    for path in paths:
        sys.stdin.readline()
        try:
            async with await SqliteStore.open(path):
                say("opened")
        except StoreError as error:
            say(type(error).__name__, error)


async def commit_for_ever(path: str, seed: str) -> None:
    """Commits as fast as it can; says the events of each commit that was acknowledged."""
    store = await SqliteStore.open(path)
    runs = itertools.count(int(seed))

    async def work() -> None:
        for run in runs:
            for commit in wild(run):
                await store.commit(commit)
                say(*event_ids(commit))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def submit(path: str, seed: str, first: str, count: str, tries: str) -> None:
    """Submits so many commits from the first on, each up to so many times; says every outcome, then dies.

    It dies without closing the store, and as soon as a commit has not succeeded in its last try.
    """
    store = await SqliteStore.open(path)
    for place in range(int(first), int(first) + int(count)):
        commit = usual(int(seed))[place]
        for _ in range(int(tries)):
            outcome = await _outcome(store, commit)
            say(place, outcome)
            if outcome in ("committed", "repeated"):
                break
        else:
            break
    die()


async def _outcome(store: SqliteStore, commit: Commit) -> str:
    try:
        committed = await store.commit(commit)
    except StoreError as error:
        return type(error).__name__
    return "repeated" if committed.repeated else "committed"


async def close_cleanly(path: str) -> None:
    """Opens a file and closes it again, which empties its log into it."""
    store = await SqliteStore.open(path)
    say("opened")
    await store.close()
    say("closed")


async def read(path: str, times: str) -> None:
    """Opens a file and counts its events, so many times; says the number, or what came instead."""
    for _ in range(int(times)):
        try:
            async with await SqliteStore.open(path, inline=True) as store:
                say(await store.count_events())
        except StoreError as error:
            say(type(error).__name__)


async def saturate(path: str, seed: str, seconds: str) -> None:
    """Keeps the file as busy as it can; says how many commits it made."""
    store = await SqliteStore.open(path)
    runs = itertools.count(int(seed), SEEDS_APART)
    count = 0
    say("ready")
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    for commit in itertools.chain.from_iterable(map(usual, runs)):
        if time.monotonic() > end:
            break
        await store.commit(commit)
        count += 1
    await store.close()
    say(count)


async def hang_in_a_commit(path: str) -> None:
    """Holds the writer's lock, and never lets go."""
    store = await SqliteStore.open(path)

    def hang(_: sqlite3.Connection) -> None:
        say("holding")
        threading.Event().wait()

    await store._writer.execute(hang)


async def hang_in_line(path: str) -> None:
    """Is next in line for the lock, which another process holds."""
    store = await SqliteStore.open(path)
    say("opened")
    await store.commit(usual(1)[0])


def fork(path: str) -> None:
    """Forks while a store is open, and again after it was closed; says what the two children can do."""
    with asyncio.Runner() as runner:
        store = runner.run(SqliteStore.open(path))
        runner.run(write(store, usual(1)))
        _in_a_fork(_use_inherited, store)
        runner.run(write(store, usual(2)))
        runner.run(store.close())
    _in_a_fork(_use_anew, path)


def _in_a_fork(use: Callable[[_T], Coroutine[Any, Any, None]], argument: _T) -> None:
    process = os.fork()
    if process == 0:
        try:
            asyncio.run(use(argument))
        finally:
            os._exit(0)
    os.waitpid(process, 0)


async def _use_inherited(store: SqliteStore) -> None:
    for what, using in (
        ("commit", store.commit(usual(3)[0])),
        ("read", store.count_events()),
        ("open", SqliteStore.open(store.path)),
        ("close", store.close()),
    ):
        try:
            await using
            say(what, "done")
        except StoreError as error:
            say(what, type(error).__name__)
    async with await SqliteStore.open(store.path + "-other") as other:
        await write(other, usual(4))
        say("another file", await other.count_events())


async def _use_anew(path: str) -> None:
    async with await SqliteStore.open(path) as store:
        await write(store, usual(5))
        say("after it was closed", await store.count_events())


PROGRAMS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    program.__name__: program
    for program in (
        create,
        commit_for_ever,
        submit,
        close_cleanly,
        read,
        saturate,
        hang_in_a_commit,
        hang_in_line,
    )
}

if __name__ == "__main__":
    if sys.argv[1] == fork.__name__:
        fork(sys.argv[2])
    else:
        asyncio.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))
