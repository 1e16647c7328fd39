"""Every benchmark runs, says what it must, and compares like with like. Nothing in here is timed."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command_line
from benchmarks import bare_sqlite, measure
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress, benchmarks
from benchmarks.report import Report, at_least
from benchmarks.suite import append_sqlite
from benchmarks.suite.fold import stored_history
from benchmarks.workloads import five_step_run, mixed_run
from runstone.core.commit import Commit
from runstone.stores.sqlite.files import open_writer

TINY = "0.003"
KEYS = {
    "append-sqlite": ({f"limit@{n}" for n in (1, 16, 64, 256)}, {"limit@64", "limit@256"}),
    "fold": ({"fold", "linear"}, {"fold", "linear"}),
}
"""The ratios that others look for, and those with a target, by benchmark."""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(command_line, "PLOTS", tmp_path / "plots")


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
