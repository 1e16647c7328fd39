"""What one commit costs when nothing else is going on, over a bare durable insert of the same rows.

Runs of five steps are written by one client, one commit after another, each waiting for the store's answer:
handed over, compared with the heads of its streams, written and made durable, told. The bare side sends the
same rows to the same server by asyncpg, bound beforehand, one prepared statement a commit. Only commits of
a step are counted: two events, a step's row, the run's row, the head of its stream.

`step` is the same for a step seen from its handler, through the whole engine. For information, `insert` is
one commit over a single event, inserted into the log and nowhere else: less work, so no limit of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from statistics import median, quantiles
from time import perf_counter
from typing import Final

import msgspec

from benchmarks import bare_postgres
from benchmarks.apps import STEPS, five_steps
from benchmarks.measure import Spread, rounds_of, scaled, undisturbed
from benchmarks.plots import Plot
from benchmarks.postgres import Ground, RememberingStore, on_postgres
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_most
from benchmarks.workloads import five_step_run
from runstone.core.commit import Commit
from runstone.stores.postgres import PostgresStore

NAME: Final = "commit-latency"
RUNS: Final = 60
"""Runs in one round, one after another; two more go before them and are not counted."""

WARM_UP: Final = 2
ROUNDS: Final = 15
QUICK_ROUNDS: Final = 5
MICROS: Final = 1e6
PLOTTED: Final = ("one commit alone", "its rows in a bare insert", "one step, through the engine")
TARGETS: Final = {"bare": at_most(3.0), "step": at_most(3.0)}


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each commit of a step, its rows bare, one event of it; of each step, and its rows bare."""

    commits: Sequence[float]
    bare: Sequence[float]
    insert: Sequence[float]
    steps: Sequence[float]
    bare_steps: Sequence[float]


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
    rounds = []
    for number in rounds_of(QUICK_ROUNDS if quick else ROUNDS, scale):
        progress(f"round {number + 1}")
        rounds.append(asyncio.run(take_round(ground, scaled(RUNS, scale, 2))))
    return _report(rounds, ground)


async def take_round(ground: Ground, runs: int) -> Round:
    """The store, and the bare writer with its commits; the engine, and the bare writer with its commits."""
    histories = [five_step_run() for _ in range(WARM_UP + runs)]
    store = ground.database("store")
    commits = await commit_alone(store, histories)
    warm, counted = list(chain(*histories[:WARM_UP])), list(chain(*histories[WARM_UP:]))
    bare = await bare_seconds(ground, store, counted, warm)
    events = [commit.events[-1] for commit in (*warm, *counted) if _ends_step(commit)]
    engine = ground.database("engine")
    steps, made = await run_alone(engine, WARM_UP + runs)
    first = len(made) * WARM_UP // (WARM_UP + runs)
    return Round(
        commits=commits,
        bare=bare,
        insert=await bare_postgres.insert_alone(ground.database("insert"), events, STEPS * WARM_UP),
        steps=steps[STEPS * WARM_UP :],
        bare_steps=await bare_seconds(ground, engine, made[first:], made[:first]),
    )


async def commit_alone(url: str, histories: Sequence[Sequence[Commit]]) -> list[float]:
    """Seconds of each commit that ends a step, one after another."""
    seconds = []
    async with await PostgresStore.open(url) as store:
        for commit in chain(*histories[:WARM_UP]):
            await store.commit(commit)
        with undisturbed():
            for commit in chain(*histories[WARM_UP:]):
                began = perf_counter()
                await store.commit(commit)
                seconds += [perf_counter() - began] if _ends_step(commit) else []
    return seconds


async def bare_seconds(
    ground: Ground, store: str, commits: Sequence[Commit], warm: Collection[Commit]
) -> list[float]:
    """Seconds of each of the same commits that ends a step, written bare."""
    taken = await bare_postgres.write_again(store, ground.database("bare"), commits, warm)
    return [
        seconds
        for seconds, batch in zip(taken.each, taken.batches, strict=True)
        if any(map(_ends_step, batch))
    ]


async def run_alone(url: str, runs: int) -> tuple[list[float], Sequence[Commit]]:
    """Seconds of each step of runs that follow each other, seen from the handler, and all their commits."""
    laps: list[float] = []
    playable = five_steps(laps.append)
    store = await RememberingStore.open(url)
    assert isinstance(store, RememberingStore)
    async with store, playable.app.running(store):
        for question in range(runs):
            handle = await playable.app.start(playable.handler, question)
            assert await handle.result() == "done"
    return laps, store.commits


def _ends_step(commit: Commit) -> bool:
    return any(event.event_type == "STEP_COMPLETED" for event in commit.events)


def _report(rounds: Sequence[Round], ground: Ground) -> Report:
    ratio = Spread.of([median(each.commits) / median(each.bare) for each in rounds])
    step = Spread.of([median(each.steps) / median(each.bare_steps) for each in rounds])
    insert = Spread.of([median(each.commits) / median(each.insert) for each in rounds])
    found = {
        "one commit alone": _micros([each.commits for each in rounds]),
        "its rows in a bare insert": _micros([each.bare for each in rounds]),
        "one event in a bare insert": _micros([each.insert for each in rounds]),
        "one step, through the engine": _micros([each.steps for each in rounds]),
        "the rows of a step, bare": _micros([each.bare_steps for each in rounds]),
    }
    return Report(
        name=NAME,
        columns=("what", "median", "9 of 10 within"),
        rows=(
            *((what, f"{median(each):,.0f} µs", f"{_most(each):,.0f} µs") for what, each in found.items()),
            ("ratio of rounds", f"{ratio.middle:.2f}", f"{ratio.lowest:.2f} to {ratio.highest:.2f}"),
            ("the same for a step", f"{step.middle:.2f}", f"{step.lowest:.2f} to {step.highest:.2f}"),
        ),
        ratios={"bare": ratio.middle, "step": step.middle, "insert": insert.middle},
        targets=TARGETS,
        figures=dict(
            zip(
                ("commit_micros", "bare_micros", "insert_micros", "step_micros", "bare_step_micros"),
                map(median, found.values()),
                strict=True,
            )
        ),
        plots=(_plot({what: each for what, each in found.items() if what in PLOTTED}),),
        notes=(ground.note,),
    )


def _micros(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [seconds * MICROS for each in rounds for seconds in each]


def _most(values: Sequence[float]) -> float:
    """What nine of ten do not pass."""
    return quantiles(values, n=10)[-1]


def _plot(found: Mapping[str, Sequence[float]]) -> Plot:
    return Plot(
        name=NAME,
        title="One commit alone, PostgreSQL",
        kind="bars",
        x_label="of all commits",
        y_label="microseconds",
        places=("median", "9 of 10 within"),
        series={what: (median(each), _most(each)) for what, each in found.items()},
    )


BENCHMARK: Final = Benchmark(
    NAME,
    "one commit to PostgreSQL alone, beside a bare durable insert of the same rows",
    on_postgres(NAME, measured),
)
