"""Programs for processes of their own: `python -m tests.integration.stores.folder.child NAME ROOT`.

Each tells on its standard output what it did, a line at a time and not a moment before it is true.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from runstone.errors import StoreError
from runstone.stores.folder import FolderStore
from tests.integration.stores.folder.scene import EVENTS, Writer


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def live(root: Path) -> None:
    """The usual run, from nothing to its end; says the id of each event that is durable."""
    async with await FolderStore.open(root, inline=True) as store:
        writer = Writer(store)
        await writer.create()
        for data in EVENTS:
            await writer.record(data)
            say(writer.acknowledged[-1].id)
    say("closed")


async def hold(root: Path) -> None:
    """Writes to the usual run, and keeps it until it is told to stop."""
    async with await FolderStore.open(root) as store:
        writer = Writer(store)
        await writer.create()
        await writer.record(*EVENTS[:2])
        say("holds it")
        sys.stdin.readline()


async def fork(root: Path) -> None:
    """Forks while it holds a run. The child is shut out and outlives its parent, which keeps the run."""
    store = await FolderStore.open(root, inline=True)
    writer = Writer(store)
    await writer.create()
    if os.fork() == 0:
        try:
            await writer.record(EVENTS[0])
        except StoreError as error:
            say("child", type(error).__name__)
        try:
            await Writer(await FolderStore.open(root, inline=True)).record(EVENTS[0])
        except StoreError as error:
            say("child", type(error).__name__)
        signal.pause()
    sys.stdin.readline()
    await writer.record(EVENTS[0])
    say("parent recorded")
    os._exit(0)


if __name__ == "__main__":
    asyncio.run({"live": live, "hold": hold, "fork": fork}[sys.argv[1]](Path(sys.argv[2])))
