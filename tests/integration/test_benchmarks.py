"""Every benchmark runs, says what it must, and compares like with like. Nothing in here is timed."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command_line
from benchmarks import bare_sqlite, contest, measure
from benchmarks.apps import nap
from benchmarks.companion import Companion, CompanionFailed
from benchmarks.effects import Ping
from benchmarks.engine_runs import open_engine, run_engine
from benchmarks.outbox_runs import Unfinished, open_dispatchers, take_out
from benchmarks.outbox_sqlite import SqliteGround
from benchmarks.peers import environment, field
from benchmarks.peers.environment import PeerMissing
from benchmarks.plots import Plot, svg
from benchmarks.registry import Benchmark, Progress, benchmarks
from benchmarks.report import Report, at_least
from benchmarks.suite import append_sqlite, latency, outbox, sleepers, steps_sqlite
from benchmarks.suite.fold import stored_history
from benchmarks.team import Style, Team, styles
from benchmarks.workloads import five_step_run, mixed_run
from runstone import seconds
from runstone.core.commit import Commit
from runstone.stores.sqlite import SqliteStore
from runstone.stores.sqlite.files import open_writer
from tests.servers.http_receiver import Request

TINY = "0.003"
KEYS = {
    "append-grown": ({"grown"}, {"grown"}),
    "append-postgres": ({f"limit@{n}" for n in (1, 16, 64, 256)}, {"limit@64", "limit@256"}),
    "append-sqlite": ({f"limit@{n}" for n in (1, 16, 64, 256)}, {"limit@64", "limit@256"}),
    "commit-latency": ({"bare", "step", "insert"}, {"bare", "step"}),
    "feed": ({"feed", "limit"}, {"feed"}),
    "fold": ({"fold", "linear"}, {"fold", "linear"}),
    "folder": ({"limit", "replay"}, {"limit", "replay"}),
    "latency": ({"bare"}, {"bare"}),
    "outbox": ({"limit", "limit@sqlite", "http"}, {"limit", "http"}),
    "recovery": ({"recovery"}, set()),
    "sleepers": ({"memory"}, {"memory"}),
    "steps-postgres": ({f"limit@{n}" for n in (1, 16, 64, 256)}, {"limit@64", "limit@256"}),
    "steps-sqlite": ({f"limit@{n}" for n in (1, 16, 64, 256)}, {"limit@64", "limit@256"}),
}
"""The ratios that others look for, and those with a target, by benchmark."""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(command_line, "PLOTS", tmp_path / "plots")
    monkeypatch.setattr(field, "python_of", no_peer)


def no_peer(name: str) -> Path:
    """No test installs anything."""
    raise PeerMissing(f"no {name} in a test")


def made_up(ratio: float) -> Benchmark:
    """One that finds what it is told to find."""
    bars = Plot(
        name="made-up", title="t", kind="bars", x_label="x", y_label="y", places=("1",), series={"s": (1.0,)}
    )

    def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
        progress("pretending")
        return Report(
            name="made-up",
            columns=("what",),
            rows=(("it",),),
            ratios={"http": ratio},
            targets={"http": at_least(0.5)},
            figures={},
            plots=(bars,),
        )

    return Benchmark("made-up", "finds what it is told to find", run)


def call(known: Sequence[Benchmark], *arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(command_line.program({each.name: each for each in known}), arguments)
    return found.exit_code, found.output


@pytest.mark.parametrize("name", benchmarks())
def test_a_benchmark_runs_and_writes_what_it_found(name: str, tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    code, output = call(
        [*benchmarks().values()], name, "--quick", "--strict", "--scale", TINY, "--json", str(written)
    )
    found: dict[str, Any] = json.loads(written.read_bytes())
    assert code == any(not verdict["met"] for verdict in found["verdicts"].values())
    assert found["name"] == name
    ratios, targets = KEYS.get(name, (set(), set()))
    assert ratios <= found["ratios"].keys()
    assert targets <= found["targets"].keys()
    assert found["ratios"]
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert found["targets"].keys() == found["verdicts"].keys()
    assert found["targets"].keys() <= found["ratios"].keys()
    assert all(isinstance(figure, float) for figure in found["figures"].values())
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["sqlite"] == sqlite3.sqlite_version
    assert all(key in output for key in found["ratios"])
    assert not (tmp_path / "plots").exists(), "a quick run draws nothing"
    assert not list((tmp_path / "scratch").glob("*")), "nothing is left behind"


def test_a_missed_target_is_reported_and_fails_only_if_asked_to() -> None:
    code, output = call([made_up(0.25)], "made-up", "--quick")
    assert code == 0
    assert "MISSED" in output
    assert call([made_up(0.25)], "made-up", "--quick", "--strict")[0] == 1
    assert call([made_up(0.75)], "made-up", "--quick", "--strict")[0] == 0


def test_all_runs_every_one_draws_the_plots_and_writes_a_list(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    assert call([made_up(0.75)], "all", "--json", str(written))[0] == 0
    assert [each["name"] for each in json.loads(written.read_bytes())] == ["made-up"]
    assert (tmp_path / "plots" / "made-up.svg").read_text("utf-8").startswith("<svg ")


def test_none_of_the_benchmarks_that_others_look_for_is_missing() -> None:
    assert KEYS.keys() <= benchmarks().keys()


def test_help_and_list_name_every_benchmark() -> None:
    for arguments in (["--help"], ["list"]):
        code, output = call([*benchmarks().values()], *arguments)
        assert code == 0
        for benchmark in benchmarks().values():
            assert benchmark.name in output
            assert benchmark.description.split()[0] in output


def unfinished(histories: Sequence[list[Commit]]) -> list[list[Commit]]:
    return [history[: 2 + number % 7] for number, history in enumerate(histories)]


@pytest.mark.parametrize("at_once", [1, 4])
def test_store_and_bare_writers_write_equal_rows(at_once: int, tmp_path: Path) -> None:
    histories = unfinished([five_step_run() for _ in range(9)])
    taken = append_sqlite.take_round(tmp_path, histories, at_once)
    assert taken.commits == sum(map(len, histories))
    assert taken.commits / at_once <= taken.transactions <= taken.commits


def test_they_do_for_every_kind_of_row(tmp_path: Path) -> None:
    history = [decision.commit for decision in mixed_run(60, rounds_at_once=2)]
    taken = append_sqlite.take_round(tmp_path, [history], 1)
    assert taken.transactions == len(history)


async def test_the_comparison_sees_every_table_that_is_written(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    histories = unfinished([five_step_run() for _ in range(3)])
    histories.append([decision.commit for decision in mixed_run(24)])
    await append_sqlite.write_with_store(store, histories, 2)
    held = {table for table, (count, _) in bare_sqlite.contents(store).items() if count}
    assert held == {
        *("streams", "orchestration_events", "signals", "runs", "steps", "effects", "outbox_events"),
        *("tool_calls", "run_queue", "migrations", "sqlite_sequence"),
    }


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE streams SET fence = 7 WHERE kind = 'RUN'",
        "UPDATE run_queue SET attempts = 7",
        "DELETE FROM run_queue",
        "UPDATE steps SET metadata = '{}'",
    ],
)
async def test_one_difference_is_enough_to_be_unequal(change: str, tmp_path: Path) -> None:
    history = five_step_run()[:3]
    for name in ("store.db", "bare.db"):
        await append_sqlite.write_with_store(tmp_path / name, [history], 1)
    bare_sqlite.compare(tmp_path / "store.db", tmp_path / "bare.db")
    with closing(open_writer(str(tmp_path / "bare.db"))) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO maintenance (reason) VALUES ('test')")
        connection.execute(change)
        connection.execute("DELETE FROM maintenance")
        connection.execute("COMMIT")
    with pytest.raises(bare_sqlite.Unequal):
        bare_sqlite.compare(tmp_path / "store.db", tmp_path / "bare.db")


async def test_a_mixed_history_has_the_size_that_was_asked_for() -> None:
    events, _ = await stored_history(100)
    assert [event.run_seq for event in events] == [*range(1, 101)]
    assert {event.aggregate_type for event in events} == {"RUN", "STEP", "TOOL_CALL", "EFFECT"}


# The engine beside a bare writer


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with open_engine(tmp_path_factory.mktemp("engine")) as team:
        yield team


def test_the_engine_commits_a_run_of_five_steps_seven_times(engine: Team, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ran = run_engine(engine, str(path), tmp_path, Style(1), 2, 3)
    assert len(ran.warm) == 7
    assert len(ran.commits) == 7 * 3
    assert ran.warm_runs == 1
    assert [each.name for each in tmp_path.glob("*.pickle")] == []


def test_two_processes_have_a_share_each_of_the_runs_on_one_file(engine: Team, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ran = run_engine(engine, str(path), tmp_path, Style(2), 4, 9)
    written = bare_sqlite.in_order(path, [*ran.warm, *ran.commits])
    owners = {write.lease.owner for each in written for write in each.writes if write.lease is not None}
    assert ran.warm_runs == 2
    assert len(written) == 7 * (9 + 2)
    assert len(owners - {None}) == 2


@pytest.mark.parametrize(("at_once", "style"), [(1, Style(1)), (4, Style(1)), (4, Style(2))])
def test_what_the_engine_wrote_is_written_again_equally(
    at_once: int, style: Style, engine: Team, tmp_path: Path
) -> None:
    taken = steps_sqlite.take_round(tmp_path, engine, at_once, 6, style)
    assert taken.style == style
    assert 1 <= taken.batch <= at_once
    assert taken.engine > 0
    assert taken.bare > 0


def test_as_many_steps_are_timed_as_bare_commits_of_steps(tmp_path: Path) -> None:
    taken = latency.take_round(tmp_path, 3)
    assert len(taken.steps) == len(taken.commits) == 15


# The outbox beside a bare writer, and beside its HTTP client


@pytest.fixture(scope="module")
def dispatchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with open_dispatchers(tmp_path_factory.mktemp("dispatchers")) as team:
        yield team


@pytest.mark.parametrize("style", outbox.STYLES, ids=lambda style: style.title)
def test_what_dispatchers_finished_is_finished_again_equally(
    style: Style, dispatchers: Team, tmp_path: Path
) -> None:
    taken = outbox.take_round(SqliteGround(tmp_path), dispatchers, tmp_path, style, 3)
    assert taken.style == style
    assert taken.outbox > 0
    assert taken.bare > 0
    assert not list(tmp_path.glob("*.db*"))


def test_an_effect_that_the_bare_side_leaves_out_is_found(dispatchers: Team, tmp_path: Path) -> None:
    class Forgetful(SqliteGround):
        def finish_again(
            self, commits: Sequence[Commit], claims: Sequence[int], effect_type: str, writers: int
        ) -> float:
            return super().finish_again(commits[:-1], claims, effect_type, writers)

    with pytest.raises(bare_sqlite.Unequal):
        outbox.take_round(Forgetful(tmp_path), dispatchers, tmp_path, outbox.STYLES[0], 2)


def test_runs_that_did_not_end_are_no_result(dispatchers: Team, tmp_path: Path) -> None:
    asyncio.run(outbox.ask(SqliteGround(tmp_path), 2, lambda number: Ping(number=number)))
    with pytest.raises(Unfinished, match="2 runs have ended, of 3"):
        take_out(dispatchers, SqliteGround(tmp_path).place, tmp_path, outbox.STYLES[0], 3)


def test_both_sides_send_the_same_requests(tmp_path: Path) -> None:
    received = tmp_path / "requests.ndjson"
    with outbox.receiver(received) as url:
        outbox.take_http_round(SqliteGround(tmp_path), url, 2)
    requests = [msgspec.json.decode(line, type=Request) for line in received.read_bytes().splitlines()]
    by_outbox, alone = requests[:10], requests[10:]
    assert len(alone) == len({request.headers["idempotency-key"] for request in by_outbox}) == 10
    for first, second in zip(by_outbox, alone, strict=True):
        assert (first.method, first.path) == (second.method, second.path)
        assert set(first.headers) == set(second.headers) - {"connection"}
        assert first.json().keys() == second.json().keys()


# Processes that work together


class Scripted(Companion):
    """Gives the answers that it was given, and notes what it is asked."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = [*answers]
        self.asked: list[dict[str, Any]] = []

    def tell(self, **question: Any) -> None:
        self.asked.append(question)

    def hear(self) -> dict[str, Any]:
        return self._answers.pop(0)


