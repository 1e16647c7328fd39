"""The bare side of a benchmark does what ours did: it writes the same rows and sends the same requests."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from benchmarks import bare_sqlite
from benchmarks.apps import nap
from benchmarks.effects import Ping
from benchmarks.engine_runs import open_engine, run_engine
from benchmarks.outbox_runs import Unfinished, open_dispatchers, take_out
from benchmarks.outbox_sqlite import SqliteGround
from benchmarks.suite import append_sqlite, latency, outbox, sleepers, steps_sqlite
from benchmarks.suite.fold import stored_history
from benchmarks.team import Style, Team
from benchmarks.workloads import five_step_run, mixed_run
from runstone import seconds
from runstone.core.commit import Commit
from runstone.stores.sqlite import SqliteStore
from runstone.stores.sqlite.files import open_writer
from tests.servers.http_receiver import Request


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
