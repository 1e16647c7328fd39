"""Steps per second through the whole engine on PostgreSQL, beside peers and the same rows by bare asyncpg.

Runs of five steps, so many at once: each client starts a run, waits for its result, starts the
next. In every round DBOS and LangGraph take their turn on the same server, equally durable, each in an
environment of its own and in a database of its own; and Restate, which has a log of its own on the same disk.
So does a bare writer, with the transactions that the store made of the engine's commits; both databases have
to hold the same rows then.

Peers can run in two styles, such as threads and tasks: rounds alternate, and the better of the two counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from benchmarks import bare_postgres, peers
from benchmarks.apps import STEPS, five_steps
from benchmarks.companion import Companion
from benchmarks.measure import Spread, rounds_of, scaled, scratch_folder, undisturbed
from benchmarks.peers.environment import PeerMissing, python_of, server_of
from benchmarks.plots import Plot
from benchmarks.postgres import DURABLE, Ground, RememberingStore, on_postgres
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, Target, at_least
from runstone.core.commit import Commit

NAME: Final = "steps-postgres"
RUNS: Final = {1: 100, 16: 320, 64: 640, 256: 1024}
"""How many runs the engine makes in one round, by how many are under way at once."""

PEER_RUNS: Final = {1: 20, 16: 48, 64: 96, 256: 256}
ROUNDS: Final = 6
QUICK_ROUNDS: Final = 2
QUICK_SCALE: Final = 0.4
PEER_QUICK_SCALE: Final = 0.35
SCRIPTS: Final = Path(peers.__path__[0])
TARGETS: Final = {"limit@64": at_least(0.6), "limit@256": at_least(0.6)}
PEER_TARGETS: Final = {"dbos": at_least(25), "best": at_least(8)}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a peer beforehand."""

    title: str
    durable: Mapping[str, str] = msgspec.field(default_factory=lambda: DURABLE)
    """What it has to answer."""
    styles: tuple[str, str] = ("tasks", "threads")
    times: int = 1
    """How many times the runs it makes in a round: those of a faster one would be over too soon."""
    server: str | None = None
    """The program it stores its log with; none: our PostgreSQL server."""
    note: str = "on the same server, every connection asked how durable it is"


PEERS: Final = {
    "dbos": Kind(title="DBOS"),
    "langgraph": Kind(title="LangGraph"),
    "restate": Kind(
        title="Restate",
        durable={"fsync": "on"},
        styles=("one process", "two processes"),
        times=4,
        server="restate-server",
        note="with a log of its own on the same disk, which its server syncs",
    ),
}
"""By the name of their environments and scripts."""


class Unlike(Exception):
    """A peer did not do what it is compared for."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of each."""

    engine: float
    bare: float
    """Steps per second."""
    batch: float
    """Commits in a transaction."""
    peers: Mapping[str, tuple[float, str]]
    """Steps per second, and in which style."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds with so many runs at once."""

    engine: Spread
    bare: Spread
    limit: Spread
    batch: float
    peers: Mapping[str, tuple[float, str]]
    """Steps per second of each peer in the style that suits it better, and that style."""


class Peer:
    """Another system in a process beside this one."""

    def __init__(self, name: str, companion: Companion, folder: Path) -> None:
        self.name = name
        self.kind = PEERS[name]
        self._companion = companion
        self._folder = folder
        self._rounds = 0
        self.version = ""

    def take_turn(self, ground: Ground, number: int, at_once: int, runs: int) -> tuple[float, str]:
        """Steps per second in a round, and the style of that round."""
        style = self.kind.styles[number % len(self.kind.styles)]
        return self.rate(self._place(ground), style, at_once, runs * self.kind.times), style

    def _place(self, ground: Ground) -> str:
        """Where it stores this round's runs: an empty database of ours, or a new folder."""
        self._rounds += 1
        if self.kind.server is None:
            return ground.database(self.name, migrated=False)
        return str(self._folder / str(self._rounds))

    def rate(self, url: str, style: str, at_once: int, runs: int) -> float:
        """Steps per second; `Unlike` if they were not as durable as ours, or not all there."""
        found = self._companion.ask(url=url, style=style, at_once=at_once, runs=runs)
        expected: dict[str, Any] = {**self.kind.durable, "ended": runs, "steps": STEPS * runs}
        if any(found.get(name) != value for name, value in expected.items()):
            raise Unlike(f"{self.kind.title}: {found} where {expected} was expected")
        self.version = found["version"]
        return STEPS * runs / float(found["seconds"])


