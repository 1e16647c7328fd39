"""Events per second appended to a run's folder, beside the same lines by bare write and sync; and its replay.

The events are those of a pipeline: work items that start, write an artifact and are done. They are
drafted beforehand and appended one after the other, each durable before the next. The bare writer takes
its turn after the store, on the same disk, with the very lines that the store wrote: one `write` and one
`fdatasync` each, and nothing else. Both files have to be equal then. The store also folds each event,
keeps the chain and its keys, hands the work to a thread so that an event loop stays free, and writes a
snapshot every second.

A replay reads a log of 100,000 events, proves its chain, folds it and encodes the snapshot. It waits for
nothing, for the log is in the system's memory, so its processor time is what is measured, as for `fold`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter, thread_time
from typing import Final

import msgspec
from msgspec import Raw

from benchmarks.measure import Spread, scaled, scratch_folder, undisturbed
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from benchmarks.workloads import context
from runstone.core import codec
from runstone.core.events import Event, EventDraft
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.keys import digest
from runstone.core.payloads import ArtifactWritten, Payload, WorkItemCompleted, WorkItemStarted
from runstone.ports.clock import new_id
from runstone.stores.folder import FolderStore
from runstone.stores.folder.disk import Disk

APPENDED: Final = 600
REPLAYED: Final = 100_000
TO_REACH: Final = 100_000
"""Events replayed per second."""

ITEMS: Final = 10_000
"""How many work items a pipeline has; after that they are done again."""

ROUNDS: Final = 9
QUICK_ROUNDS: Final = 5
TARGETS: Final = {"limit": at_least(0.5), "replay": at_least(1.0)}


class Unequal(Exception):
    """The two writers wrote different lines."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The store's turn and the bare writer's."""

    events: int
    store_seconds: float
    bare_seconds: float


class NoSync(Disk):
    """For what is only prepared."""

    def sync(self, descriptor: int) -> None:
        pass


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    rounds: list[Round] = []
    count = scaled(APPENDED, scale, 6)
    with scratch_folder() as folder:
        for number in range(QUICK_ROUNDS if quick else ROUNDS):
            progress(f"appending {count:,} events, round {number + 1}")
            rounds.append(asyncio.run(take_round(folder / str(number), count)))
        size = scaled(REPLAYED, scale, 30)
        progress(f"writing a log of {size:,} events")
        run_id, megabytes = asyncio.run(write_log(folder / "long", size))
        progress("replaying it")
        replays = [
            size / asyncio.run(replay_seconds(folder / "long", run_id))
            for _ in range(QUICK_ROUNDS if quick else ROUNDS)
        ]
    return _report(rounds, Spread.of(replays), size, megabytes)


async def take_round(root: Path, count: int) -> Round:
    """Appends events to a new run, then writes the same lines without a store, and compares."""
    async with await FolderStore.open(root) as store:
        run_id = await _opened(store)
        (last,) = await store.fetch(DEFAULT_TENANT, run_id, after_seq=1)
        drafts = list(islice(_drafts(last), count))
        with undisturbed():
            began = perf_counter()
            for draft in drafts:
                await store.append(draft)
            store_seconds = perf_counter() - began
    log = root / "runs" / run_id / "events.ndjson"
    lines = log.read_bytes().splitlines(keepends=True)
    bare = root / "bare.ndjson"
    bare.write_bytes(b"".join(lines[:-count]))
    with undisturbed():
        bare_seconds = write_bare(bare, lines[-count:])
    if bare.read_bytes() != log.read_bytes():
        raise Unequal(f"{bare} and {log} differ")
    return Round(events=count, store_seconds=store_seconds, bare_seconds=bare_seconds)


