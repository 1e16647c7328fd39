"""`runstone entities` on a file: lists, one entity, its history, a bundle of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runstone.audit.bundles import read_bundle
from runstone.cli.main import NAME, cli
from runstone.errors import NotFound
from runstone.stores.sqlite import SqliteStore
from runstone.testing.conformance.entities import put
from runstone.testing.conformance.scene import Scene


class Desk:
    """A file with two entities of one tenant, and one of another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tenant_id = ""
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        async def open_store(clock: Any) -> Any:
            return await SqliteStore.open(self.path, clock=clock)

        scene = Scene(open_store, None)  # type: ignore[arg-type]
        scene.store = await open_store(scene.clock)
        self.tenant_id = scene.tenant_id
        await put(scene, {"status": "OPEN", "text": "x" * 3000}, {"status": None})
        await put(scene, {"name": "Ann\x1b[31m"}, entity_type="PERSON", entity_id="a b")
        await put(scene, {"name": "Bob\x9b31m"}, entity_type="PERSON", entity_id="b\x9b31m")
        await put(scene.for_tenant(scene.new_id()), {"a": 1})
        await scene.store.close()

    def call(self, *arguments: str) -> Result:
        given = ["entities", *arguments, "--store", str(self.path), "--tenant", self.tenant_id]
        return CliRunner().invoke(cli, given, prog_name=NAME)

    def lines(self, *arguments: str) -> list[str]:
        done = self.call(*arguments)
        assert done.exit_code == 0, done.output
        return done.output.splitlines()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk.db")


def test_entities_are_listed_by_type_and_id(desk: Desk) -> None:
    names = [line.split("\t")[:3] for line in desk.lines("list")]
    assert names == [["CASE", "42", "2"], ["PERSON", "a b", "1"], ["PERSON", "b\\x9b31m", "1"]]
    assert len(desk.lines("list", "--type", "CASE")) == len(desk.lines("list", "--limit", "1")) == 1
    assert len(desk.lines("list", "--after", "CASE", "42")) == 2
    rows = [json.loads(line) for line in desk.lines("list", "--json")]
    assert rows[0]["data"]["field"] == "data"
    assert rows[1]["data"] == {"name": "Ann\x1b[31m"}


def test_an_entity_is_shown_whole_or_change_by_change(desk: Desk) -> None:
    first, *rest = desk.lines("show", "CASE", "42")
    assert first.startswith("CASE 42, version 2, changed 20")
    assert json.loads("\n".join(rest)) == {"text": "x" * 3000}
    history = [line.split("\t") for line in desk.lines("show", "CASE", "42", "--history")]
    assert [line[0] for line in history] == ["1", "2"]
    assert history[1][3:] == ['{"status":null}', '{"why":"suite"}']
    versions = [json.loads(line) for line in desk.lines("show", "CASE", "42", "--history", "--json")]
    assert [sorted(version["data"]) for version in versions] == [["status", "text"], ["text"]]
    (latest,) = desk.lines("show", "CASE", "42", "--json")
    assert json.loads(latest) == versions[-1]


def test_nothing_is_shown_that_a_terminal_would_obey(desk: Desk) -> None:
    shown = "\n".join(desk.lines("show", "PERSON", "b\x9b31m"))
    assert shown.isascii()
    assert shown.count("\\x9b31m") == 2


def test_an_entity_is_exported_alone(desk: Desk, tmp_path: Path) -> None:
    target = tmp_path / "case.ndjson"
    desk.lines("export", "CASE", "42", "-o", str(target))
    bundle = read_bundle(target.read_bytes())
    assert (bundle.events, bundle.runs, bundle.tenant_id) == (2, (), desk.tenant_id)
    assert desk.call("export", "CASE", "42", "-o", str(target)).exit_code == 2


@pytest.mark.parametrize("verb", [["show"], ["show", "--history"], ["export"]])
def test_what_is_not_there_is_said(desk: Desk, verb: list[str]) -> None:
    done = desk.call(*verb, "CASE", "7")
    assert isinstance(done.exception, NotFound)
    assert "There is no CASE '7'" in str(done.exception)


def test_the_group_says_what_it_can(desk: Desk) -> None:
    assert "Commands:" in desk.call().output
