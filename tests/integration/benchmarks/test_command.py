"""The command: every benchmark runs and says what it must. Nothing in here is timed."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command_line
from benchmarks.plots import Plot
from benchmarks.registry import Benchmark, Progress, benchmarks
from benchmarks.report import Report, at_least

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