def write_bare(path: Path, lines: Sequence[bytes]) -> float:
    """Seconds until the last line is durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        began = perf_counter()
        for line in lines:
            os.write(descriptor, line)
            os.fdatasync(descriptor)
        return perf_counter() - began
    finally:
        os.close(descriptor)


async def write_log(root: Path, count: int) -> tuple[str, float]:
    """A run of so many events; its id, and how large its log is."""
    async with await FolderStore.open(root, inline=True, disk=NoSync()) as store:
        run_id = await _opened(store)
        (last,) = await store.fetch(DEFAULT_TENANT, run_id, after_seq=1)
        for draft in islice(_drafts(last), count - 2):
            await store.append(draft)
    return run_id, (root / "runs" / run_id / "events.ndjson").stat().st_size / 1e6


async def replay_seconds(root: Path, run_id: str) -> float:
    """Processor time of one replay, by a store that has read nothing before."""
    async with await FolderStore.open(root, inline=True) as store:
        with undisturbed():
            began = thread_time()
            content = await store.replay(DEFAULT_TENANT, run_id)
            seconds = thread_time() - began
    if content != (root / "runs" / run_id / "snapshot.json").read_bytes():
        raise Unequal("the replay is not what the snapshot says")
    return seconds


async def _opened(store: FolderStore) -> str:
    run = await store.create(DEFAULT_TENANT, new_id(), plan_id="benchmark", context=context())
    return run.id


def _drafts(like: Event) -> Iterator[EventDraft]:
    """Events of a pipeline, to go behind this one."""
    for number, data in enumerate(_work()):
        yield EventDraft(
            id=new_id(),
            tenant_id=like.tenant_id,
            stream_id=like.stream_id,
            run_id=like.run_id,
            event_type=data.EVENT_TYPE,
            event_version=data.VERSION,
            aggregate_type=data.AGGREGATE,
            aggregate_id=like.aggregate_id,
            event_data=Raw(codec.encode(data)),
            idempotency_key=digest(like.stream_id, str(number)),
            correlation_id=like.correlation_id,
            causation_id=like.id,
            actor="benchmark",
            occurred_at=like.occurred_at,
            trace_id=like.trace_id,
            span_id=like.span_id,
        )


def _work() -> Iterator[Payload]:
    """Work items that start, write an artifact each, and are done."""
    items = [f"draft:page-{number:05}" for number in range(ITEMS)]
    while True:
        for item in items:
            page = f"pages/{item[6:]}.md"
            yield WorkItemStarted(item=item, worker="drafter")
            yield ArtifactWritten(name=page, path=page, sha256="a" * 64, writer_worker="drafter")
            yield WorkItemCompleted(item=item, outputs=(page,))


def _report(rounds: Sequence[Round], replay: Spread, size: int, megabytes: float) -> Report:
    store = Spread.of([each.events / each.store_seconds for each in rounds])
    bare = Spread.of([each.events / each.bare_seconds for each in rounds])
    limit = Spread.of([each.bare_seconds / each.store_seconds for each in rounds])

    def row(what: str, speed: Spread) -> tuple[str, ...]:
        return (what, *(f"{rate:,.0f}/s" for rate in (speed.middle, speed.lowest, speed.highest)))

    return Report(
        name=BENCHMARK.name,
        columns=("what", "median", "lowest", "highest"),
        rows=(
            row("append an event to a folder, durable", store),
            row("the same line by bare write and fdatasync", bare),
            ("share", f"{limit.middle:.0%}", f"{limit.lowest:.0%}", f"{limit.highest:.0%}"),
            row(f"replay {size:,} events ({megabytes:,.0f} MB)", replay),
        ),
        ratios={"limit": limit.middle, "replay": replay.middle / TO_REACH},
        targets=TARGETS,
        figures={
            "append_events_per_second": store.middle,
            "bare_events_per_second": bare.middle,
            "replay_events_per_second": replay.middle,
        },
        plots=(_plot(store, bare),),
    )


def _plot(store: Spread, bare: Spread) -> Plot:
    return Plot(
        name="folder",
        title="Events to a run's folder, each durable before the next",
        kind="bars",
        x_label="writers: one",
        y_label="events per second",
        places=("one at a time",),
        series={"the store": (store.middle,), "bare write and fdatasync": (bare.middle,)},
    )


BENCHMARK: Final = Benchmark(
    "folder",
    "durable events to a run's folder, beside bare write and sync of the same lines; its replay",
    run,
)
