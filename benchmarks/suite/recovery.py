"""Ten thousand runs in flight, and kill -9 of every worker: how long until all are claimed again and done.

Two workers, each a process of its own, hold the runs in their second step. Both are killed at once and two
others are started. Nobody tells them: a run can be claimed when the lease of its dead worker has passed, so
that is the least it takes. Then a run is claimed, loaded, its first step replayed and its second done again.
At last every run has completed, and no step was recorded twice.

There is no target. `recovery` is the time from the kill to the last result, in leases.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

import msgspec

from benchmarks.companion import Companion
from benchmarks.measure import scaled, scratch_folder
from benchmarks.plots import Plot
from benchmarks.postgres import Ground, fetch, on_postgres
from benchmarks.recovery_worker import two_steps
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report
from runstone.engine.worker import LEASE
from runstone.stores.postgres import PostgresStore

NAME: Final = "recovery"
RUNS: Final = 10_000
QUICK_RUNS: Final = 1_500
WORKERS: Final = 2
AT_ONCE: Final = 64
"""How many runs are being started at once."""

QUICK_LEASE: Final = timedelta(seconds=5)
SHORTEST_LEASE: Final = timedelta(seconds=2)
EVERY: Final = 0.05
MOST_SECONDS: Final = 600.0
_LEFT: Final = "SELECT count(*) FILTER (WHERE owner = ANY($1::text[])), count(*) FROM runstone.run_queue"
_HELD: Final = "SELECT count(*) FROM runstone.steps WHERE status = 'RUNNING'"
_RECORDED: Final = (
    "SELECT (SELECT count(*) FROM runstone.runs WHERE status = 'COMPLETED'), "
    "(SELECT count(*) FROM runstone.steps WHERE status = 'COMPLETED'), "
    "(SELECT count(*) FROM runstone.orchestration_events WHERE event_type = 'STEP_COMPLETED')"
)


class NotRecovered(Exception):
    """Not every run came back, or something was recorded twice."""


class Moment(msgspec.Struct, frozen=True):
    """What was left so many seconds after the kill."""

    seconds: float
    unclaimed: int
    undone: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    runs: int
    lease: timedelta
    moments: Sequence[Moment]

    @property
    def claimed(self) -> float:
        """Seconds until the last run was claimed again."""
        return next(moment.seconds for moment in self.moments if not moment.unclaimed)

    @property
    def first(self) -> float:
        return next(moment.seconds for moment in self.moments if moment.unclaimed < self.runs)

    @property
    def done(self) -> float:
        return self.moments[-1].seconds


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
    runs = scaled(QUICK_RUNS if quick else RUNS, scale, 4)
    lease = QUICK_LEASE if quick else LEASE
    with scratch_folder() as folder:
        found = recover(ground, folder, progress, runs, max(SHORTEST_LEASE, lease * min(1.0, scale)))
    return _report(found, ground)


def recover(ground: Ground, folder: Path, progress: Progress, runs: int, lease: timedelta) -> Found:
    url = ground.database("recovery")
    share = -(-runs // WORKERS)
    with workers(url, folder / "first", "hold", share, lease) as first:
        progress(f"starting {runs:,} runs")
        asyncio.run(start(url, runs))
        _wait_until_held(url, runs)
        owners = [row[0] for row in fetch(url, "SELECT DISTINCT owner FROM runstone.run_queue")]
        progress(f"kill -9 of {len(owners)} workers")
        began = perf_counter()
        for worker in first:
            worker.kill()
    with workers(url, folder / "second", "work", share, lease):
        moments = list(_watch(url, owners, began))
    check(url, runs)
    return Found(runs=runs, lease=lease, moments=moments)


@contextmanager
def workers(
    url: str, folder: Path, does: str, concurrency: int, lease: timedelta
) -> Iterator[Sequence[Companion]]:
    """Worker processes for as long as this is open, all of them begun before the first is asked anything."""
    command = [sys.executable, "-m", "benchmarks.recovery_worker", url, does, str(concurrency)]
    with ExitStack() as stack:
        started = []
        for number in range(WORKERS):
            own = folder / str(number)
            own.mkdir(parents=True)
            started.append(stack.enter_context(Companion([*command, str(lease.total_seconds())], own)))
        yield started


async def start(url: str, runs: int) -> None:
    """Starts runs for others to work on."""
    playable = two_steps(hold=True)
    numbers = iter(range(runs))

    async def client() -> None:
        for number in numbers:
            await playable.app.start(playable.handler, number)

    async with await PostgresStore.open(url) as store, playable.app.running(store, worker=False):
        await asyncio.gather(*(client() for _ in range(AT_ONCE)))


def _wait_until_held(url: str, runs: int) -> None:
    """Until every run is in its second step, and the log says so."""
    deadline = perf_counter() + MOST_SECONDS
    held = -1
    while held != runs:
        if perf_counter() > deadline:
            raise NotRecovered(f"only {held} of {runs} runs came to be in flight")
        sleep(EVERY)
        ((held,),) = fetch(url, _HELD)


def _watch(url: str, owners: Sequence[str], began: float) -> Iterator[Moment]:
    """What is left, again and again until nothing is."""
    while True:
        ((unclaimed, undone),) = fetch(url, _LEFT, owners)
        seconds = perf_counter() - began
        yield Moment(seconds, unclaimed, undone)
        if not undone:
            return
        if seconds > MOST_SECONDS:
            raise NotRecovered(f"{undone} runs are not done after {MOST_SECONDS:.0f} s")
        sleep(EVERY)


def check(url: str, runs: int) -> None:
    """`NotRecovered` unless every run completed and each of its steps was recorded once."""
    (found,) = fetch(url, _RECORDED)
    if tuple(found) != (runs, 2 * runs, 2 * runs):
        raise NotRecovered(f"{tuple(found)} runs, steps and ends of steps; {runs} runs were started")


def _report(found: Found, ground: Ground) -> Report:
    lease = found.lease.total_seconds()
    return Report(
        name=NAME,
        columns=("after kill -9", "found"),
        rows=(
            ("runs in flight", f"{found.runs:,}"),
            ("the lease of a worker", f"{lease:.1f} s"),
            ("until the first was claimed again", f"{found.first:.1f} s"),
            ("until all were", f"{found.claimed:.1f} s"),
            ("until all were done", f"{found.done:.1f} s"),
        ),
        ratios={"recovery": found.done / lease},
        targets={},
        figures={
            "runs": float(found.runs),
            "lease_seconds": lease,
            "first_claimed_seconds": found.first,
            "all_claimed_seconds": found.claimed,
            "all_done_seconds": found.done,
        },
        plots=(_plot(found),),
        notes=(ground.note, "a lease has between two thirds of it and all of it left when its worker dies"),
    )


def _plot(found: Found) -> Plot:
    marks = [found.done * number / 12 for number in range(13)]
    seen = [
        max(
            (each for each in found.moments if each.seconds <= mark),
            default=found.moments[0],
            key=lambda each: each.seconds,
        )
        for mark in marks
    ]
    return Plot(
        name=NAME,
        title=f"{found.runs:,} runs after kill -9 of every worker, PostgreSQL",
        kind="lines",
        x_label="seconds after the kill",
        y_label="runs",
        places=tuple(f"{mark:.0f}" for mark in marks),
        series={
            "not claimed again": tuple(float(each.unclaimed) for each in seen),
            "not done": tuple(float(each.undone) for each in seen),
        },
    )


BENCHMARK: Final = Benchmark(
    NAME, "how long after kill -9 of all workers until their runs are done", on_postgres(NAME, measured)
)
