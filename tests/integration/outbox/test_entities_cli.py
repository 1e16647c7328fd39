"""`runstone entities` on a file: lists, one entity, its history, a bundle of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runstone.audit.bundles import read_bundle
from runstone.errors import NotFound
from runstone.testing.conformance.entities import put
from runstone.testing.conformance.scene import Scene
from tests.integration.desk import Desk


class Records(Desk):
    """A file with two entities of one tenant, and one of another."""

    async def fill(self, scene: Scene) -> None:
        await put(scene, {"status": "OPEN", "text": "x" * 3000}, {"status": None})
        await put(scene, {"name": "Ann\x1b[31m"}, entity_type="PERSON", entity_id="a b")
        await put(scene, {"name": "Bob\x9b31m"}, entity_type="PERSON", entity_id="b\x9b31m")
        await put(scene.for_tenant(scene.new_id()), {"a": 1})


@pytest.fixture
def desk(tmp_path: Path) -> Records:
    return Records(tmp_path / "desk.db")


def test_entities_are_listed_by_type_and_id(desk: Records) -> None:
    names = [line.split("\t")[:3] for line in desk.lines("entities", "list")]
    assert names == [["CASE", "42", "2"], ["PERSON", "a b", "1"], ["PERSON", "b\\x9b31m", "1"]]
    assert (
        len(desk.lines("entities", "list", "--type", "CASE"))
        == len(desk.lines("entities", "list", "--limit", "1"))
        == 1
    )
    assert len(desk.lines("entities", "list", "--after", "CASE", "42")) == 2
    rows = [json.loads(line) for line in desk.lines("entities", "list", "--json")]
    assert rows[0]["data"]["field"] == "data"
    assert rows[1]["data"] == {"name": "Ann\x1b[31m"}


def test_an_entity_is_shown_whole_or_change_by_change(desk: Records) -> None:
    first, *rest = desk.lines("entities", "show", "CASE", "42")
    assert first.startswith("CASE 42, version 2, changed 20")
    assert json.loads("\n".join(rest)) == {"text": "x" * 3000}
    history = [line.split("\t") for line in desk.lines("entities", "show", "CASE", "42", "--history")]
    assert [line[0] for line in history] == ["1", "2"]
    assert history[1][3:] == ['{"status":null}', '{"why":"suite"}']
    versions = [
        json.loads(line) for line in desk.lines("entities", "show", "CASE", "42", "--history", "--json")
    ]
    assert [sorted(version["data"]) for version in versions] == [["status", "text"], ["text"]]
    (latest,) = desk.lines("entities", "show", "CASE", "42", "--json")
    assert json.loads(latest) == versions[-1]


def test_nothing_is_shown_that_a_terminal_would_obey(desk: Records) -> None:
    shown = "\n".join(desk.lines("entities", "show", "PERSON", "b\x9b31m"))
    assert shown.isascii()
    assert shown.startswith("PERSON b\\x9b31m, ")
    assert json.loads(shown.partition("\n")[2]) == {"name": "Bob\x9b31m"}


def test_an_entity_is_exported_alone(desk: Records, tmp_path: Path) -> None:
    target = tmp_path / "case.ndjson"
    desk.lines("entities", "export", "CASE", "42", "-o", str(target))
    bundle = read_bundle(target.read_bytes())
    assert (bundle.events, bundle.runs, bundle.tenant_id) == (2, (), desk.tenant_id)
    assert desk.call("entities", "export", "CASE", "42", "-o", str(target)).exit_code == 2


@pytest.mark.parametrize("verb", [["show"], ["show", "--history"], ["export"]])
def test_what_is_not_there_is_said(desk: Records, verb: list[str]) -> None:
    done = desk.call("entities", *verb, "CASE", "7")
    assert isinstance(done.exception, NotFound)
    assert "There is no CASE '7'" in str(done.exception)


def test_the_group_says_what_it_can(desk: Records) -> None:
    assert "Commands:" in desk.call("entities").output
