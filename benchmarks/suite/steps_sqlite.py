"""Steps per second through the whole engine on SQLite, beside DBOS and the same rows by bare `sqlite3`.

Runs of five steps, so many at once: each client starts a run, waits for its result, starts the next. They
are made in one process, and in two that share the file, the runs and the clients. DBOS takes its turn in
every round, on the same disk, equally durable, in an environment of its own, and as well in one process and
in two. So does a bare writer that puts down the rows of the engine's commits in as many transactions as the
store took; both files have to hold the same rows then.

Rounds alternate between styles, and of each the better one counts: `contest.py` says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import bare_sqlite, contest
from benchmarks.apps import STEPS
from benchmarks.contest import OURS, Level, Plan, Round, Taken
from benchmarks.engine_runs import open_engine, run_engine
from benchmarks.measure import scaled, scratch_folder
from benchmarks.peers.field import Field, Kind, Peer, open_field
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, at_least
from benchmarks.team import Style, Team

NAME: Final = "steps-sqlite"
RUNS: Final = {1: 100, 16: 320, 64: 640, 256: 1024}
"""How many runs the engine makes in one round, by how many are under way at once."""

PEER_RUNS: Final = {1: 30, 16: 48, 64: 64, 256: 256}
FULL: Final = Plan(engine_turns=6, peer_turns=3)
QUICK: Final = Plan(engine_turns=2, peer_turns=1, engine_scale=0.2, peer_scale=0.4)
TARGETS: Final = {"limit@64": at_least(0.6), "limit@256": at_least(0.6)}
PEER_TARGETS: Final = {"dbos": at_least(15)}
PEERS: Final = {
    "dbos": Kind(
        title="DBOS",
        durable={"journal_mode": "wal", "synchronous": 2},
        note="its file in WAL mode instead of its default journal, synchronous=FULL",
    )
}
"""By the name of their environments and scripts."""


def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
    plan = QUICK if quick else FULL
    levels: dict[int, Level] = {}
    with (
        scratch_folder() as folder,
        open_engine(folder / OURS) as engine,
        open_field(PEERS, folder, progress) as field,
    ):
        for at_once in RUNS:
            runs = scaled(RUNS[at_once], scale * plan.engine_scale, 2)
            peer_runs = scaled(PEER_RUNS[at_once], scale * plan.peer_scale, 2)
            levels[at_once] = contest.take_rounds(
                field,
                plan,
                scale,
                at_once,
                partial(take_round, folder, engine, at_once, runs),
                partial(take_peers_turn, folder, at_once, peer_runs),
                progress,
            )
        return _report(levels, field)


def take_round(folder: Path, engine: Team, at_once: int, runs: int, style: Style) -> Round:
    """The engine, and the bare writer with its rows."""
    path = folder / "store.db"
    try:
        ran = run_engine(engine, str(path), folder, style, at_once, runs)
        transactions = bare_sqlite.count_transactions(path)
        ordered = bare_sqlite.in_order(path, [*ran.warm, *ran.commits])
        bare_seconds = sum(bare_sqlite.write_again(path, ordered, transactions))
        return Round(
            style=style,
            engine=ran.rate,
            bare=STEPS * (runs + ran.warm_runs) / bare_seconds,
            batch=len(ordered) / transactions,
        )
    finally:
        for left in folder.glob("*.db*"):
            left.unlink()


def take_peers_turn(folder: Path, at_once: int, runs: int, peer: Peer, turn: int) -> Taken:
    """A peer on a file of its own."""
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
        return peer.take_turn(f"sqlite:///{own}/peer.db", turn, at_once, runs)


def _report(levels: Mapping[int, Level], field: Field) -> Report:
    names = [peer.name for peer in field.peers]
    ratios = contest.ratios(levels)
    return Report(
        name=NAME,
        columns=contest.columns(names, PEERS),
        rows=tuple(contest.row(at_once, level, names) for at_once, level in levels.items()),
        ratios=ratios,
        targets=TARGETS | {key: target for key, target in PEER_TARGETS.items() if key in ratios},
        figures=contest.figures(levels),
        plots=(_plot(levels, names),),
        notes=(*contest.style_notes(levels, PEERS), *field.notes),
    )


def _plot(levels: Mapping[int, Level], names: list[str]) -> Plot:
    titles = {OURS: "Runstone", **{name: PEERS[name].title for name in names}}
    bare = {"its rows by bare sqlite3": tuple(level.bare.middle for level in levels.values())}
    found = {titles[name]: rates for name, rates in contest.series(levels, titles).items()}
    return Plot(
        name=NAME,
        title="Five-step runs on SQLite, synchronous=FULL",
        kind="bars",
        x_label="runs at once; below each bar, in how many processes",
        y_label="steps per second",
        places=tuple(str(at_once) for at_once in levels),
        series={"Runstone": found.pop("Runstone"), **bare, **found},
        feet={titles[name]: counts for name, counts in contest.feet(levels, titles).items()},
    )


BENCHMARK: Final = Benchmark(
    NAME, "steps per second of five-step runs on SQLite, beside DBOS and bare sqlite3", run
)
