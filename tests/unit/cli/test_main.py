"""Every verb can be found, explains itself, and takes the options that all verbs take."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from runstone.cli.main import NAME, VERBS, cli


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every verb, with the verbs below it."""
    if path:
        yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from paths(below, (*path, name))


def test_all_verbs_are_there() -> None:
    assert {path[0] for path in paths(cli)} == set(VERBS)
    assert set(paths(cli)) >= {("db", "rebuild"), ("db", "status"), ("verify",)}


@pytest.mark.parametrize("path", list(paths(cli)), ids=" ".join)
def test_a_verb_explains_itself(path: tuple[str, ...]) -> None:
    told = CliRunner().invoke(cli, [*path, "--help"], prog_name=NAME)
    assert told.exit_code == 0
    assert told.output.startswith(f"Usage: {NAME} {' '.join(path)} ")
    assert "\n  --debug " in told.output or path == ("completion",)
    assert "\n  --store PATH " in told.output or path == ("completion",)
    assert "\n  --tenant ID " in told.output or path == ("completion",)


def test_no_verbs_summary_is_cut_off() -> None:
    told = CliRunner().invoke(cli, ["--help"], prog_name=NAME)
    assert "..." not in told.output.partition("Commands:")[2]


def test_an_unknown_verb_is_refused() -> None:
    assert CliRunner().invoke(cli, ["nonsense"], prog_name=NAME).exit_code == 2
