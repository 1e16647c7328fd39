"""Durable commits per second to a log of ten million events, over the same to an empty log.

Both are databases on one server, with the same schema. In every round the same runs of five steps, decided
beforehand, are written to a new database and to the one that has grown, in turns; both have to hold
every event then. `RUNSTONE_BENCH_EVENTS` says how large the log is to be.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter
from typing import Final

import msgspec

from benchmarks import grown
from benchmarks.measure import Spread, rounds_of, scaled
from benchmarks.plots import Plot
from benchmarks.postgres import Ground, fetch, on_postgres
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from benchmarks.suite.append_postgres import write_with_store
from benchmarks.workloads import five_step_run
from runstone.core.commit import Commit

NAME: Final = "append-grown"
VARIABLE: Final = "RUNSTONE_BENCH_EVENTS"
EVENTS: Final = 10_000_000
QUICK_EVENTS: Final = 500_000
RUNS: Final = 1_000
"""How many runs are written to each in one round."""

AT_ONCE: Final = 64
ROUNDS: Final = 9
QUICK_ROUNDS: Final = 4
QUICK_SCALE: Final = 0.5
TARGETS: Final = {"grown": at_least(0.9)}


class Incomplete(Exception):
    """Not every event that was committed is in the log."""


class Round(msgspec.Struct, frozen=True):
    """Commits per second to each."""

    empty: float
    grown: float


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
    wanted = int(os.environ.get(VARIABLE, 0)) or scaled(QUICK_EVENTS if quick else EVENTS, scale, 100)
    large = ground.database("grown")
    began = perf_counter()
    events = asyncio.run(grown.grow(large, wanted, told=_by_tenths(wanted, progress)))
    asyncio.run(grown.settle(large))
    progress(f"a log of {events:,} events was made in {perf_counter() - began:.0f} s")
    runs = scaled(RUNS, scale * (QUICK_SCALE if quick else 1), 2)
    rounds = []
    for number in rounds_of(QUICK_ROUNDS if quick else ROUNDS, scale):
        progress(f"round {number + 1}")
        rounds.append(take_round(ground, large, runs, grown_first=bool(number % 2)))
    return _report(rounds, events, ground)


def _by_tenths(wanted: int, progress: Progress) -> Callable[[int], None]:
    """Tells of each tenth of the log once."""
    left = list(range(1, 11))

    def told(events: int) -> None:
        while left and events >= wanted * left[0] / 10:
            progress(f"{wanted * left.pop(0) // 10:,} events")

    return told


def take_round(ground: Ground, large: str, runs: int, *, grown_first: bool) -> Round:
    """The same runs to a new database and to the one that has grown."""
    warm = min(AT_ONCE, runs)
    histories = [five_step_run() for _ in range(warm + runs)]
    urls = {"empty": ground.database("empty"), "grown": large}
    rates = {}
    for name in sorted(urls, reverse=grown_first):
        seconds = asyncio.run(write_with_store(urls[name], histories, AT_ONCE, warm))
        rates[name] = sum(map(len, histories[warm:])) / seconds
        check(urls[name], histories)
    return Round(**rates)


def check(url: str, histories: Sequence[Sequence[Commit]]) -> None:
    """`Incomplete` unless every event is there."""
    ids = [event.id for commit in chain(*histories) for event in commit.events]
    ((found,),) = fetch(
        url, "SELECT count(*) FROM runstone.orchestration_events WHERE id = ANY($1::uuid[])", ids
    )
    if found != len(ids):
        raise Incomplete(f"{found} of {len(ids)} events")


def _report(rounds: Sequence[Round], events: int, ground: Ground) -> Report:
    empty = Spread.of([each.empty for each in rounds])
    large = Spread.of([each.grown for each in rounds])
    ratio = Spread.of([each.grown / each.empty for each in rounds])
    return Report(
        name=NAME,
        columns=("events in the log", "commits", "of rounds"),
        rows=(
            ("none", f"{empty.middle:,.0f}/s", f"{empty.lowest:,.0f} to {empty.highest:,.0f}"),
            (f"{events:,}", f"{large.middle:,.0f}/s", f"{large.lowest:,.0f} to {large.highest:,.0f}"),
            ("ratio", f"{ratio.middle:.2f}", f"{ratio.lowest:.2f} to {ratio.highest:.2f}"),
        ),
        ratios={"grown": ratio.middle},
        targets=TARGETS,
        figures={
            "events": float(events),
            "empty_commits_per_second": empty.middle,
            "grown_commits_per_second": large.middle,
        },
        plots=(_plot(rounds, events),),
        notes=(ground.note, f"{AT_ONCE} runs at once; {VARIABLE} sets the size of the log"),
    )


def _plot(rounds: Sequence[Round], events: int) -> Plot:
    return Plot(
        name=NAME,
        title="Durable commits to an empty log and to a grown one, PostgreSQL",
        kind="bars",
        x_label="round",
        y_label="commits per second",
        places=tuple(str(number) for number, _ in enumerate(rounds, 1)),
        series={
            "an empty log": tuple(each.empty for each in rounds),
            f"{events / 1e6:.1f} million events": tuple(each.grown for each in rounds),
        },
    )


BENCHMARK: Final = Benchmark(
    NAME,
    "durable commits to a log of ten million events, beside the same to an empty one",
    on_postgres(NAME, measured),
)
