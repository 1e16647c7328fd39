"""What reaches a terminal: nothing that it would obey, whoever wrote it; and to a program still the same."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import msgspec
import pytest

from runstone.cli import main, output
from runstone.cli.pipeline import _bar
from runstone.errors import NotFound
from runstone.pipeline.runner import Progress

HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\x7fd\u202ee\U000e0001f\rg\nh\ti"
"""Sets the title of a terminal, its colour, and the direction of what follows; and forges a line."""


def obeyed(text: str) -> str:
    return "".join(char for char in text if not char.isprintable())


def test_a_line_stays_one_and_has_nothing_to_obey(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(HOSTILE)
    said = capsys.readouterr().out
    assert obeyed(said) == "\n"
    assert said.startswith("a\\x1b]0;owned\\x07b\\x9b31mc\\x7fd\\u202ee")


def test_cells_of_a_table_too(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("one", "two"), [(HOSTILE, 1), (HOSTILE, None)])
    assert obeyed(capsys.readouterr().out) == "\t\n\t\n"


def test_a_table_at_a_terminal_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    output.table(("one", "two"), [(f"[bold]{HOSTILE}", 1)])
    said = capsys.readouterr().out
    assert obeyed(said).strip("\n") == ""
    assert "[bold]" in said


@pytest.mark.parametrize("columns", [200, 80, 40])
def test_an_id_is_never_cut_however_narrow_the_terminal_is(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one has 80 columns, whatever we say
    monkeypatch.setenv("COLUMNS", str(columns))
    run_id = "01a1e11d-e85d-7c0b-ba27-45188d4c95b8"
    row = (run_id, "COMPLETED", "a_handler_of_mine", "a-rather-long-key", "2026-11-15T21:29:56Z", "x y " * 9)
    output.table(("run", "status", "handler", "key", "created", "reason"), [row, (run_id, *[None] * 5)])
    said = capsys.readouterr().out
    assert said.count(run_id) == 2
    assert "COMPLETED" in said
    assert "…" not in said
    assert ("2026-11-15T21:29:56Z" in said) is (columns == 200)


def test_a_table_without_rows_has_headings_at_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    output.table(("run", "status"), [])
    assert capsys.readouterr().out.split() == ["run", "status"]


@pytest.mark.parametrize("say", [output.say_json, output.say_data])
def test_json_says_the_same_to_a_program(capsys: pytest.CaptureFixture[str], say: Any) -> None:
    value = {HOSTILE: [HOSTILE, "ä €", 1], "raw": msgspec.Raw('"\x9b\u2028"'.encode())}
    say(value)
    said = capsys.readouterr().out
    assert set(obeyed(said)) == {"\n"}
    assert json.loads(said) == {HOSTILE: [HOSTILE, "ä €", 1], "raw": "\x9b\u2028"}
    assert "ä €" in said


def test_an_error_is_told_in_one_harmless_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise NotFound(f"There is no {HOSTILE}")

    monkeypatch.setattr(main.cli, "main", refuse)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == main.FAILED
    assert obeyed(capsys.readouterr().err) == "\n"


def test_an_error_of_ours_is_shown_whole_and_is_no_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own exit code would be 1: that something was found."""

    def mistaken(*given: Any, **more: Any) -> None:
        raise ZeroDivisionError(HOSTILE)

    monkeypatch.setattr(main.cli, "main", mistaken)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == main.FAILED
    said = capsys.readouterr().err
    assert "in mistaken" in said
    assert set(obeyed(said)) == {"\n"}


def test_log_lines_keep_their_breaks_and_nothing_else() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, __file__, 1, "it says %s", (HOSTILE,), sys.exc_info()
        )
    said = output.LogLines("%(levelname)s %(message)s").format(record)
    assert set(obeyed(said)) == {"\n"}
    assert said.startswith("ERROR it says a\\x1b]0;")
    assert "Traceback" in said.splitlines()[2]


def test_the_process_logs_that_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    output.log_to_stderr("%(message)s", logging.INFO)
    root.info("\x1b[2J")
    assert capsys.readouterr().err == "\\x1b[2J\n"


def test_a_bar_shows_what_is_worked_on_as_it_is_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    shown: list[str] = []
    from rich.progress import Progress as Bars

    monkeypatch.setattr(Bars, "update", lambda self, task, **more: shown.append(more["description"]))
    with _bar() as watch:
        watch(Progress(state="DRAFT", item=HOSTILE, done=0, total=1))
    assert obeyed("".join(shown)) == ""
