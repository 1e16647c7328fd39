"""Effects that benchmarks ask for, and dispatchers that take them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import ClassVar, Final, Protocol

from runstone import App, EffectSpec, Run
from runstone.core.commit import Commit
from runstone.core.run import Run as EndedRun
from runstone.outbox.dispatcher import CONCURRENCY, Dispatcher
from runstone.outbox.services import Service
from runstone.ports.bell import Bell
from runstone.ports.clock import SystemClock, new_id
from runstone.ports.executor import EffectCall, Outcome, Succeeded
from runstone.ports.store import Store

WORKER: Final = "benchmark"
AT_ONCE: Final = 64
"""How many runs ask at once, while the effects are asked for."""


class RecordingStore(Store, Protocol):
    """A store that keeps its commits, and how many effects each claim brought."""

    commits: list[Commit]
    claims: list[int]


class Ping(EffectSpec, frozen=True, kw_only=True):
    """Something that costs nothing to do."""

    EFFECT_TYPE: ClassVar[str] = "PING"

    number: int
    text: str = "what has to be known to do it"


class NoOp:
    """Does it."""

    async def execute(self, call: EffectCall) -> Outcome:
        return Succeeded({"done": True})

    def target(self, spec: EffectSpec) -> str | None:
        return None

    async def aclose(self) -> None:
        pass


async def request(store: Store, runs: int, each: int, make: Callable[[int], EffectSpec]) -> None:
    """So many runs ask for so many effects each, through the engine; nothing is done yet."""
    app = App("benchmark")
    asked = asyncio.Semaphore(0)

    @app.on()
    async def ask(run: Run, number: int) -> str:
        for ordinal in range(each):
            await run.effect(make(ordinal))
        asked.release()
        return "asked"

    async with app.running(store, outbox=False, concurrency=AT_ONCE):
        for number in range(runs):
            await app.start(ask, number)
        for _ in range(runs):
            await asked.acquire()


def new_dispatcher(
    store: Store, service: Service, at_once: int, ended: Callable[[EndedRun], None], place: int = 0
) -> Dispatcher:
    """The dispatcher of one process, which is told of the runs that it ends."""
    return Dispatcher(
        store,
        {service.effect_type: service},
        worker_id=f"{WORKER} {place}",
        clock=SystemClock(),
        new_id=new_id,
        bell=Bell(),
        concurrency=at_once,
        ended=ended,
    )


async def dispatch(store: Store, runs: int, service: Service, at_once: int = CONCURRENCY) -> float:
    """Seconds until every effect of so many runs is recorded as done, which ends the runs."""
    left = runs
    finished = asyncio.Event()

    def ended(run: EndedRun) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            finished.set()

    dispatcher = new_dispatcher(store, service, at_once, ended)
    began = perf_counter()
    running = asyncio.create_task(dispatcher.run())
    try:
        await finished.wait()
        return perf_counter() - began
    finally:
        await dispatcher.drain()
        await running
        if service.outer is not None:
            await service.outer.aclose()
