"""Steps per second through the whole engine on SQLite, beside DBOS and the same rows by bare `sqlite3`.

Runs of five steps, so many at once: each client starts a run, waits for its result, starts the
next. DBOS takes its turn in every round, on the same disk, equally durable, in an environment of
its own. So does a bare writer that puts down the rows of the engine's commits in as many
transactions as the store took; both files have to hold the same rows then.

DBOS can run workflows in threads or in tasks: rounds alternate, and the better of the two counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from benchmarks import bare_sqlite, peers
from benchmarks.apps import STEPS, RememberingStore, five_steps
from benchmarks.companion import Companion
from benchmarks.measure import Spread, scaled, scratch_folder, undisturbed
from benchmarks.peers.environment import PeerMissing, python_of
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from runstone.core.commit import Commit

RUNS: Final = {1: 100, 16: 320, 64: 640, 256: 1024}
"""How many runs the engine makes in one round, by how many are under way at once."""

PEER_RUNS: Final = {1: 30, 16: 48, 64: 64, 256: 256}
ROUNDS: Final = 6
QUICK_ROUNDS: Final = 2
QUICK_SCALE: Final = 0.4
STYLES: Final = ("tasks", "threads")
PEER_SCRIPT: Final = Path(peers.__path__[0]) / "dbos_runs.py"
DURABLE: Final = {"journal_mode": "wal", "synchronous": 2}
TARGETS: Final = {"limit@64": at_least(0.6), "limit@256": at_least(0.6)}
PEER_TARGETS: Final = {"dbos": at_least(15)}


class Unlike(Exception):
    """The peer did not do what it is compared for."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of each."""

    engine: float
    bare: float
    """Steps per second."""
    batch: float
    """Commits in a transaction."""
    peer: float | None
    style: str


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds with so many runs at once."""

    engine: Spread
    bare: Spread
    limit: Spread
    batch: float
    peer: Spread | None
    style: str


class Peer:
    """DBOS in a process beside this one, or the reason why it is not there."""

    def __init__(self, companion: Companion | None, missing: str = "") -> None:
        self._companion = companion
        self.missing = missing
        self.version = ""

    def rate(self, path: Path, style: str, at_once: int, runs: int) -> float | None:
        """Steps per second; `Unlike` if they were not as durable as ours, or not all there."""
        if self._companion is None:
            return None
        found = self._companion.ask(url=f"sqlite:///{path}", style=style, at_once=at_once, runs=runs)
        expected: dict[str, Any] = {**DURABLE, "ended": runs, "steps": STEPS * runs}
        if any(found[name] != value for name, value in expected.items()):
            raise Unlike(f"{found} where {expected} was expected")
        self.version = found["version"]
        return STEPS * runs / float(found["seconds"])

    @property
    def note(self) -> str:
        if self.missing:
            return f"DBOS was not measured, for it cannot be installed here: {self.missing}"
        return f"DBOS {self.version}: its file in WAL mode instead of its default journal, synchronous=FULL"


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    rounds = range(QUICK_ROUNDS if quick else ROUNDS)
    smaller = scale * (QUICK_SCALE if quick else 1)
    levels: dict[int, Level] = {}
    with scratch_folder() as folder, open_peer(folder, progress) as peer:
        for at_once, count in RUNS.items():
            runs = scaled(count, smaller, 2)
            taken = []
            for number in rounds:
                progress(f"{at_once} at once, round {number + 1}")
                style = STYLES[number % len(STYLES)]
                peer_runs = scaled(PEER_RUNS[at_once], scale, 2)
                taken.append(take_round(folder, peer, style, at_once, runs, peer_runs))
            levels[at_once] = _level(taken)
        return _report(levels, peer)


@contextmanager
def open_peer(folder: Path, progress: Progress) -> Iterator[Peer]:
    """The peer for as long as this is open."""
    progress("looking for DBOS; the first time, its environment is built")
    try:
        python = python_of("dbos")
    except PeerMissing as missing:
        yield Peer(None, str(missing))
        return
    with Companion([python, PEER_SCRIPT], folder) as companion:
        yield Peer(companion)


def take_round(folder: Path, peer: Peer, style: str, at_once: int, runs: int, peer_runs: int) -> Round:
    """The engine, the bare writer with its rows, and the peer."""
    path = folder / "store.db"
    try:
        with undisturbed():
            seconds, commits = asyncio.run(run_engine(path, at_once, runs))
        transactions = bare_sqlite.count_transactions(path)
        ordered = bare_sqlite.in_order(path, commits)
        bare_seconds = sum(bare_sqlite.write_again(path, ordered, transactions))
        return Round(
            engine=STEPS * runs / seconds,
            bare=STEPS * (runs + 1) / bare_seconds,
            batch=len(ordered) / transactions,
            peer=peer.rate(folder / "peer.db", style, at_once, peer_runs),
            style=style,
        )
    finally:
        for left in folder.glob("*.db*"):
            left.unlink()


async def run_engine(path: Path, at_once: int, runs: int) -> tuple[float, Sequence[Commit]]:
    """Seconds from the first start to the last result, and all commits: one run more, to warm it up."""
    playable = five_steps()
    app = playable.app
    questions = iter(range(runs))

    async def ask(question: int) -> None:
        handle = await app.start(playable.handler, question)
        assert await handle.result() == "done"

    async def client() -> None:
        for question in questions:
            await ask(question)

    store = await RememberingStore.open(path)
    assert isinstance(store, RememberingStore)
    async with store, app.running(store, concurrency=at_once):
        await ask(0)
        began = perf_counter()
        await asyncio.gather(*(client() for _ in range(at_once)))
        seconds = perf_counter() - began
    return seconds, store.commits


def _level(rounds: Sequence[Round]) -> Level:
    peers = {
        style: Spread.of(rates)
        for style in STYLES
        if (rates := [each.peer for each in rounds if each.style == style and each.peer is not None])
    }
    style = max(peers, key=lambda name: peers[name].middle, default="")
    return Level(
        engine=Spread.of([each.engine for each in rounds]),
        bare=Spread.of([each.bare for each in rounds]),
        limit=Spread.of([each.engine / each.bare for each in rounds]),
        batch=Spread.of([each.batch for each in rounds]).middle,
        peer=peers.get(style),
        style=style,
    )


def _report(levels: Mapping[int, Level], peer: Peer) -> Report:
    compared = _peer_ratios(levels)
    return Report(
        name=BENCHMARK.name,
        columns=(
            "runs at once",
            "engine",
            "bare",
            "commits a transaction",
            "limit",
            "of rounds",
            "DBOS",
            "in",
        ),
        rows=tuple(_row(at_once, level) for at_once, level in levels.items()),
        ratios={f"limit@{at_once}": level.limit.middle for at_once, level in levels.items()} | compared,
        targets=TARGETS | (PEER_TARGETS if compared else {}),
        figures=_figures(levels),
        plots=(_plot(levels),),
        notes=(peer.note,),
    )


def _peer_ratios(levels: Mapping[int, Level]) -> dict[str, float]:
    """Times DBOS: at its best for both, at the same concurrency, and ours at each over its best."""
    theirs = {at_once: level.peer.middle for at_once, level in levels.items() if level.peer is not None}
    if not theirs:
        return {}
    ours = {at_once: level.engine.middle for at_once, level in levels.items()}
    best = max(theirs.values())
    return {
        "dbos": max(ours.values()) / best,
        **{f"dbos@{at_once}": ours[at_once] / rate for at_once, rate in theirs.items()},
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
        f"{level.peer.middle:,.0f}/s" if level.peer else "not measured",
        level.style,
    )


def _figures(levels: Mapping[int, Level]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for at_once, level in levels.items():
        figures[f"engine_steps_per_second@{at_once}"] = level.engine.middle
        figures[f"bare_steps_per_second@{at_once}"] = level.bare.middle
        figures[f"commits_per_transaction@{at_once}"] = level.batch
        if level.peer is not None:
            figures[f"dbos_steps_per_second@{at_once}"] = level.peer.middle
    return figures


def _plot(levels: Mapping[int, Level]) -> Plot:
    series = {
        "Runstone": tuple(level.engine.middle for level in levels.values()),
        "its rows by bare sqlite3": tuple(level.bare.middle for level in levels.values()),
    }
    peer = tuple(level.peer.middle for level in levels.values() if level.peer is not None)
    return Plot(
        name="steps-sqlite",
        title="Five-step runs on SQLite, synchronous=FULL",
        kind="bars",
        x_label="runs at once",
        y_label="steps per second",
        places=tuple(str(at_once) for at_once in levels),
        series=series | ({"DBOS": peer} if peer else {}),
    )


BENCHMARK: Final = Benchmark(
    "steps-sqlite", "steps per second of five-step runs on SQLite, beside DBOS and bare sqlite3", run
)
