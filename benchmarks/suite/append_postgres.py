"""Durable commits per second of the PostgreSQL store, beside its rows written by bare asyncpg.

Runs of five steps, eight commits each, so many at once, each waiting for a commit before it submits
the next. Everything is decided beforehand: the pure core is on neither side. The bare writer takes
its turn after the store, on the same server, in a database of the same schema, with the transactions
that the store made. Both have to hold the same rows then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import Final

import msgspec

from benchmarks import bare_postgres
from benchmarks.measure import Spread, rounds_of, scaled, undisturbed
from benchmarks.plots import Plot
from benchmarks.postgres import Ground, on_postgres
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from benchmarks.workloads import five_step_run
from runstone.core.commit import Commit
from runstone.stores.postgres import PostgresStore

NAME: Final = "append-postgres"
RUNS: Final = {1: 60, 16: 320, 64: 640, 256: 1024}
"""How many runs are written in one round, by how many are under way at once."""

ROUNDS: Final = 9
QUICK_ROUNDS: Final = 3
QUICK_SCALE: Final = 0.5
TARGETS: Final = {"limit@64": at_least(0.6), "limit@256": at_least(0.6)}


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The store's turn and the bare writer's."""

    commits: int
    transactions: int
    store_seconds: float
    bare_seconds: float


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds at one concurrency."""

    store: Spread
    bare: Spread
    """Commits per second."""
    limit: Spread
    """The store's share, in the same round."""
    batch: float


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
    numbers = rounds_of(QUICK_ROUNDS if quick else ROUNDS, scale)
    scale *= QUICK_SCALE if quick else 1
    runs = {at_once: scaled(count, scale, 2) for at_once, count in RUNS.items()}
    needed = max(count + warm_up(at_once, count) for at_once, count in runs.items())
    progress(f"deciding {needed} runs")
    histories = [five_step_run() for _ in range(needed)]
    levels: dict[int, Level] = {}
    for at_once, count in runs.items():
        rounds = []
        for number in numbers:
            progress(f"{at_once} at once, round {number + 1}")
            warm = warm_up(at_once, count)
            rounds.append(take_round(ground, histories[: warm + count], at_once, warm))
        levels[at_once] = _level(rounds)
    return _report(levels, ground)


def warm_up(at_once: int, runs: int) -> int:
    """How many runs go before those that count: connections are opened and statements prepared by them."""
    return max(2, min(at_once, runs))


def take_round(ground: Ground, histories: Sequence[Sequence[Commit]], at_once: int, warm: int) -> Round:
    """Writes the histories with the store, then with the bare writer, and compares."""
    store, bare = ground.database("store"), ground.database("bare")
    return asyncio.run(_take_round(store, bare, histories, at_once, warm))


async def _take_round(
    store: str, bare: str, histories: Sequence[Sequence[Commit]], at_once: int, warm: int
) -> Round:
    seconds = await write_with_store(store, histories, at_once, warm)
    before, counted = list(chain(*histories[:warm])), list(chain(*histories[warm:]))
    taken = await bare_postgres.write_again(store, bare, counted, before)
    return Round(
        commits=len(counted),
        transactions=len(taken.each),
        store_seconds=seconds,
        bare_seconds=taken.seconds,
    )


async def write_with_store(
    url: str, histories: Sequence[Sequence[Commit]], at_once: int, warm: int = 0
) -> float:
    """Seconds until the last commit is durable, without the first so many histories."""

    async def write(part: Sequence[Sequence[Commit]]) -> float:
        waiting = iter(part)

        async def client() -> None:
            for history in waiting:
                for commit in history:
                    await store.commit(commit)

        began = perf_counter()
        await asyncio.gather(*(client() for _ in range(at_once)))
        return perf_counter() - began

    async with await PostgresStore.open(url) as store:
        await write(histories[:warm])
        with undisturbed():
            return await write(histories[warm:])


def _level(rounds: Sequence[Round]) -> Level:
    return Level(
        store=Spread.of([each.commits / each.store_seconds for each in rounds]),
        bare=Spread.of([each.commits / each.bare_seconds for each in rounds]),
        limit=Spread.of([each.bare_seconds / each.store_seconds for each in rounds]),
        batch=Spread.of([each.commits / each.transactions for each in rounds]).middle,
    )


def _report(levels: Mapping[int, Level], ground: Ground) -> Report:
    return Report(
        name=NAME,
        columns=("runs at once", "store", "bare", "commits a transaction", "limit", "of rounds"),
        rows=tuple(_row(at_once, level) for at_once, level in levels.items()),
        ratios={f"limit@{at_once}": level.limit.middle for at_once, level in levels.items()},
        targets=TARGETS,
        figures=_figures(levels),
        plots=(_plot(levels),),
        notes=(ground.note,),
    )


def _row(at_once: int, level: Level) -> tuple[str, ...]:
    return (
        str(at_once),
        f"{level.store.middle:,.0f}/s",
        f"{level.bare.middle:,.0f}/s",
        f"{level.batch:.1f}",
        f"{level.limit.middle:.0%}",
        f"{level.limit.lowest:.0%} to {level.limit.highest:.0%}",
    )


def _figures(levels: Mapping[int, Level]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for at_once, level in levels.items():
        figures[f"store_commits_per_second@{at_once}"] = level.store.middle
        figures[f"bare_commits_per_second@{at_once}"] = level.bare.middle
        figures[f"commits_per_transaction@{at_once}"] = level.batch
    return figures


def _plot(levels: Mapping[int, Level]) -> Plot:
    return Plot(
        name=NAME,
        title="Durable commits to PostgreSQL",
        kind="bars",
        x_label="runs at once",
        y_label="commits per second",
        places=tuple(str(at_once) for at_once in levels),
        series={
            "the store": tuple(level.store.middle for level in levels.values()),
            "bare asyncpg": tuple(level.bare.middle for level in levels.values()),
        },
    )


BENCHMARK: Final = Benchmark(
    NAME,
    "durable commits of five-step runs to PostgreSQL, beside the same rows by bare asyncpg",
    on_postgres(NAME, measured),
)
