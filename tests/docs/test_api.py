"""The page of the Python API has every public name, with what it is for."""

import ast
import re
import textwrap
from pathlib import Path

import pytest

import runstone
import runstone.testing
from runstone import errors

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text("utf-8")
HEADINGS = re.findall(r"^#{3,4} `(.*)`$", PAGE, re.MULTILINE)
SECTIONS = dict(re.findall(r"^#{3,4} `(.*?)`\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL))
METHODS = [name for name in HEADINGS if not name.startswith(("rs.", "runstone."))]


@pytest.mark.parametrize("name", runstone.__all__)
def test_a_name_of_the_package_is_there(name: str) -> None:
    known = getattr(runstone, name)
    if isinstance(known, type) and issubclass(known, errors.RunstoneError):
        assert f"- `rs.{name}`, a kind of `{known.__bases__[0].__name__}`: " in PAGE
    else:
        assert f"rs.{name}" in HEADINGS


@pytest.mark.parametrize("name", runstone.testing.__all__)
def test_a_name_for_tests_is_there(name: str) -> None:
    assert f"runstone.testing.{name}" in HEADINGS


def test_every_error_is_there() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    shown = [f"rs.{kind.__name__}" if kind.__name__ in runstone.__all__ else kind.__name__ for kind in kinds]
    assert re.findall(r"^- `(\S+)`, a kind of", PAGE, re.MULTILINE) == shown


@pytest.mark.parametrize("kind", [runstone.App, runstone.Run, runstone.Handle, runstone.testing.Simulator])
def test_every_method_of_what_users_hold_is_there(kind: type) -> None:
    for_runstone = {"App.attach", "App.lifespans", "Simulator.changed"}
    public = {f"{kind.__name__}.{name}" for name in vars(kind) if not name.startswith("_")}
    assert public - for_runstone <= set(METHODS)


def test_nothing_is_named_twice() -> None:
    assert len(set(HEADINGS)) == len(HEADINGS)


@pytest.mark.parametrize("name", HEADINGS)
def test_its_signature_is_python_and_something_is_said(name: str) -> None:
    ((stub, about),) = re.findall(r"\A\n```pyi\n(.*?)\n```\n(.*)\Z", SECTIONS[name], re.DOTALL)
    bodies = re.sub(r"^(class [^:\n]*)$", r"\1: ...", stub, flags=re.MULTILINE)
    ast.parse(textwrap.dedent(bodies))
    assert about.strip()


def test_a_signature_is_that_of_the_code() -> None:
    assert (
        "async def result(self, *, timeout: timedelta | None = None) -> R: ..." in SECTIONS["Handle.result"]
    )
    assert "- `max_attempts: int = 3`" in SECTIONS["rs.Retry"]
    assert "- `to: list[str]`: Who it is for." in SECTIONS["rs.SendEmail"]
    assert SECTIONS["Run.wait"].count("async def wait(") == 2
