"""Code that cannot be loaded: its author sees their own lines, and what is wrong in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runstone.cli.loading import load
from runstone.errors import SettingsInvalid


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is loaded here is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.chdir(tmp_path)


def written(name: str, source: str) -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return path


IN_A_FUNCTION = "def broken():\n    return 1 / 0\n\nbroken()\n"


@pytest.mark.parametrize(
    ("source", "reason", "frames"),
    [
        ("from nowhere import thing\n", "ModuleNotFoundError: No module named 'nowhere'", 1),
        ("from runstone import thing\n", "ImportError: cannot import name 'thing' from 'runstone'", 1),
        (IN_A_FUNCTION, "ZeroDivisionError: division by zero", 2),
        ("def (\n", "SyntaxError: invalid syntax", 1),
        ("raise AssertionError\n", "AssertionError", 1),
        ("import sys\nsys.exit(3)\n", r"it ended the program, with exit\(3\)", 1),
        ("open('nowhere')\n", r"FileNotFoundError: .* 'nowhere'", 1),
        ("import runstone\nrunstone.App('a', version=' ')\n", "RegistrationError: ", 3),
    ],
)
@pytest.mark.parametrize("place", ["desk_one.py", "desk_one", "desk_package/desk_one.py"])
def test_it_is_shown_from_its_own_line_on(
    place: str, source: str, reason: str, frames: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(place if place.endswith(".py") else f"{place}.py", source)
    if "/" in place:
        path.with_name("__init__.py").touch()
    with pytest.raises(SettingsInvalid, match=f"^{place} cannot be loaded: {reason}"):
        load(place)
    said = capsys.readouterr().err
    assert said.count('  File "') == frames
    first = next(line for line in said.splitlines() if line.startswith('  File "'))
    assert path.name in first
    assert "loading.py" not in said
    assert "importlib" not in said


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("desk_none.py", "There is no file desk_none.py"),
        ("desk_none", "There is no module 'desk_none'"),
        ("desk_none.below", "There is no module 'desk_none.below'"),
    ],
)
def test_what_is_not_there_has_no_lines_to_show(
    place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        load(place)
    assert capsys.readouterr().err == ""


def test_what_a_terminal_would_obey_is_not_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    written("desk_rude.py", r"raise ValueError('\x1b[2J')" + "\n")
    with pytest.raises(SettingsInvalid):
        load("desk_rude.py")
    assert "\x1b" not in capsys.readouterr().err
