"""A hundred thousand sleeping runs: what they cost a worker's memory, and how fast many of them wake.

A worker in a process of its own puts some runs to sleep through the engine, and its memory is
noted. The rest is decided and committed in bulk by this process: the same commands, so that each
run looks like one that the engine put to sleep, which is checked. Meanwhile the worker polls and
keeps its lease; the most that its memory grows by is what is reported. Then a thousand more fall
asleep that all wake at the same moment.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

import msgspec

from benchmarks.companion import Companion
from benchmarks.measure import scaled, scratch_folder
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_most
from runstone.core import codec
from runstone.core.commands import CreateRun, ReceiveSignal, StartRun, StartStep, SuspendRun
from runstone.core.commit import Commit, Context, Lease
from runstone.core.decide import Case, decide
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.keys import content_hash
from runstone.core.payloads import WaitSpec
from runstone.engine.functions import START_CHANNEL
from runstone.engine.values import write
from runstone.ingest.signals import ApiRequest
from runstone.ports.clock import SystemClock, new_id
from runstone.stores.sqlite import SqliteStore
from runstone.stores.sqlite.rows import to_micros

SLEEPERS: Final = 100_000
QUICK_SLEEPERS: Final = 20_000
PARTS: Final = 10
"""Memory is noted after each of so many parts."""

THROUGH_ENGINE: Final = 500
WARM_UP: Final = 100
AT_ONCE: Final = 250
"""Runs that are committed together."""

BULK: Final = "bulk"
"""The name under which runs are written."""

WAKING: Final = 1_000
SETTLE: Final = 1.0
MONTH: Final = timedelta(days=30)
NAP: Final = timedelta(seconds=5)
"""Long enough to write all that wake together before they do."""

SHORTEST_NAP: Final = timedelta(seconds=0.5)
MOST_SECONDS: Final = 120.0
MAY_GROW: Final = 50.0
"""Megabytes."""

LEAST: Final = 0.01
"""Growth below this is none, and said so: a ratio of nothing would be no ratio."""

TARGETS: Final = {"memory": at_most(1.0)}

_clock = SystemClock()
_MASKS: Final = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "an id"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "a time"),
    (re.compile(r"[0-9a-f]{64}"), "a hash"),
    (re.compile(r'"(trace|span)_id":"[0-9a-f]+"'), r'"\1_id":"one"'),
    (re.compile(r'"worker:[^"]*"'), '"worker"'),
    (re.compile(r'"sequence_number":\d+'), '"sequence_number":0'),
)


class Unequal(Exception):
    """A run that was written in bulk is not as the engine writes it."""


class NotAwake(Exception):
    """Not every run that was to wake has ended."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    sleepers: Sequence[int]
    growth: Sequence[float]
    """How many slept, and how many MB the worker's memory had grown by at most until then."""
    asleep_a_second: float
    waking: int
    wake_seconds: float


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    with scratch_folder() as folder:
        path = folder / "store.db"
        with Companion([sys.executable, "-m", "benchmarks.sleepers_worker", path], folder) as worker:
            sleepers = scaled(QUICK_SLEEPERS if quick else SLEEPERS, scale, PARTS)
            found = asyncio.run(_measure(path, worker, progress, sleepers, scale))
    return _report(found)


async def _measure(path: Path, worker: Companion, progress: Progress, sleepers: int, scale: float) -> Found:
    progress("putting some to sleep through the engine")
    worker.ask(do="nap", runs=scaled(WARM_UP, scale, 2), seconds=MONTH.total_seconds())
    before = worker.ask(do="memory")["now"]
    few = worker.ask(do="nap", runs=scaled(THROUGH_ENGINE, scale, 2), seconds=MONTH.total_seconds())["runs"]
    counts, growth = [0], [0.0]
    async with await SqliteStore.open(path) as store:
        asleep = len(few)
        began = perf_counter()
        for part in range(PARTS):
            progress(f"{asleep:,} asleep")
            written = await fall_asleep(store, _share(sleepers - len(few), part), MONTH)
            asleep += len(written)
            counts.append(asleep)
            growth.append(max(growth[-1], worker.ask(do="memory")["most"] - before))
        seconds = perf_counter() - began
        await compare(store, few[-1], written[-1] if written else few[0])
        await asyncio.sleep(SETTLE * min(1.0, scale))
        growth[-1] = max(growth[-1], worker.ask(do="memory")["most"] - before, LEAST)
        waking = scaled(WAKING, scale, 2)
        progress(f"waking {waking:,} at once")
        return Found(
            sleepers=counts,
            growth=growth,
            asleep_a_second=(asleep - len(few)) / seconds,
            waking=waking,
            wake_seconds=await wake(store, path, waking, max(SHORTEST_NAP, NAP * min(1.0, scale))),
        )


def _share(count: int, part: int) -> int:
    return max(0, count) * (part + 1) // PARTS - max(0, count) * part // PARTS


# Falling asleep


async def fall_asleep(
    store: SqliteStore, count: int, rest: timedelta, wake_at: datetime | None = None
) -> list[str]:
    """Writes runs that sleep for so long, all until the same moment if one is given.

    They are its own until they sleep, as a worker's are: nobody else takes one up in between.
    """
    await store.claim(BULK, handlers=(), code_rank="", limit=1, lease=timedelta(hours=1))
    ids: list[str] = []
    while len(ids) < count:
        made = [sleeping_run(rest, wake_at) for _ in range(min(AT_ONCE, count - len(ids)))]
        await asyncio.gather(*(store.commit(commit) for _, commits in made for commit in commits))
        ids += [run_id for run_id, _ in made]
    await store.release(BULK)
    return ids