def test_what_counts_is_the_time_from_the_first_beginning_to_the_last_end() -> None:
    members = [
        Scripted({"warm": 1}, {"began": 5.0, "ended": 7.0}, {"n": 0}),
        Scripted({"warm": 2}, {"began": 4.0, "ended": 6.5}, {"n": 1}),
    ]
    turn = Team(members).take_turn(2, 5, 9, url="u")
    assert (turn.seconds, turn.warm, turn.found) == (3.0, 3, [{"n": 0}, {"n": 1}])
    assert [each.asked for each in members] == [
        [{"url": "u", "place": 0, "at_once": 3, "runs": 5}, {}, {}],
        [{"url": "u", "place": 1, "at_once": 2, "runs": 4}, {}, {}],
    ]


def test_none_goes_on_before_all_are_prepared_and_none_ends_before_all_have_run() -> None:
    said: list[str] = []

    class Telling(Scripted):
        def hear(self) -> dict[str, Any]:
            found = super().hear()
            said.append(min(found))
            return found

    answers = ({"warm": 1}, {"began": 0.0, "ended": 1.0}, {"version": "9"})
    Team([Telling(*answers), Telling(*answers)]).take_turn(2, 2, 2)
    assert said == ["warm", "warm", "began", "began", "version", "version"]


