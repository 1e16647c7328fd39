"""Events per second read through the feed of a PostgreSQL store, by one reader, over the 50,000 to reach.

A log of runs with five steps, many transactions of a few hundred events each, is read from its beginning
to its end, page after page, each event decoded as a follower gets it. An uncounted pass before shows that
every event comes once, and each behind those of its stream that went before. Beside it the same statement is
sent by bare asyncpg, page after page, and its rows are left as they are: `limit` is the share of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import msgspec

from benchmarks import grown
from benchmarks.measure import Spread, rounds_of, scaled, undisturbed
from benchmarks.plots import Plot
from benchmarks.postgres import Ground, on_postgres
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from runstone.core.contract import FETCH_LIMIT
from runstone.ports.store import FeedPosition
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.connections import Opener
from runstone.stores.postgres.rows import EVENTS as LOG
from runstone.stores.sql import statements

NAME: Final = "feed"
EVENTS: Final = 400_000
QUICK_EVENTS: Final = 120_000
RUNS_TOGETHER: Final = 16
"""Runs in one transaction of the log that is read."""

PAGE: Final = FETCH_LIMIT
ROUNDS: Final = 5
QUICK_ROUNDS: Final = 3
WANTED: Final = 50_000.0
TARGETS: Final = {"feed": at_least(1.0)}
_FEED: Final = statements("postgres")["feed"].replace("{event_selected}", LOG.selected)


class Skipped(Exception):
    """The feed left an event out, showed one twice, or one before its predecessor."""


class Round(msgspec.Struct, frozen=True):
    """Events per second, through the feed and bare."""

    feed: float
    bare: float


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
    url = ground.database("feed")
    wanted = scaled(QUICK_EVENTS if quick else EVENTS, scale, 100)
    progress(f"writing {wanted:,} events")
    events = asyncio.run(grown.grow(url, wanted, at_once=RUNS_TOGETHER))
    asyncio.run(grown.settle(url))
    progress("checking that each comes once")
    asyncio.run(check(url, events))
    rounds = []
    for number in rounds_of(QUICK_ROUNDS if quick else ROUNDS, scale):
        progress(f"round {number + 1}")
        rounds.append(asyncio.run(take_round(url, events)))
    return _report(rounds, events, ground)


async def check(url: str, events: int) -> None:
    """Reads it all once; `Skipped` if anything is missing or out of order."""
    heads: dict[str, int] = {}
    place: FeedPosition | None = None
    async with await PostgresStore.open(url) as store:
        while page := await store.feed(place, limit=PAGE):
            for item in page:
                event = item.event
                if heads.get(event.stream_id, 0) + 1 != event.run_seq:
                    raise Skipped(f"{event.stream_id} {event.run_seq} behind {heads.get(event.stream_id)}")
                heads[event.stream_id] = event.run_seq
            place = page[-1].position
    if sum(heads.values()) != events:
        raise Skipped(f"{sum(heads.values())} of {events}")


async def take_round(url: str, events: int) -> Round:
    async with await PostgresStore.open(url) as store:
        with undisturbed():
            seconds = await read(store, events)
    with undisturbed():
        bare = await read_bare(url, events)
    return Round(events / seconds, events / bare)


async def read(store: PostgresStore, events: int) -> float:
    """Seconds from the first event to the last."""
    place: FeedPosition | None = None
    found = 0
    began = perf_counter()
    while page := await store.feed(place, limit=PAGE):
        found += len(page)
        place = page[-1].position
    seconds = perf_counter() - began
    if found != events:
        raise Skipped(f"{found} of {events}")
    return seconds


async def read_bare(url: str, events: int) -> float:
    """Seconds for the same pages by the same statement, with nothing made of their rows."""
    connection = await Opener(url).open()
    try:
        prepared = await connection.prepare(_FEED)
        place = LOG.fields.index("sequence_number") + 1
        transaction, sequence, found = "0", 0, 0
        began = perf_counter()
        while page := await prepared.fetch(transaction, sequence, 0, PAGE):
            found += len(page)
            transaction, sequence = str(page[-1][0]), page[-1][place]
        seconds = perf_counter() - began
    finally:
        await connection.close()
    if found != events:
        raise Skipped(f"{found} of {events}, bare")
    return seconds


def _report(rounds: Sequence[Round], events: int, ground: Ground) -> Report:
    feed = Spread.of([each.feed for each in rounds])
    bare = Spread.of([each.bare for each in rounds])
    limit = Spread.of([each.feed / each.bare for each in rounds])
    return Report(
        name=NAME,
        columns=(f"{events:,} events, {PAGE:,} a page", "read", "of rounds"),
        rows=(
            ("the feed", f"{feed.middle:,.0f}/s", f"{feed.lowest:,.0f} to {feed.highest:,.0f}"),
            ("bare", f"{bare.middle:,.0f}/s", f"{bare.lowest:,.0f} to {bare.highest:,.0f}"),
            ("share", f"{limit.middle:.0%}", f"{limit.lowest:.0%} to {limit.highest:.0%}"),
        ),
        ratios={"feed": feed.middle / WANTED, "limit": limit.middle},
        targets=TARGETS,
        figures={"events_per_second": feed.middle, "bare_events_per_second": bare.middle},
        plots=(_plot(rounds),),
        notes=(ground.note,),
    )


def _plot(rounds: Sequence[Round]) -> Plot:
    return Plot(
        name=NAME,
        title="Events read through the feed, PostgreSQL",
        kind="bars",
        x_label="round",
        y_label="events per second",
        places=tuple(str(number) for number, _ in enumerate(rounds, 1)),
        series={
            "the feed": tuple(each.feed for each in rounds),
            "its rows, bare": tuple(each.bare for each in rounds),
        },
        mark=("at least", WANTED),
    )


BENCHMARK: Final = Benchmark(
    NAME, "events read through the feed of a PostgreSQL store", on_postgres(NAME, measured)
)
