"""What the supervisor knows without a process: how long to wait, how lines are marked, how many cores."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from runstone.cli import worker
from runstone.cli.main import cli
from runstone.cli.supervisor import LONGEST, STEADY, Backoff, leash, marked, usable_cores


def test_each_death_costs_twice_as_long() -> None:
    backoff = Backoff()
    waits = [backoff.after(lived=1.0) for _ in range(9)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert max(waits) == LONGEST


def test_a_minute_of_life_is_a_new_story() -> None:
    backoff = Backoff()
    assert [backoff.after(lived) for lived in (0, 0, STEADY, 0)] == [0.5, 1, 0.5, 1]


@pytest.mark.parametrize(
    "written",
    [
        ["one\n", "two\n"],
        ["one", "\n", "", "t", "wo\n"],
        ["one\ntwo\n"],
        ["one\nt", "wo", "\n"],
    ],
)
def test_each_line_is_marked_once(written: list[str]) -> None:
    plain = io.StringIO()
    stream = marked(plain, "[2] ")
    assert [stream.write(text) for text in written] == [len(text) for text in written]
    assert plain.getvalue() == "[2] one\n[2] two\n"


def test_a_marked_stream_is_the_stream_in_all_else() -> None:
    plain = io.StringIO()
    stream = marked(plain, "[2] ")
    stream.writelines(["\n", "end"])
    stream.flush()
    assert stream.getvalue() == "[2] \n[2] end"  # type: ignore[attr-defined]
    assert not stream.isatty()


def test_who_was_started_by_nobody_has_no_leash() -> None:
    assert leash({"PATH": "/bin"}) is None


def test_cores_that_may_not_be_used_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.mark.parametrize(("given", "count"), [("3", 3), ("auto", 7)])
def test_processes_are_counted(monkeypatch: pytest.MonkeyPatch, given: str, count: int) -> None:
    asked: list[int] = []

    class Recorder:
        def __init__(self, command: list[str], count: int) -> None:
            assert command == [sys.executable, "-m", "runstone", "worker", "no.py:app", "--processes", given]
            asked.append(count)

        async def run(self) -> int:
            return 0

    monkeypatch.setattr(sys, "argv", ["runstone", "worker", "no.py:app", "--processes", given])
    monkeypatch.syspath_prepend(os.getcwd())
    monkeypatch.setattr(worker, "Supervisor", Recorder)
    monkeypatch.setattr(worker, "usable_cores", lambda: 7)
    told = CliRunner().invoke(cli, ["worker", "no.py:app", "--processes", given])
    assert (told.exit_code, asked) == (0, [count])


def test_the_working_folder_hides_no_modules_that_it_did_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert worker._once_more()[:4] == [sys.executable, "-P", "-m", "runstone"]


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many", ""])
def test_what_is_no_number_of_processes_is_refused(given: str) -> None:
    told = CliRunner().invoke(cli, ["worker", "no.py:app", "--processes", given])
    assert told.exit_code == 2
    assert "neither a number from 1 on nor 'auto'" in told.output