def test_who_has_one_client_has_one_process() -> None:
    assert [each.title for each in styles(1)] == ["one process"]
    assert [each.title for each in styles(2)] == ["one process", "two processes"]
    assert [each.title for each in styles(64, ("tasks", "threads"))] == [
        *("tasks, one process", "threads, one process", "tasks, two processes", "threads, two processes")
    ]


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        (4, [0, 1, 2, 3]),
        (2, [0, None, 1, None]),
        (1, [0, None, None, None]),
        (9, [0, 1, 2, 3]),
    ],
)
def test_turns_are_spread_over_the_rounds(turns: int, found: list[int | None]) -> None:
    assert [contest.turn_in(number, 4, turns) for number in range(4)] == found


def test_a_level_counts_in_the_engines_better_style_and_its_bare_rounds_with_it() -> None:
    rounds = [
        contest.Round(style=Style(processes), engine=engine, bare=bare, batch=bare / 100)
        for processes, engine, bare in (
            (1, 10.0, 100.0),
            (2, 30.0, 200.0),
            (1, 90.0, 100.0),
            (2, 40.0, 200.0),
        )
    ]
    found = contest.Level.of(rounds, {})
    assert (found.engine.rate, found.engine.style) == (50.0, Style(1))
    assert (found.bare.middle, found.batch) == (100.0, 1.0)
    assert (found.limit.lowest, found.limit.highest) == (0.1, 0.9)
    assert contest.figures({64: found}).items() >= {
        ("engine_steps_per_second@64", 50.0),
        ("engine_steps_per_second@64 in one process", 50.0),
        ("engine_steps_per_second@64 in two processes", 35.0),
    }
    assert contest.style_notes({64: found, 256: found}, {}) == [
        "Runstone was fastest in one process with 64, 256 at once"
    ]


