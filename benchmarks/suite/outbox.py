"""Effects per second from the outbox to their outcome, beside the same rows claimed and finished bare.

Runs of five effects each have asked for all of them; then one dispatcher starts. The clock stops when
the last outcome is recorded, which ends the last run. The executor does nothing, so what is measured is
claiming, deciding and recording. The bare side claims and finishes the same entries on a copy of the
same store, with every value bound beforehand; both have to hold the same rows then. `limit@…` is the
dispatcher's share of it on each store, `limit` the lower one.

`http` is the same with calls of a server in another process, beside the executor's own HTTP client
alone, with the same requests, as many at once as the dispatcher allows for one host.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol

import msgspec

from benchmarks.companion import ROOT
from benchmarks.effects import NoOp, Ping, RecordingStore, dispatch, request
from benchmarks.measure import Spread, scaled, scratch_folder, undisturbed
from benchmarks.outbox_sqlite import SqliteGround
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from runstone.core.commit import Commit
from runstone.core.effect_specs import ApiCall, EffectSpec
from runstone.outbox.dispatcher import CONCURRENCY, PER_HOST
from runstone.outbox.executors.http import HttpConfig, HttpExecutor, body_of
from runstone.outbox.executors.wire import new_client
from runstone.outbox.services import Service

RUNS: Final = 600
HTTP_RUNS: Final = 300
EFFECTS: Final = 5
ROUNDS: Final = 5
QUICK_ROUNDS: Final = 2
AT_ONCE: Final = PER_HOST
"""How many calls over HTTP are under way at once, on either side."""
QUICK_SCALE: Final = 0.5
TARGETS: Final = {"limit": at_least(0.5), "http": at_least(0.5)}
TITLES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL", "http": "SQLite, over HTTP"}


class Ground(Protocol):
    """A store for one round, and a copy of it for the bare side."""

    async def open(self) -> RecordingStore: ...
    def copy(self) -> None: ...
    def finish_again(self, commits: Sequence[Commit], claims: Sequence[int], effect_type: str) -> float: ...
    def clear(self) -> None: ...


class Round(msgspec.Struct, frozen=True):
    """Effects per second of one turn of each."""

    outbox: float
    bare: float


class Level(msgspec.Struct, frozen=True):
    """All rounds of one kind."""

    outbox: Spread
    bare: Spread
    share: Spread

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Level:
        return cls(
            Spread.of([each.outbox for each in rounds]),
            Spread.of([each.bare for each in rounds]),
            Spread.of([each.outbox / each.bare for each in rounds]),
        )


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    rounds = range(QUICK_ROUNDS if quick else ROUNDS)
    scale *= QUICK_SCALE if quick else 1
    runs, http_runs = scaled(RUNS, scale, 2), scaled(HTTP_RUNS, scale, 2)
    levels: dict[str, Level] = {}
    notes: list[str] = []
    with scratch_folder() as folder:
        for name, grounds in {"sqlite": _sqlite(folder), "postgres": _postgres(progress, notes)}.items():
            taken = []
            with grounds as make:
                for number in rounds if make else ():
                    assert make is not None
                    progress(f"{TITLES[name]}, round {number + 1}")
                    taken.append(take_round(make(), runs))
            if taken:
                levels[name] = Level.of(taken)
        taken = []
        with receiver() as url:
            for number in rounds:
                progress(f"over HTTP, round {number + 1}")
                taken.append(take_http_round(SqliteGround(folder), url, http_runs))
        levels["http"] = Level.of(taken)
    return _report(levels, notes)


@contextmanager
def _sqlite(folder: Path) -> Iterator[Callable[[], Ground] | None]:
    yield lambda: SqliteGround(folder)


@contextmanager
def _postgres(progress: Progress, notes: list[str]) -> Iterator[Callable[[], Ground] | None]:
    """A private server for as long as this is open, or a note why there is none."""
    try:
        from benchmarks.outbox_postgres import PostgresGround
        from tests.servers.postgres import Cluster, binaries
    except ModuleNotFoundError as missing:
        notes.append(f"PostgreSQL was not measured, for {missing.name} is not installed")
        yield None
        return
    found = binaries()
    if found is None:
        notes.append("PostgreSQL was not measured, for there is none here")
        yield None
        return
    progress("starting PostgreSQL")
    cluster = Cluster(found)
    try:
        cluster.start()
        yield lambda: PostgresGround(cluster)
    finally:
        cluster.remove()


@contextmanager
def receiver(received: Path | None = None) -> Iterator[str]:
    """The address of an HTTP server in a process of its own, which says yes to everything."""
    command = [sys.executable, "-m", "tests.servers.http_receiver", *([str(received)] if received else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def take_round(ground: Ground, runs: int) -> Round:
    """The dispatcher, and the bare side with the same entries."""
    try:
        service = Service(spec=Ping, executor=NoOp())
        seconds, store = _take(ground, runs, service, lambda number: Ping(number=number))
        bare = ground.finish_again(store.commits, store.claims, Ping.EFFECT_TYPE)
        return Round(EFFECTS * runs / seconds, EFFECTS * runs / bare)
    finally:
        ground.clear()


def take_http_round(ground: Ground, url: str, runs: int) -> Round:
    """The dispatcher with its HTTP executor, and the same requests by the same client alone."""
    try:
        service = Service(spec=ApiCall, executor=HttpExecutor())
        seconds, _ = _take(ground, runs, service, lambda number: order(url, number), AT_ONCE)
        with undisturbed():
            alone = asyncio.run(call_alone(url, EFFECTS * runs))
        return Round(EFFECTS * runs / seconds, EFFECTS * runs / alone)
    finally:
        ground.clear()


def _take(
    ground: Ground,
    runs: int,
    service: Service,
    make: Callable[[int], EffectSpec],
    at_once: int = CONCURRENCY,
) -> tuple[float, RecordingStore]:
    """Seconds that a dispatcher takes for what runs have asked for, and its store."""

    async def ask() -> None:
        store = await ground.open()
        try:
            await request(store, runs, EFFECTS, make)
        finally:
            await store.close()

    async def take_out() -> tuple[float, RecordingStore]:
        store = await ground.open()
        try:
            return await dispatch(store, runs, service, at_once), store
        finally:
            await store.close()

    asyncio.run(ask())
    ground.copy()
    with undisturbed():
        return asyncio.run(take_out())


def order(url: str, number: int) -> ApiCall:
    body = {"order": number, "text": "what has to be known to do it", "paid": "19.90"}
    return ApiCall(method="POST", url=f"{url}/orders", body=body)


async def call_alone(url: str, calls: int) -> float:
    """Seconds for so many requests, each with a key of its own."""
    waiting = iter(range(calls))
    config = HttpConfig()

    async def caller() -> None:
        for number in waiting:
            key = f"{number:064d}"
            headers = {"Idempotency-Key": key, "X-Idempotency-Key": key, "Content-Type": "application/json"}
            content = body_of(order(url, number))
            answer = await client.post(f"{url}/orders", content=content, headers=headers)
            assert answer.json() == {"ok": True}

    async with new_client(config) as client:
        began = perf_counter()
        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        return perf_counter() - began


def _report(levels: Mapping[str, Level], notes: Sequence[str]) -> Report:
    limits = {f"limit@{name}": level.share.middle for name, level in levels.items() if name != "http"}
    return Report(
        name=BENCHMARK.name,
        columns=("effects", "outbox", "bare", "share", "of rounds"),
        rows=tuple(_row(TITLES[name], level) for name, level in levels.items()),
        ratios={"limit": min(limits.values()), "http": levels["http"].share.middle} | limits,
        targets=TARGETS,
        figures=_figures(levels),
        plots=(_plot(levels),),
        notes=tuple(notes),
    )


def _row(title: str, level: Level) -> tuple[str, ...]:
    return (
        title,
        f"{level.outbox.middle:,.0f}/s",
        f"{level.bare.middle:,.0f}/s",
        f"{level.share.middle:.0%}",
        f"{level.share.lowest:.0%} to {level.share.highest:.0%}",
    )


def _figures(levels: Mapping[str, Level]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, level in levels.items():
        figures[f"effects_per_second@{name}"] = level.outbox.middle
        figures[f"bare_effects_per_second@{name}"] = level.bare.middle
    return figures


def _plot(levels: Mapping[str, Level]) -> Plot:
    return Plot(
        name="outbox",
        title="Effects through the outbox",
        kind="bars",
        x_label="store and executor",
        y_label="effects per second",
        places=tuple(TITLES[name] for name in levels),
        series={
            "the outbox": tuple(level.outbox.middle for level in levels.values()),
            "bare": tuple(level.bare.middle for level in levels.values()),
        },
    )


BENCHMARK: Final = Benchmark(
    "outbox",
    "effects from the outbox to their outcome, beside the same rows bare and the same calls alone",
    run,
)
