"""Effects per second from the outbox to their outcome, beside the same rows claimed and finished bare.

Runs of five effects each have asked for all of them; then dispatchers start, in one process or in two,
rounds alternating, and the style with the better median counts. The clock stops when the last outcome is
recorded, which ends the last run. The executor does nothing, so what is measured is claiming, deciding and
recording. The bare side claims and finishes the same entries on a copy of the
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
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol

import msgspec

from benchmarks.companion import ROOT
from benchmarks.effects import Ping, RecordingStore, dispatch, request
from benchmarks.measure import Spread, scaled, scratch_folder, undisturbed
from benchmarks.outbox_runs import open_dispatchers, take_out
from benchmarks.outbox_sqlite import SqliteGround
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from benchmarks.team import PROCESSES, Style, Team
from runstone.core.commit import Commit
from runstone.core.effect_specs import ApiCall, EffectSpec
from runstone.outbox.dispatcher import PER_HOST
from runstone.outbox.executors.http import HttpConfig, HttpExecutor, body_of
from runstone.outbox.executors.wire import new_client
from runstone.outbox.services import Service

RUNS: Final = 600
HTTP_RUNS: Final = 300
EFFECTS: Final = 5
STYLES: Final = tuple(map(Style, PROCESSES))
ROUNDS: Final = 5
QUICK_ROUNDS: Final = 2
"""In each style."""
AT_ONCE: Final = PER_HOST
"""How many calls over HTTP are under way at once, on either side."""
QUICK_SCALE: Final = 0.5
TARGETS: Final = {"limit": at_least(0.5), "http": at_least(0.5)}
TITLES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL", "http": "SQLite, over HTTP"}


class Ground(Protocol):
    """A store for one round, and a copy of it for the bare side."""

    @property
    def place(self) -> str: ...
    async def open(self) -> RecordingStore: ...
    def copy(self) -> None: ...
    def finish_again(
        self, commits: Sequence[Commit], claims: Sequence[int], effect_type: str, writers: int
    ) -> float: ...
    def clear(self) -> None: ...


class Round(msgspec.Struct, frozen=True):
    """Effects per second of one turn of each."""

    outbox: float
    bare: float
    style: Style = STYLES[0]


class Level(msgspec.Struct, frozen=True):
    """The rounds of one kind, in the style with the better median."""

    style: Style
    outbox: Spread
    bare: Spread
    share: Spread

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Level:
        by_style = {
            style: Spread.of(rates)
            for style in STYLES
            if (rates := [each.outbox for each in rounds if each.style == style])
        }
        best = max(by_style, key=lambda style: by_style[style].middle)
        counted = [each for each in rounds if each.style == best]
        return cls(
            best,
            by_style[best],
            Spread.of([each.bare for each in counted]),
            Spread.of([each.outbox / each.bare for each in counted]),
        )


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    rounds = range(QUICK_ROUNDS if quick else ROUNDS)
    scale *= QUICK_SCALE if quick else 1
    runs, http_runs = scaled(RUNS, scale, 2), scaled(HTTP_RUNS, scale, 2)
    levels: dict[str, Level] = {}
    notes: list[str] = []
    with scratch_folder() as folder, open_dispatchers(folder) as team:
        for name, grounds in {"sqlite": _sqlite(folder), "postgres": _postgres(progress, notes)}.items():
            taken = []
            with grounds as make:
                for number, style in product(rounds, STYLES) if make else ():
                    assert make is not None
                    progress(f"{TITLES[name]}, {style.title}, round {number + 1}")
                    taken.append(take_round(make(), team, folder, style, runs))
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


def take_round(ground: Ground, team: Team, folder: Path, style: Style, runs: int) -> Round:
    """The dispatchers, and the bare side with the same entries."""
    try:
        asyncio.run(ask(ground, runs, lambda number: Ping(number=number)))
        ground.copy()
        taken = take_out(team, ground.place, folder, style, runs)
        bare = ground.finish_again(taken.commits, taken.claims, Ping.EFFECT_TYPE, style.processes)
        return Round(EFFECTS * runs / taken.seconds, EFFECTS * runs / bare, style)
    finally:
        ground.clear()


async def ask(ground: Ground, runs: int, make: Callable[[int], EffectSpec]) -> None:
    """So many runs ask for their effects."""
    store = await ground.open()
    try:
        await request(store, runs, EFFECTS, make)
    finally:
        await store.close()


def take_http_round(ground: Ground, url: str, runs: int) -> Round:
    """The dispatcher with its HTTP executor, and the same requests by the same client alone."""
    try:
        asyncio.run(ask(ground, runs, lambda number: order(url, number)))
        with undisturbed():
            seconds = asyncio.run(_take_out_by_http(ground, runs))
        with undisturbed():
            alone = asyncio.run(call_alone(url, EFFECTS * runs))
        return Round(EFFECTS * runs / seconds, EFFECTS * runs / alone)
    finally:
        ground.clear()


async def _take_out_by_http(ground: Ground, runs: int) -> float:
    store = await ground.open()
    try:
        return await dispatch(store, runs, Service(spec=ApiCall, executor=HttpExecutor()), AT_ONCE)
    finally:
        await store.close()


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
        f"{level.outbox.middle:,.0f}/s in {level.style.title}",
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
