"""Events folded per second: how fast a history becomes a state again.

Ten runs of 10,000 events and one of 100,000 ask specialists, call tools, have effects carried out
and set variables. They are written to a store and read back, so every payload is decoded from the
bytes that were stored; reading and the hash chain are not part of the fold. A fold waits for nothing, so its
processor time is what is measured, whatever else the machine is doing. What `decide` costs on
states of several sizes is told as well, for information.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from statistics import fmean
from time import perf_counter, thread_time
from typing import Final

import msgspec

from benchmarks.measure import Spread, scaled
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least, at_most
from benchmarks.workloads import context, five_step_run, mixed_run, specialist_step
from runstone.core.decide import Case, decide
from runstone.core.events import Event
from runstone.core.fold import fold_run
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.state import RunState, SignalState
from runstone.stores.sqlite import SqliteStore

SHORT: Final = 10_000
TIMES: Final = 10
"""How many times as long the long history is, and how many short ones there are beside it: folding
one short history again and again would find it in the processor's cache."""

TO_REACH: Final = 200_000
"""Events per second on one core."""

ROUNDS: Final = 15
QUICK_ROUNDS: Final = 5
DECIDED_ON: Final = (10, 1_000, 10_000, 100_000)
"""How many events the runs have that a step is decided on."""

DECISIONS: Final = 200
TARGETS: Final = {"fold": at_least(1.0), "linear": at_most(1.1)}


class Folds(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated folds of two histories."""

    long_events: int
    short_events: int
    long: Spread
    short: Spread
    """Events per second."""
    linear: Spread


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    size = scaled(SHORT, scale, 20)
    progress(f"deciding and storing {TIMES} runs of {size:,} events")
    shorts = [asyncio.run(stored_history(size))[0] for _ in range(TIMES)]
    progress(f"deciding and storing a run of {size * TIMES:,} events")
    long, read_seconds = asyncio.run(stored_history(size * TIMES))
    progress("folding them")
    folds = _folds(long, shorts, QUICK_ROUNDS if quick else ROUNDS)
    progress("deciding")
    decided = {events: decide_micros(long[: scaled(events, scale, 2)]) for events in DECIDED_ON}
    return _report(folds, len(long) / read_seconds, decided, _five_step_micros(scaled(200, scale)))


async def stored_history(count: int) -> tuple[list[Event], float]:
    """A run's first events as a store gives them, and the seconds that reading them took."""
    async with await SqliteStore.open(":memory:") as store:
        run_id = ""
        for decision in mixed_run(count):
            await store.commit(decision.commit)
            run_id = decision.case.run.stream_id
        began = perf_counter()
        events = await store.fetch(DEFAULT_TENANT, run_id, limit=count)
        return list(events), perf_counter() - began


def fold_seconds(events: Sequence[Event]) -> float:
    """Processor time of one fold from nothing."""
    empty = RunState(stream_id=events[0].stream_id, tenant_id=events[0].tenant_id)
    gc.collect()
    began = thread_time()
    fold_run(empty, events)
    return thread_time() - began


def _folds(long: Sequence[Event], shorts: Sequence[Sequence[Event]], rounds: int) -> Folds:
    """Takes turns: the long history, then the short ones, which together have as many events."""
    pairs = [(fold_seconds(long), fmean(map(fold_seconds, shorts))) for _ in range(rounds)]
    size = len(shorts[0])
    return Folds(
        long_events=len(long),
        short_events=size,
        long=Spread.of([len(long) / seconds for seconds, _ in pairs]),
        short=Spread.of([size / seconds for _, seconds in pairs]),
        linear=Spread.of([slow / quick / (len(long) / size) for slow, quick in pairs]),
    )


def decide_micros(events: Sequence[Event]) -> float:
    """What one step costs to decide, from start to end, on a run of so many events."""
    state = fold_run(RunState(stream_id=events[0].stream_id, tenant_id=events[0].tenant_id), events)
    case = Case(signal=SignalState(stream_id=events[0].id, tenant_id=events[0].tenant_id), run=state)
    step, now = specialist_step("one more", 1), context()
    seconds = []
    for _ in range(max(10, DECISIONS * 1000 // max(1000, len(events)))):
        began = thread_time()
        decide(case, *step, context=now)
        seconds.append(thread_time() - began)
    return Spread.of(seconds).middle * 1e6


def _five_step_micros(runs: int) -> float:
    """What a whole run of five steps costs to decide."""
    seconds = []
    for _ in range(runs):
        began = thread_time()
        five_step_run()
        seconds.append(thread_time() - began)
    return Spread.of(seconds).middle * 1e6


def _report(folds: Folds, read: float, decided: dict[int, float], five_steps: float) -> Report:
    def folded(events: int, speed: Spread) -> tuple[str, ...]:
        rates = (speed.middle, speed.lowest, speed.highest)
        return (f"fold {events:,} events", *(f"{rate:,.0f}/s" for rate in rates))

    return Report(
        name=BENCHMARK.name,
        columns=("what", "median", "lowest", "highest"),
        rows=(
            folded(folds.short_events, folds.short),
            folded(folds.long_events, folds.long),
            (f"for information: read {folds.long_events:,} events", f"{read:,.0f}/s", "", ""),
            ("for information: decide a run of five steps", f"{five_steps:,.0f} µs", "", ""),
            *(
                (f"for information: decide a step after {size:,} events", f"{micros:,.0f} µs", "", "")
                for size, micros in decided.items()
            ),
        ),
        ratios={"fold": folds.long.middle / TO_REACH, "linear": folds.linear.middle},
        targets=TARGETS,
        figures={
            f"events_per_second@{SHORT}": folds.short.middle,
            f"events_per_second@{SHORT * TIMES}": folds.long.middle,
            "read_events_per_second": read,
            "decide_run_micros": five_steps,
            **{f"decide_step_micros@{size}": micros for size, micros in decided.items()},
        },
        plots=(_plot(folds),),
    )


def _plot(folds: Folds) -> Plot:
    return Plot(
        name="fold",
        title="Folding a run's history, one core",
        kind="bars",
        x_label="events in the history",
        y_label="events per second",
        places=(f"{folds.short_events:,}", f"{folds.long_events:,}"),
        series={"fold, payloads decoded": (folds.short.middle, folds.long.middle)},
        mark=("to reach", float(TO_REACH)),
    )


BENCHMARK: Final = Benchmark("fold", "events per second that a run's state is folded from", run)