# Peers

FAKE = """
import json, sys

def say(**said):
    print(json.dumps(said), flush=True)
    return sys.stdin.readline()

while line := sys.stdin.readline():
    asked = json.loads(line)
    if asked["place"] > %d:
        raise SystemExit("the database is locked")
    rate = 100 * asked["at_once"] if asked["way"] == "tasks" else 10
    path = asked["url"].removeprefix("sqlite:///")
    say(warm=1)
    with open(path, "a") as file:
        print(asked["runs"] + 1, file=file)
    say(began=3.0, ended=3.0 + 5 * asked["runs"] / rate)
    held = sum(map(int, open(path)))
    print(json.dumps({"version": "9", "journal_mode": "wal", "synchronous": %d, "ended": held,
                      "steps": 5 * held}), flush=True)
"""


@pytest.fixture
def fake_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(synchronous: int = 2, last_place: int = 1) -> None:
        script = tmp_path / "fake_peer.py"
        script.write_text(FAKE % (last_place, synchronous))
        monkeypatch.setattr(field, "command_of", lambda name, kind: [sys.executable, script])

    return install


def test_a_peer_that_cannot_be_installed_is_told_and_not_compared() -> None:
    report = steps_sqlite.run(True, lambda doing: None, float(TINY))
    assert report.notes[-1] == "DBOS was not measured, for it cannot be installed here: no dbos in a test"
    assert not [key for key in report.ratios if key.startswith(("dbos", "best"))]
    assert "dbos" not in report.targets
    assert "DBOS" not in report.columns


def test_a_peer_is_compared_at_its_better_style(fake_peer: Callable[..., None]) -> None:
    fake_peer()
    report = steps_sqlite.run(True, lambda doing: None, float(TINY))
    ours = {n: report.figures[f"engine_steps_per_second@{n}"] for n in (1, 16, 64, 256)}
    for at_once, rate in ours.items():
        assert report.ratios[f"dbos@{at_once}"] == pytest.approx(rate / (100 * at_once))
        assert report.ratios[f"best@{at_once}"] == pytest.approx(rate / 25_600)
    assert report.ratios["dbos"] == pytest.approx(max(ours.values()) / 25_600)
    assert report.targets["dbos"] == at_least(15)
    assert all(row[-1].endswith("in tasks, one process") for row in report.rows)
    assert all(" in one process" in row[1] or " in two processes" in row[1] for row in report.rows)
    (plot,) = report.plots
    assert plot.feet["DBOS"] == ("1", "1", "1", "1")
    assert svg(plot).count("in how many processes") == 1


