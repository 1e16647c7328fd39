"""What one step costs a run that is alone, over one bare durable commit of the same rows.

Inside the handler, a step takes from the call to its durable result: arguments packed, the
specialist called, the step decided, committed and told. The bare side binds the same values
beforehand and commits them with `sqlite3`, one transaction a commit, on the same disk, turn by turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import msgspec

from benchmarks import bare_sqlite
from benchmarks.apps import STEPS, RememberingStore, five_steps
from benchmarks.measure import Spread, scaled, scratch_folder, undisturbed
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_most
from runstone.core.commit import Commit

RUNS: Final = 60
"""Runs in one round, one after another; two more go before them and are not counted."""

WARM_UP: Final = 2
ROUNDS: Final = 15
QUICK_ROUNDS: Final = 5
MICROS: Final = 1e6
TARGETS: Final = {"bare": at_most(3.0)}


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each step, and of each bare commit of a step."""

    steps: Sequence[float]
    commits: Sequence[float]


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    rounds = []
    with scratch_folder() as folder:
        for number in range(QUICK_ROUNDS if quick else ROUNDS):
            progress(f"round {number + 1}")
            rounds.append(take_round(folder, scaled(RUNS, scale, 2)))
    return _report(rounds)


def take_round(folder: Path, runs: int) -> Round:
    """The engine, then the bare writer with the same commits."""
    path = folder / "store.db"
    try:
        with undisturbed():
            steps, commits = asyncio.run(run_alone(path, WARM_UP + runs))
        ordered = bare_sqlite.in_order(path, commits)
        seconds = bare_sqlite.write_again(path, ordered, len(ordered))
        ends_step = [any(event.event_type == "STEP_COMPLETED" for event in each.events) for each in ordered]
        bare = [each for each, wanted in zip(seconds, ends_step, strict=True) if wanted]
        skipped = WARM_UP * STEPS
        return Round(steps=steps[skipped:], commits=bare[skipped:])
    finally:
        for left in folder.glob("*.db*"):
            left.unlink()


async def run_alone(path: Path, runs: int) -> tuple[list[float], Sequence[Commit]]:
    """Seconds of each step of runs that follow each other, and all their commits."""
    laps: list[float] = []
    playable = five_steps(laps.append)
    store = await RememberingStore.open(path)
    assert isinstance(store, RememberingStore)
    async with store, playable.app.running(store):
        for question in range(runs):
            handle = await playable.app.start(playable.handler, question)
            assert await handle.result() == "done"
    return laps, store.commits


def _report(rounds: Sequence[Round]) -> Report:
    ratio = Spread.of([median(each.steps) / median(each.commits) for each in rounds])
    steps = [seconds * MICROS for each in rounds for seconds in each.steps]
    commits = [seconds * MICROS for each in rounds for seconds in each.commits]
    return Report(
        name=BENCHMARK.name,
        columns=("what", "median", "9 of 10 within"),
        rows=(
            ("one step of a run alone", f"{median(steps):,.0f} µs", f"{_most(steps):,.0f} µs"),
            ("its rows in a bare commit", f"{median(commits):,.0f} µs", f"{_most(commits):,.0f} µs"),
            ("ratio, by rounds", f"{ratio.middle:.2f}", f"{ratio.lowest:.2f} to {ratio.highest:.2f}"),
        ),
        ratios={"bare": ratio.middle},
        targets=TARGETS,
        figures={
            "step_micros": median(steps),
            "step_micros_p90": _most(steps),
            "bare_commit_micros": median(commits),
            "bare_commit_micros_p90": _most(commits),
        },
        plots=(_plot(steps, commits),),
    )


def _most(values: Sequence[float]) -> float:
    """What nine of ten do not pass."""
    return quantiles(values, n=10)[-1]


def _plot(steps: Sequence[float], commits: Sequence[float]) -> Plot:
    return Plot(
        name="latency",
        title="One step of a run alone, SQLite, synchronous=FULL",
        kind="bars",
        x_label="of all steps",
        y_label="microseconds",
        places=("median", "9 of 10 within"),
        series={
            "one step": (median(steps), _most(steps)),
            "its rows in a bare commit": (median(commits), _most(commits)),
        },
    )


BENCHMARK: Final = Benchmark(
    "latency", "one step of a run alone, beside one bare durable commit of the same rows", run
)
