"""The composition root: the only module that knows every part and puts them together."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from runstone.core.ids import NewId
from runstone.core.run import Run
from runstone.engine.functions import Handler
from runstone.engine.worker import LEASE, POLL, Worker
from runstone.ingest.gateway import Gateway
from runstone.ports.authorization import AllowAll, Authorization
from runstone.ports.bell import Bell
from runstone.ports.clock import Clock, SystemClock, new_id
from runstone.ports.store import Store
from runstone.settings import load_settings
from runstone.stores.sqlite import SqliteStore


class Runtime:
    """One process's parts: a store, a gateway, and usually a worker."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler[Any, Any]],
        *,
        version: str = "",
        clock: Clock | None = None,
        ids: NewId | None = None,
        authorization: Authorization | None = None,
        worker: bool = True,
        concurrency: int = 256,
        lease: timedelta = LEASE,
        poll: float = POLL,
        threads: bool = True,
        jitter: Callable[[], float] | None = None,
        worker_id: str | None = None,
        grace: timedelta = timedelta(seconds=10),
        write_latency_budget_ms: int = 3000,
    ) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self.bell = Bell()
        self._grace = grace
        self.new_id = ids or new_id
        self.gateway = Gateway(
            store,
            clock=self.clock,
            new_id=self.new_id,
            bell=self.bell,
            authorization=authorization or AllowAll(),
        )
        self._threads = ThreadPoolExecutor(thread_name_prefix="runstone-step") if threads else None
        self._watchers: dict[str, list[asyncio.Future[Run]]] = {}
        self._followers: dict[str, list[asyncio.Queue[Any]]] = {}
        self.worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        if worker:
            self.worker = Worker(
                store,
                handlers,
                worker_id=worker_id or f"{socket.gethostname()}:{os.getpid()}:{self.new_id()}",
                clock=self.clock,
                new_id=self.new_id,
                bell=self.bell,
                version=version,
                concurrency=concurrency,
                lease=lease,
                poll=poll,
                threads=self._threads,
                emit=self._emitted,
                ended=self._ended,
                budget=timedelta(milliseconds=write_latency_budget_ms),
                jitter=jitter or random.random,
            )

    def start(self) -> None:
        """Lets the worker work."""
        if self.worker is not None:
            self._working = asyncio.ensure_future(self.worker.run())

    async def stop(self, deadline: timedelta | None = None) -> None:
        """Drains the worker, then lets go of what belongs to the process; the store is its opener's."""
        if self.worker is not None:
            await self.worker.drain(self._grace if deadline is None else deadline)
        if self._working is not None:
            await self._working
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # What others in the process hear

    def _ended(self, run: Run) -> None:
        for watcher in self._watchers.pop(run.id, ()):
            if not watcher.done():
                watcher.set_result(run)

    def _emitted(self, run_id: str, value: Any) -> None:
        for queue in self._followers.get(run_id, ()):
            queue.put_nowait(value)

    def works_on(self, run_id: str) -> bool:
        """Whether this process's own worker has the run in its hands, and will say when it lets go."""
        return self.worker is not None and self.worker.holds(run_id)

    async def changed(self, run_id: str, most: float) -> Run | None:
        """The run as this process's worker left it, as soon as it does; nothing after a while."""
        watcher: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(run_id, []).append(watcher)
        try:
            async with asyncio.timeout(most):
                return await watcher
        except TimeoutError:
            return None
        finally:
            waiting = self._watchers.get(run_id, [])
            if watcher in waiting:
                waiting.remove(watcher)
                if not waiting:
                    del self._watchers[run_id]

    def follow(self, run_id: str) -> asyncio.Queue[Any]:
        """What the run emits from now on, in this process."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._followers.setdefault(run_id, []).append(queue)
        return queue

    def unfollow(self, run_id: str, queue: asyncio.Queue[Any]) -> None:
        followers = self._followers[run_id]
        followers.remove(queue)
        if not followers:
            del self._followers[run_id]


async def open_store(location: str | None = None) -> Store:
    """The store that is named here, or by the settings."""
    settings = load_settings(store=location, environment=os.environ, folder=Path.cwd())
    return await SqliteStore.open(settings.store_path)