def test_a_peer_that_is_less_durable_is_not_compared(fake_peer: Callable[..., None]) -> None:
    fake_peer(synchronous=1)
    with pytest.raises(field.Unlike):
        steps_sqlite.run(True, lambda doing: None, float(TINY))


def test_a_style_in_which_a_peer_fails_is_left_out_and_that_is_said(
    fake_peer: Callable[..., None], tmp_path: Path
) -> None:
    fake_peer(last_place=0)
    with field.open_field(steps_sqlite.PEERS, tmp_path, lambda doing: None) as found:
        (peer,) = found.peers
        taken = [steps_sqlite.take_peers_turn(tmp_path, 4, 6, peer, turn) for turn in (0, 1, 2, 3, 4, 6)]
    assert [rate for _, rate in taken] == [
        pytest.approx(400),
        pytest.approx(10),
        None,
        None,
        pytest.approx(400),
        None,
    ]
    best = contest.Best.of(taken)
    assert best is not None
    assert best.all.keys() == {Style(1, "tasks"), Style(1, "threads")}
    assert contest.Best.of([(Style(1), 5.0), (Style(1), None)]) is None
    assert found.notes[1:] == [
        f"DBOS in {way}, two processes, 4 at once, was left out, for it failed: the database is locked"
        for way in ("tasks", "threads")
    ]


@pytest.mark.skipif(
    not environment.folder_of("dbos").exists(),
    reason="DBOS is not installed: python -m benchmarks steps-sqlite does that",
)
def test_dbos_does_what_it_is_compared_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "python_of", environment.python_of)
    with field.open_field(steps_sqlite.PEERS, tmp_path, lambda doing: None) as found:
        (peer,) = found.peers
        taken = [steps_sqlite.take_peers_turn(tmp_path, 2, 3, peer, turn) for turn in range(4)]
        assert [style for style, _ in taken] == peer.kind.styles(2)
        assert not peer.failed
        assert all(rate is not None and rate > 0 for _, rate in taken)
        assert peer.version in found.notes[0]


def test_half_an_environment_is_never_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCKS", tmp_path)
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "environments")
    (tmp_path / "odd.lock").write_text("=== this is no requirement ===")
    with pytest.raises(PeerMissing):
        environment.python_of("odd")
    assert not list((tmp_path / "environments").iterdir())


@pytest.mark.parametrize("peer", ["dbos", "langgraph", "restate"])
def test_the_lock_file_of_a_peer_names_hashes_and_no_host(peer: str) -> None:
    lock = (environment.LOCKS / f"{peer}.lock").read_text("utf-8")
    assert f"{peer}==" in lock or f"{peer}-sdk==" in lock
    assert "--hash=sha256:" in lock
    assert "://" not in lock


def test_a_companion_that_dies_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input(); raise SystemExit('no more')"]
    with Companion(command, tmp_path) as companion, pytest.raises(CompanionFailed, match="no more"):
        companion.ask(do="something")


# Sleepers


async def test_a_run_written_in_bulk_sleeps_as_one_of_the_engine(tmp_path: Path) -> None:
    playable = nap()
    async with await SqliteStore.open(tmp_path / "store.db") as store:
        async with playable.app.running(store):
            handle = await playable.app.start(playable.handler, 3600.0)
            while "RUN_SUSPENDED" not in [event.event_type async for event in handle.events()]:
                await playable.app.runtime.changed(handle.id, 0.01)
        (same,) = await sleepers.fall_asleep(store, 1, seconds(3600))
        (other,) = await sleepers.fall_asleep(store, 1, seconds(3601))
        await sleepers.compare(store, handle.id, same)
        with pytest.raises(sleepers.Unequal):
            await sleepers.compare(store, handle.id, other)


async def test_what_does_not_wake_is_not_counted_as_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleepers, "MOST_SECONDS", 0.1)
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store:
        with pytest.raises(sleepers.NotAwake, match="2 of 2"):
            await sleepers.wake(store, path, 2, seconds(0.3))
