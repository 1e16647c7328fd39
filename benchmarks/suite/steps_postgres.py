"""Steps per second through the whole engine on PostgreSQL, beside peers and the same rows by bare asyncpg.

Runs of five steps, so many at once: each client starts a run, waits for its result, starts the next. They
are made in one process, and in two that share the database, the runs and the clients. In every round DBOS
and LangGraph take their turn on the same server, equally durable, each in an environment of its own and in
a database of its own, and as well in one process and in two; and Restate, which has a log of its own on the
same disk. So does a bare writer, with the transactions that the store made of the engine's commits; both
databases have to hold the same rows then.

Rounds alternate between styles, and of each the better one counts: `contest.py` says how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import bare_postgres, contest
from benchmarks.apps import STEPS
from benchmarks.contest import OURS, Level, Plan, Round, Taken
from benchmarks.engine_runs import open_engine, run_engine
from benchmarks.measure import scaled, scratch_folder
from benchmarks.peers.field import Field, Kind, Peer, open_field
from benchmarks.plots import Plot
from benchmarks.postgres import DURABLE, Ground, on_postgres
from benchmarks.registry import Benchmark, Progress
from benchmarks.report import Report, Target, at_least
from benchmarks.team import Style, Team

NAME: Final = "steps-postgres"
RUNS: Final = {1: 100, 16: 320, 64: 640, 256: 1024}
"""How many runs the engine makes in one round, by how many are under way at once."""

PEER_RUNS: Final = {1: 20, 16: 48, 64: 96, 256: 256}
FULL: Final = Plan(engine_turns=6, peer_turns=3)
QUICK: Final = Plan(engine_turns=1, peer_turns=1, engine_scale=0.4, peer_scale=0.25)
TARGETS: Final = {"limit@64": at_least(0.6), "limit@256": at_least(0.6)}
PEER_TARGETS: Final = {"dbos": at_least(25), "best": at_least(8)}
SAME_SERVER: Final = "on the same server, every connection asked how durable it is"
PEERS: Final = {
    "dbos": Kind(title="DBOS", durable=DURABLE, note=SAME_SERVER),
    "langgraph": Kind(title="LangGraph", durable=DURABLE, note=SAME_SERVER),
    "restate": Kind(
        title="Restate",
        durable={"fsync": "on"},
        times=4,
        server="restate-server",
        note="with a log of its own on the same disk, which its server syncs; "
        "its second process is for the service, beside that of its clients",
    ),
}
"""By the name of their environments and scripts."""


def measured(ground: Ground, quick: bool, progress: Progress, scale: float) -> Report:
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
                partial(take_round, ground, folder, engine, at_once, runs),
                partial(take_peers_turn, ground, folder, at_once, peer_runs),
                progress,
            )
        return _report(levels, field, ground)


def take_round(ground: Ground, folder: Path, engine: Team, at_once: int, runs: int, style: Style) -> Round:
    """The engine, and the bare writer with its rows."""
    store, bare = ground.database("store"), ground.database("bare")
    ran = run_engine(engine, store, folder, style, at_once, runs)
    taken = asyncio.run(bare_postgres.write_again(store, bare, ran.commits, ran.warm, style.processes))
    return Round(
        style=style,
        engine=ran.rate,
        bare=STEPS * runs / taken.seconds,
        batch=sum(map(len, taken.batches)) / len(taken.batches),
    )


def take_peers_turn(ground: Ground, folder: Path, at_once: int, runs: int, peer: Peer, turn: int) -> Taken:
    """A peer in an empty database of ours, or with a folder for a server of its own."""
    if peer.kind.server is None:
        return peer.take_turn(ground.database(peer.name, migrated=False), turn, at_once, runs)
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
        return peer.take_turn(own, turn, at_once, runs)


def _report(levels: Mapping[int, Level], field: Field, ground: Ground) -> Report:
    names = [peer.name for peer in field.peers]
    ratios = contest.ratios(levels)
    return Report(
        name=NAME,
        columns=contest.columns(names, PEERS),
        rows=tuple(contest.row(at_once, level, names) for at_once, level in levels.items()),
        ratios=ratios,
        targets=TARGETS | _peer_targets([name for name in names if name in ratios]),
        figures=contest.figures(levels),
        plots=(_plot(levels, names),),
        notes=(ground.note, *contest.style_notes(levels, PEERS), *field.notes),
    )


def _peer_targets(names: Sequence[str]) -> dict[str, Target]:
    """Against DBOS if it is here; against the best peer only if none is missing, or it might be that one."""
    found = {"dbos": PEER_TARGETS["dbos"]} if "dbos" in names else {}
    return found | ({"best": PEER_TARGETS["best"]} if len(names) == len(PEERS) else {})


def _plot(levels: Mapping[int, Level], names: Sequence[str]) -> Plot:
    titles = {OURS: "Runstone", **{name: PEERS[name].title for name in names}}
    return Plot(
        name=NAME,
        title="Five-step runs on PostgreSQL",
        kind="bars",
        x_label="runs at once; below each bar, in how many processes",
        y_label="steps per second",
        places=tuple(str(at_once) for at_once in levels),
        series={titles[name]: rates for name, rates in contest.series(levels, titles).items()},
        feet={titles[name]: counts for name, counts in contest.feet(levels, titles).items()},
    )


BENCHMARK: Final = Benchmark(
    NAME,
    "steps per second of five-step runs on PostgreSQL, beside three peers and bare asyncpg",
    on_postgres(NAME, measured),
)
