"""Durable commits per second of the SQLite store, beside its rows written by bare `sqlite3`.

Runs of five steps, eight commits each, so many at once, each waiting for a commit before it submits
the next. Everything is decided beforehand: the pure core is on neither side. The bare writer takes
its turn after the store, on the same disk, with the same commits in the order in which the store
wrote them, in as many transactions as the store took. Both files have to hold the same rows then.

There are two bare writers. `limit@…` is the share of the first, which uses `executemany`, as most
programs do; `multirow@…` that of the second, which puts up to 64 rows in a statement, as the store does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from benchmarks import bare_sqlite
from benchmarks.measure import Spread, scaled, scratch_folder, undisturbed
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from benchmarks.workloads import five_step_run
from runstone.core.commit import Commit
from runstone.stores.sqlite import SqliteStore
from runstone.stores.sqlite.rows import SIZES

RUNS: Final = {1: 60, 16: 320, 64: 640, 256: 1024}
"""How many runs are written in one round, by how many are under way at once."""

ROUNDS: Final = 9
QUICK_ROUNDS: Final = 3
QUICK_SCALE: Final = 0.5
STEPS: Final = 5
TARGETS: Final = {"limit@64": at_least(0.6), "limit@256": at_least(0.6)}


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The store's turn and the bare writers'."""

    runs: int
    commits: int
    transactions: int
    store_seconds: float
    bare_seconds: float
    multirow_seconds: float


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds at one concurrency."""

    store: Spread
    bare: Spread
    multirow: Spread
    """Commits per second."""
    limit: Spread
    multirow_limit: Spread
    """The store's share of each, in the same round."""
    batch: float
    steps: float


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    scale *= QUICK_SCALE if quick else 1
    runs = {at_once: scaled(count, scale, 2) for at_once, count in RUNS.items()}
    progress(f"deciding {max(runs.values())} runs")
    histories = [five_step_run() for _ in range(max(runs.values()))]
    levels: dict[int, Level] = {}
    with scratch_folder() as folder:
        for at_once, count in runs.items():
            rounds = []
            for number in range(QUICK_ROUNDS if quick else ROUNDS):
                progress(f"{at_once} at once, round {number + 1}")
                rounds.append(take_round(folder, histories[:count], at_once))
            levels[at_once] = _level(rounds)
    return _report(levels)


def take_round(folder: Path, histories: Sequence[Sequence[Commit]], at_once: int) -> Round:
    """Writes the histories with the store, then with the bare writers, and compares."""
    path = folder / "store.db"
    try:
        with undisturbed():
            store_seconds = asyncio.run(write_with_store(path, histories, at_once))
        transactions = bare_sqlite.count_transactions(path)
        commits = bare_sqlite.in_order(path, chain.from_iterable(histories))
        return Round(
            runs=len(histories),
            commits=len(commits),
            transactions=transactions,
            store_seconds=store_seconds,
            bare_seconds=sum(bare_sqlite.write_again(path, commits, transactions)),
            multirow_seconds=sum(bare_sqlite.write_again(path, commits, transactions, SIZES[-1])),
        )
    finally:
        for left in folder.glob("*.db*"):
            left.unlink()


async def write_with_store(path: Path, histories: Sequence[Sequence[Commit]], at_once: int) -> float:
    """Seconds until the last commit is durable."""
    waiting = iter(histories)

    async def client() -> None:
        for history in waiting:
            for commit in history:
                await store.commit(commit)

    async with await SqliteStore.open(path) as store:
        began = perf_counter()
        await asyncio.gather(*(client() for _ in range(at_once)))
        return perf_counter() - began


def _level(rounds: Sequence[Round]) -> Level:
    return Level(
        store=Spread.of([each.commits / each.store_seconds for each in rounds]),
        bare=Spread.of([each.commits / each.bare_seconds for each in rounds]),
        multirow=Spread.of([each.commits / each.multirow_seconds for each in rounds]),
        limit=Spread.of([each.bare_seconds / each.store_seconds for each in rounds]),
        multirow_limit=Spread.of([each.multirow_seconds / each.store_seconds for each in rounds]),
        batch=Spread.of([each.commits / each.transactions for each in rounds]).middle,
        steps=Spread.of([STEPS * each.runs / each.store_seconds for each in rounds]).middle,
    )


def _report(levels: Mapping[int, Level]) -> Report:
    limits = {f"limit@{at_once}": level.limit.middle for at_once, level in levels.items()}
    multirow = {f"multirow@{at_once}": level.multirow_limit.middle for at_once, level in levels.items()}
    return Report(
        name=BENCHMARK.name,
        columns=("runs at once", "store", "bare", "multirow", "commits a transaction", "limit", "of rounds"),
        rows=tuple(_row(at_once, level) for at_once, level in levels.items()),
        ratios=limits | multirow,
        targets=TARGETS,
        figures=_figures(levels),
        plots=(_plot(levels),),
    )


def _row(at_once: int, level: Level) -> tuple[str, ...]:
    return (
        str(at_once),
        f"{level.store.middle:,.0f}/s",
        f"{level.bare.middle:,.0f}/s",
        f"{level.multirow.middle:,.0f}/s",
        f"{level.batch:.1f}",
        f"{level.limit.middle:.0%}",
        f"{level.limit.lowest:.0%} to {level.limit.highest:.0%}",
    )


def _figures(levels: Mapping[int, Level]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for at_once, level in levels.items():
        figures[f"store_commits_per_second@{at_once}"] = level.store.middle
        figures[f"store_steps_per_second@{at_once}"] = level.steps
        figures[f"bare_commits_per_second@{at_once}"] = level.bare.middle
        figures[f"multirow_commits_per_second@{at_once}"] = level.multirow.middle
        figures[f"commits_per_transaction@{at_once}"] = level.batch
    return figures


def _plot(levels: Mapping[int, Level]) -> Plot:
    return Plot(
        name="append-sqlite",
        title="Durable commits to SQLite, synchronous=FULL",
        kind="bars",
        x_label="runs at once",
        y_label="commits per second",
        places=tuple(str(at_once) for at_once in levels),
        series={
            "the store": tuple(level.store.middle for level in levels.values()),
            "bare, executemany": tuple(level.bare.middle for level in levels.values()),
            "bare, 64 rows a statement": tuple(level.multirow.middle for level in levels.values()),
        },
    )


BENCHMARK: Final = Benchmark(
    "append-sqlite", "durable commits of five-step runs to SQLite, beside the same rows by bare sqlite3", run
)