class Field(msgspec.Struct, frozen=True):
    """The peers that are here, and why others are not."""

    peers: Sequence[Peer]
    missing: Mapping[str, str]

    @property
    def notes(self) -> tuple[str, ...]:
        there = (f"{peer.kind.title} {peer.version}: {peer.kind.note}" for peer in self.peers)
        return (
            *there,
            *(
                f"{PEERS[name].title} was not measured, for it cannot be installed here: {why}"
                for name, why in self.missing.items()
            ),
        )


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
    engine_scale = scale * (QUICK_SCALE if quick else 1)
    peer_scale = scale * (PEER_QUICK_SCALE if quick else 1)
    levels: dict[int, Level] = {}
    with scratch_folder() as folder, open_peers(folder, progress) as field:
        for at_once, count in RUNS.items():
            runs, peer_runs = scaled(count, engine_scale, 2), scaled(PEER_RUNS[at_once], peer_scale, 2)
            taken = []
            for number in rounds_of(QUICK_ROUNDS if quick else ROUNDS, scale):
                progress(f"{at_once} at once, round {number + 1}")
                taken.append(take_round(ground, field.peers, number, at_once, runs, peer_runs))
            levels[at_once] = _level(taken)
        return _report(levels, field, ground)


@contextmanager
def open_peers(folder: Path, progress: Progress) -> Iterator[Field]:
    """Every peer that can be had, for as long as this is open."""
    found, missing = [], {}
    with ExitStack() as stack:
        for name, kind in PEERS.items():
            progress(f"looking for {kind.title}; the first time, its environment is built")
            try:
                command = command_of(name)
            except PeerMissing as error:
                missing[name] = str(error)
                continue
            own = folder / name
            own.mkdir()
            found.append(Peer(name, stack.enter_context(Companion(command, own)), own))
        yield Field(found, missing)


def command_of(name: str) -> list[Path]:
    """What starts a peer; `PeerMissing` where it cannot be installed."""
    command = [python_of(name), SCRIPTS / f"{name}_runs.py"]
    program = PEERS[name].server
    return command if program is None else [*command, server_of(name, program)]


def take_round(
    ground: Ground, others: Sequence[Peer], number: int, at_once: int, runs: int, peer_runs: int
) -> Round:
    """The engine, the bare writer with its rows, and the peers."""
    store, bare = ground.database("store"), ground.database("bare")
    seconds, commits, warm = asyncio.run(run_engine(store, at_once, runs))
    taken = asyncio.run(bare_postgres.write_again(store, bare, commits, warm))
    return Round(
        engine=STEPS * runs / seconds,
        bare=STEPS * runs / taken.seconds,
        batch=len(commits) / len(taken.each),
        peers={peer.name: peer.take_turn(ground, number, at_once, peer_runs) for peer in others},
    )


async def run_engine(url: str, at_once: int, runs: int) -> tuple[float, Sequence[Commit], Sequence[Commit]]:
    """Seconds from the first start to the last result; its commits; and those of the runs that went before.

    As many runs as are under way at once go before: connections are opened and statements prepared by them.
    """
    playable = five_steps()
    app = playable.app

    async def client(questions: Iterator[int]) -> None:
        for question in questions:
            handle = await app.start(playable.handler, question)
            assert await handle.result() == "done"

    async def clients(count: int) -> float:
        questions = iter(range(count))
        began = perf_counter()
        await asyncio.gather(*(client(questions) for _ in range(at_once)))
        return perf_counter() - began

    store = await RememberingStore.open(url)
    assert isinstance(store, RememberingStore)
    async with store, app.running(store, concurrency=at_once):
        await client(iter((0,)))
        await clients(min(at_once, runs))
        warm, store.commits = store.commits, []
        with undisturbed():
            seconds = await clients(runs)
    return seconds, store.commits, warm