def sleeping_run(rest: timedelta, wake_at: datetime | None = None) -> tuple[str, list[Commit]]:
    """A run of the handler `nap`, and the two commits that the gateway and a worker make of it."""
    case = Case.new(DEFAULT_TENANT, new_id(), new_id())
    commits = []
    gateway = Context(now=_clock.now(), new_id=new_id, actor="gateway")
    worker = Context(now=_clock.now(), new_id=new_id, actor=f"worker:{BULK}", engine_attempt=1)
    for context, wanted, lease in (
        (gateway, _received(rest), Lease(owner=BULK, attempts=1)),
        (worker, _suspended(rest, wake_at or _clock.now() + rest), Lease(owner=None)),
    ):
        decision = decide(case, *wanted, context=context, lease=lease)
        commits.append(decision.commit)
        case = decision.case
    return case.run.stream_id, commits


def _received(rest: timedelta) -> tuple[ReceiveSignal, CreateRun]:
    payload = write(ApiRequest(operation="nap", arguments=rest.total_seconds()))
    return (
        ReceiveSignal(
            signal_type="API_CALL",
            source_channel=START_CHANNEL,
            source_id=new_id(),
            source_hash=content_hash(payload),
            normalized_payload=payload,
            received_at=_clock.now(),
            ingested_by="benchmark",
        ),
        CreateRun(plan_id="nap", run_type="HUMAN_TRIGGERED"),
    )


def _suspended(rest: timedelta, wake_at: datetime) -> tuple[StartRun, StartStep, SuspendRun]:
    return (
        StartRun(),
        StartStep(
            step_key="sleep#1",
            step_type="WAIT",
            arguments=codec.canonical({"seconds": rest.total_seconds()}),
            wait=WaitSpec(deadline=wake_at),
        ),
        SuspendRun(wake_at=wake_at, waiting=("sleep#1",)),
    )


async def compare(store: SqliteStore, by_engine: str, in_bulk: str) -> None:
    """Whether two sleeping runs have the same events and rows, but for ids, times and hashes."""
    engine, bulk = await _seen(store, by_engine), await _seen(store, in_bulk)
    if engine != bulk:
        raise Unequal(f"{engine} by the engine, {bulk} in bulk")


async def _seen(store: SqliteStore, run_id: str) -> str:
    run = await store.get_run(DEFAULT_TENANT, run_id)
    assert run is not None
    parts = [await store.examine(DEFAULT_TENANT, stream_id) for stream_id in (run.signal_id, run_id)]
    text = "\n".join(
        msgspec.json.encode([stream.events, rows]).decode() for stream, rows in filter(None, parts)
    )
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


# Waking


async def wake(store: SqliteStore, path: Path, count: int, nap: timedelta) -> float:
    """Seconds from the moment when so many runs are due to when the last has ended."""
    ended = (await store.count_runs()).get("COMPLETED", 0)
    moment = _clock.now() + nap
    await fall_asleep(store, count, nap, moment)
    if _clock.now() > moment:
        raise NotAwake("The moment to wake came before all were asleep: the machine is too busy")
    await asyncio.sleep((moment - _clock.now()).total_seconds())
    began = perf_counter()
    for left in _left_to_wake(path, moment):
        if left == 0:
            break
        if perf_counter() - began > MOST_SECONDS:
            raise NotAwake(f"{left} of {count} runs have not ended after {MOST_SECONDS} s")
    seconds = perf_counter() - began
    if (await store.count_runs()).get("COMPLETED", 0) - ended != count:
        raise NotAwake("Some runs left the queue and did not complete")
    return seconds


def _left_to_wake(path: Path, moment: datetime) -> Iterator[int]:
    """How many are in the queue that were due then, again and again; all others sleep for much longer."""
    until = to_micros(moment + timedelta(days=1))
    with closing(sqlite3.connect(path)) as connection:
        while True:
            sleep(0.005)
            (left,) = connection.execute(
                "SELECT count(*) FROM run_queue WHERE tenant_id = ? AND wake_at <= ?", (DEFAULT_TENANT, until)
            ).fetchone()
            yield left


# Telling


def _report(found: Found) -> Report:
    growth = found.growth[-1]
    return Report(
        name=BENCHMARK.name,
        columns=("what", "found"),
        rows=(
            ("runs asleep", f"{found.sleepers[-1]:,}"),
            ("the worker's memory grew by at most", f"{growth:.1f} MB"),
            (f"{found.waking:,} woken at once: until the last has ended", f"{found.wake_seconds:.2f} s"),
            ("for information: put to sleep in bulk", f"{found.asleep_a_second:,.0f}/s"),
        ),
        ratios={"memory": growth / MAY_GROW},
        targets=TARGETS,
        figures={
            "sleepers": float(found.sleepers[-1]),
            "growth_mb": growth,
            "woken": float(found.waking),
            "wake_seconds": found.wake_seconds,
            "asleep_per_second": found.asleep_a_second,
        },
        plots=(_plot(found),),
    )


def _plot(found: Found) -> Plot:
    return Plot(
        name="sleepers",
        title="A worker's memory while runs sleep",
        kind="lines",
        x_label="runs asleep, in thousands",
        y_label="grown by, MB",
        places=tuple(f"{count / 1000:.0f}" for count in found.sleepers),
        series={"the worker": tuple(found.growth)},
        mark=("at most", MAY_GROW),
    )


BENCHMARK: Final = Benchmark("sleepers", "what sleeping runs cost a worker, and how fast they wake", run)
