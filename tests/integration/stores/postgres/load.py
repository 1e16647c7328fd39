"""A load of commits from several clients, while something goes wrong with the server or the way to it.

Every run has one writer, which submits its commits in order and never gives up. So whatever the store says
can be judged: a refusal is a wrong answer, for nobody else writes; and after `StoreUnusable`, which says
that nothing was written, the same commit must not turn out to have been there before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from runstone.audit.verify import verify_all
from runstone.core.commit import Commit
from runstone.errors import OutcomeUnknown, StoreUnusable
from runstone.stores.postgres import PostgresStore
from tests.integration.stores.sqlite import scene

PATIENCE: Final = 180.0
"""Seconds after which a load that makes no progress is a failure; machines may be slow."""

LONG: Final = timedelta(seconds=120)
"""How long callers wait for a server that is away for a while, on a machine that is slow to start it."""

AT_ONCE: Final = 6
"""Runs of one client at a time."""

_seeds: Final = itertools.count(1)


async def waiting_for_ever(store: PostgresStore) -> None:
    """Its statements no longer give a lock up after a while: on a slow machine that could be too soon."""
    for link in store._writer._links:
        await (await link.connection()).execute("SET lock_timeout = 0")


class Load:
    """`async with Load(url, …) as load:`, one client for each URL; break something, then `finish`."""

    def __init__(self, *urls: str, patience: timedelta = LONG) -> None:
        self._urls = urls
        self._patience = patience
        self._stack = AsyncExitStack()
        self._writers: list[asyncio.Task[None]] = []
        self._over = False
        self.stores: list[PostgresStore] = []
        self.acknowledged: list[Commit] = []
        self.errors: Counter[type[Exception]] = Counter()
        """What callers were told, by kind."""
        self.repeated = 0
        """How many commits were there already when they were submitted again."""
        self.wrong: list[str] = []

    async def __aenter__(self) -> Self:
        for url in self._urls:
            store = await PostgresStore.open(url, patience=self._patience)
            self.stores.append(await self._stack.enter_async_context(store))
        for store in self.stores:
            self._writers += [asyncio.ensure_future(self._write(store)) for _ in range(AT_ONCE)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)
        await self._stack.aclose()

    async def progress(self, commits: int) -> None:
        """Until so many more commits have been acknowledged."""
        wanted = len(self.acknowledged) + commits
        async with asyncio.timeout(PATIENCE):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.01)
                self._raise_if_broken()

    async def finish(self) -> None:
        """Every run that has begun is written to its end."""
        self._over = True
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._writers)

    def _raise_if_broken(self) -> None:
        for writer in self._writers:
            if writer.done() and not writer.cancelled() and (error := writer.exception()):
                raise error

    async def _write(self, store: PostgresStore) -> None:
        while not self._over:
            for commit in scene.usual(next(_seeds)):
                await self._submit(store, commit)
                self.acknowledged.append(commit)

    async def _submit(self, store: PostgresStore, commit: Commit) -> None:
        in_doubt = False
        while True:
            try:
                committed = await store.commit(commit)
            except (OutcomeUnknown, StoreUnusable) as error:
                self.errors[type(error)] += 1
                in_doubt |= isinstance(error, OutcomeUnknown)
                await asyncio.sleep(0.05)
                continue
            self.repeated += committed.repeated
            if committed.repeated and not in_doubt:
                self.wrong.append(f"{commit.events[0].id} was there, and nobody was told that it might be")
            return

    async def findings(self, url: str) -> list[str]:
        """What is not as it has to be: asked of a store of its own, on another way to the same database."""
        found = list(self.wrong)
        async with await PostgresStore.open(url) as store:
            async with asyncio.timeout(PATIENCE):  # for statements whose sender has long given them up
                while (await store.feed_status()).held_events:  # noqa: ASYNC110  (only the server knows)
                    await asyncio.sleep(0.01)
            there = Counter(await scene.all_event_ids(store))  # type: ignore[arg-type]
            wanted = Counter(event.id for commit in self.acknowledged for event in commit.events)
            found += [f"{event_id} was acknowledged, and is gone" for event_id in wanted - there]
            found += [f"{event_id} is there too often" for event_id in there - wanted]
            async for verified in verify_all(store):
                found += map(str, verified.findings)
        return found