def _level(rounds: Sequence[Round]) -> Level:
    return Level(
        engine=Spread.of([each.engine for each in rounds]),
        bare=Spread.of([each.bare for each in rounds]),
        limit=Spread.of([each.engine / each.bare for each in rounds]),
        batch=Spread.of([each.batch for each in rounds]).middle,
        peers={name: _better(rounds, name) for name in rounds[0].peers},
    )


def _better(rounds: Sequence[Round], name: str) -> tuple[float, str]:
    rates: dict[str, list[float]] = {}
    for each in rounds:
        rate, style = each.peers[name]
        rates.setdefault(style, []).append(rate)
    return max((Spread.of(found).middle, style) for style, found in rates.items())


def _report(levels: Mapping[int, Level], field: Field, ground: Ground) -> Report:
    names = [peer.name for peer in field.peers]
    limits = {f"limit@{at_once}": level.limit.middle for at_once, level in levels.items()}
    return Report(
        name=NAME,
        columns=(
            *("runs at once", "engine", "bare", "commits a transaction", "limit", "of rounds"),
            *(PEERS[name].title for name in names),
        ),
        rows=tuple(_row(at_once, level) for at_once, level in levels.items()),
        ratios=limits | _peer_ratios(levels, names),
        targets=TARGETS | _peer_targets(names),
        figures=_figures(levels),
        plots=(_plot(levels, names),),
        notes=(ground.note, *field.notes),
    )


def _peer_targets(names: Sequence[str]) -> dict[str, Target]:
    """Against DBOS if it is here; against the best peer only if none is missing, or it might be that one."""
    found = {"dbos": PEER_TARGETS["dbos"]} if "dbos" in names else {}
    return found | ({"best": PEER_TARGETS["best"]} if len(names) == len(PEERS) else {})


def _peer_ratios(levels: Mapping[int, Level], names: Sequence[str]) -> dict[str, float]:
    """Times each peer, both at their best; times the best of all; and at each concurrency."""
    if not names:
        return {}
    ours = {at_once: level.engine.middle for at_once, level in levels.items()}
    theirs = {name: max(level.peers[name][0] for level in levels.values()) for name in names}
    best = max(theirs.values())
    return {
        **{name: max(ours.values()) / rate for name, rate in theirs.items()},
        "best": max(ours.values()) / best,
        **{
            f"{name}@{at_once}": ours[at_once] / level.peers[name][0]
            for name in names
            for at_once, level in levels.items()
        },
        **{f"best@{at_once}": rate / best for at_once, rate in ours.items()},
    }


def _row(at_once: int, level: Level) -> tuple[str, ...]:
    return (
        str(at_once),
        f"{level.engine.middle:,.0f}/s",
        f"{level.bare.middle:,.0f}/s",
        f"{level.batch:.1f}",
        f"{level.limit.middle:.0%}",
        f"{level.limit.lowest:.0%} to {level.limit.highest:.0%}",
        *(f"{rate:,.0f}/s in {style}" for rate, style in level.peers.values()),
    )


def _figures(levels: Mapping[int, Level]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for at_once, level in levels.items():
        figures[f"engine_steps_per_second@{at_once}"] = level.engine.middle
        figures[f"bare_steps_per_second@{at_once}"] = level.bare.middle
        figures[f"commits_per_transaction@{at_once}"] = level.batch
        for name, (rate, _) in level.peers.items():
            figures[f"{name}_steps_per_second@{at_once}"] = rate
    return figures


def _plot(levels: Mapping[int, Level], names: Sequence[str]) -> Plot:
    return Plot(
        name=NAME,
        title="Five-step runs on PostgreSQL",
        kind="bars",
        x_label="runs at once",
        y_label="steps per second",
        places=tuple(str(at_once) for at_once in levels),
        series={
            "Runstone": tuple(level.engine.middle for level in levels.values()),
            **{PEERS[name].title: tuple(level.peers[name][0] for level in levels.values()) for name in names},
        },
    )


BENCHMARK: Final = Benchmark(
    NAME,
    "steps per second of five-step runs on PostgreSQL, beside three peers and bare asyncpg",
    on_postgres(NAME, measured),
)
