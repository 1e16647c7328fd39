"""What the engine's tests share: polling with a bound, processes that can crash, and what a log says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest

import runstone as rs
from runstone.core.events import Event
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.step import Step
from runstone.engine.values import Shape
from runstone.engine.worker import Worker
from runstone.runtime import Runtime
from runstone.stores.sqlite import SqliteStore

T = TypeVar("T")

PATIENCE = 60.0
"""How long anything may take before its test fails, in seconds."""

FAST = 0.02
"""How often a worker under test looks for runs, in seconds."""

NOW = timedelta(0)
"""The grace of an app that is to drop everything at its end."""

SHORT_LEASE = timedelta(seconds=0.2)
"""The lease of a worker whose death others are to notice soon."""


async def until(question: Callable[[], object], what: str = "it") -> None:
    """Asks again and again until the answer is yes; fails when that takes too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        answer = question()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return
        assert loop.time() < deadline, f"{what} did not happen within {PATIENCE} s"
        await asyncio.sleep(0.005)


async def within(wanted: Awaitable[T]) -> T:
    """The result, if it comes in time."""
    return await asyncio.wait_for(wanted, PATIENCE)


async def log(handle: rs.Handle[Any]) -> list[Event]:
    """The run's events."""
    return [event async for event in handle.events()]


async def types(handle: rs.Handle[Any]) -> list[str]:
    """The types of the run's events."""
    return [event.event_type for event in await log(handle)]


async def steps(app: rs.App, handle: rs.Handle[Any]) -> list[Step]:
    """The rows of the run's steps."""
    rows = await app.runtime.store.rows(DEFAULT_TENANT, handle.id)
    return [row for row in rows if isinstance(row, Step)]


async def data(handle: rs.Handle[Any], event_type: str) -> list[Any]:
    """The data of the run's events of one type."""
    return [
        msgspec.json.decode(event.event_data) for event in await log(handle) if event.event_type == event_type
    ]


async def has(handle: rs.Handle[Any], event_type: str, step_key: str | None = None) -> bool:
    """Whether the log holds such an event."""
    return any(
        event.event_type == event_type and step_key in (None, event.step_key) for event in await log(handle)
    )


async def status(handle: rs.Handle[Any], wanted: str) -> None:
    """Waits until the run has that status."""

    async def reached() -> bool:
        return (await handle.status()).status == wanted

    await until(reached, f"status {wanted}")


async def suspended(app: rs.App, handle: rs.Handle[Any]) -> None:
    """Waits until the run has left memory."""
    worker = app.runtime.worker
    assert worker is not None

    async def rests() -> bool:
        return (await types(handle))[-1] == "RUN_SUSPENDED" and not worker.holds(handle.id)

    await until(rests, "suspension")


def leased(app: rs.App) -> bool:
    """Whether its worker would take a run at once: its lease is in the store."""
    worker = app.runtime.worker
    assert worker is not None
    with worker.reserve() as place:
        return place


class Heartbeats:
    """Counts how often a process has kept its lease."""

    def __init__(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        store = process.runtime.store
        heartbeat = store.heartbeat

        async def counted(*arguments: Any, **more: Any) -> dict[str, int]:
            news = await heartbeat(*arguments, **more)
            self._count += 1
            return news

        monkeypatch.setattr(store, "heartbeat", counted)

    async def another(self) -> None:
        """Waits for one that was begun from now on: the next may be on its way already."""
        wanted = self._count + 2
        await until(lambda: self._count >= wanted, "a heartbeat")


class SlowReads:
    """Lets what is read from a store arrive late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self.read = asyncio.Event()
        self._late = True
        self._load = SqliteStore.load
        slow = self

        async def load(store: SqliteStore, *arguments: Any, **more: Any) -> Any:
            return await slow.load(store, *arguments, **more)

        monkeypatch.setattr(SqliteStore, "load", load)

    async def load(self, store: SqliteStore, *arguments: Any, **more: Any) -> Any:
        found = await self._load(store, *arguments, **more)
        if self._late:
            self._late = False
            self.read.set()
            await self.gate.wait()
        return found


class Process:
    """One process of its own on a store's file: it can crash, leaving everything as it is."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.crashed = False

    @property
    def worker(self) -> Worker:
        assert self.runtime.worker is not None
        return self.runtime.worker

    def handle(self, handle: rs.Handle[T]) -> rs.Handle[T]:
        """The same run, seen from this process."""
        return rs.Handle(self.runtime, DEFAULT_TENANT, handle.id, Shape(Any, "any result"))

    async def crash(self, *, lease_over: bool = True) -> None:
        """Stops working and gives nothing back, now or later.

        Nobody has to wait for the end of its lease: a short one would end under a slow machine too.
        """
        self.crashed = True
        await self.worker.abandon()
        if lease_over:
            await self.worker._idle.wait()  # a heartbeat that is on its way would bring the lease back
            await self.runtime.store.heartbeat(self.worker.id, lease=timedelta(seconds=-1))


@asynccontextmanager
async def process(app: rs.App, path: str, **options: Any) -> AsyncIterator[Process]:
    """A process; while it is open the app's starts and signals go through it."""
    store = await SqliteStore.open(path, clock=options.get("clock"))
    options = {"poll": FAST, "grace": NOW, "version": app.version, **options}
    runtime = Runtime(store, app.handlers, **options)
    app.attach(runtime)
    runtime.start()
    opened = Process(runtime)
    try:
        yield opened
    finally:
        app.attach(None)
        if not opened.crashed:
            await runtime.stop()
        await store.close()
