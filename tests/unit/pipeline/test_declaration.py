"""What a user declares, and what is refused before there is a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.core.pipeline import PipelineState
from runstone.errors import ArtifactInvalid, RegistrationError
from runstone.pipeline import schemas
from runstone.pipeline.files import Files, parts_of
from runstone.pipeline.items import Declaration, Item, is_pattern, plain
from runstone.pipeline.work import Reader


def nothing(work: rs.Work) -> None: ...


def with_key(work: rs.Work, key: str) -> None: ...


def reader() -> Reader:
    return Reader(Files(Path("nowhere")), PipelineState(), {}, {"pages/b": "b", "pages/a": "a"})


def declared(function: Any = nothing, state: str = "DRAFTING", **more: Any) -> Declaration:
    pipeline = rs.Pipeline("p")
    pipeline.item(state, name="x", **more)(function)
    return pipeline.declarations["x"]


def items(declaration: Declaration, attempt: int = 1) -> list[Item]:
    return declaration.items(reader(), attempt)


class TestItems:
    def test_one_item(self) -> None:
        (item,) = items(declared(inputs=["a"], outputs=["b/*"]))
        assert (item.name, item.key, item.inputs) == ("x", "", ("a",))
        assert item.makes("b/c")
        assert not item.makes("c")
        assert item.reads("a")
        assert not item.reads("b")

    def test_one_for_every_key_in_the_order_of_keys(self) -> None:
        declaration = declared(with_key, each=["b", "a"], inputs=["in/{key}"], outputs=["out/{key}.md"])
        assert [(item.name, item.inputs) for item in items(declaration)] == [
            ("x/a", ("in/a",)),
            ("x/b", ("in/b",)),
        ]
        assert items(declaration)[0].makes("out/a.md")
        assert not items(declaration)[0].makes("out/b.md")

    def test_keys_may_come_from_artifacts(self) -> None:
        declaration = declared(with_key, each=lambda read: [name[6:] for name in read.names("pages/*")])
        assert [item.name for item in items(declaration)] == ["x/a", "x/b"]

    def test_a_key_may_need_more(self) -> None:
        declaration = declared(with_key, each={"a": ["f/1", "f/*"], "b": []}, inputs=["all"])
        assert [item.inputs for item in items(declaration)] == [("all", "f/1", "f/[*]"), ("all",)]

    def test_a_key_is_no_pattern(self) -> None:
        (item,) = items(declared(with_key, each=["a*"], outputs=["out/{key}"]))
        assert item.makes("out/a*")
        assert not item.makes("out/ab")

    def test_a_key_is_part_of_a_path(self) -> None:
        with pytest.raises(ArtifactInvalid, match="no name"):
            items(declared(with_key, each=["../a"]))

    def test_every_attempt_of_a_loop_has_items_of_its_own(self) -> None:
        fix = declared(with_key, state="FIXING", each=["a"])
        assert [item.name for item in items(fix, 1) + items(fix, 2)] == ["x/a#1", "x/a#2"]
        assert [item.name for item in items(declared(state="FIXING"), 3)] == ["x#3"]

    def test_the_function_stays_what_it_was(self) -> None:
        assert rs.Pipeline("p").item("CREATED")(nothing) is nothing

    def test_declarations_of_a_state_come_by_name(self) -> None:
        pipeline = rs.Pipeline("p")
        for name in ("b", "a"):
            pipeline.item("CREATED", name=name)(nothing)
        pipeline.item("DRAFTING")(nothing)
        assert [found.name for found in pipeline.of("CREATED")] == ["a", "b"]

    def test_a_schema_names_itself(self) -> None:
        assert rs.Output("a", schema={"$id": "urn:a"}).id == "urn:a"
        assert rs.Output("a", schema={"$id": "urn:a"}, schema_id="b").id == "b"
        assert rs.Output("a").id is None

    @pytest.mark.parametrize(
        ("text", "pattern", "name"),
        [
            ("a/b", False, "a/b"),
            ("a*", True, ""),
            ("a?", True, ""),
            ("a[bc]", True, ""),
            ("a[*]", False, "a*"),
        ],
    )
    def test_names_and_patterns(self, text: str, pattern: bool, name: str) -> None:
        assert is_pattern(text) is pattern
        assert pattern or plain(text) == name


@pytest.mark.parametrize(
    ("function", "options", "problem"),
    [
        (nothing, {"state": "NOWHERE"}, "'NOWHERE', which the graph does not have"),
        (nothing, {"state": "DONE"}, "nothing is done in DONE"),
        (nothing, {"name": "a b"}, "'a b' is no name for a work item"),
        (nothing, {"name": "a/b"}, "no name for a work item"),
        (nothing, {"each": ["a"]}, "has to take the work and a key"),
        (with_key, {}, "has to take the work alone"),
        (nothing, {"inputs": "abc"}, r"give a list, \['abc'\]"),
        (nothing, {"outputs": "abc"}, r"give a list, \['abc'\]"),
        (with_key, {"each": "abc"}, r"give a list of keys, \['abc'\]"),
        (nothing, {"inputs": ["a/{key}"]}, "no each= that gives it a key"),
        (nothing, {"inputs": ["a"], "outputs": ["a"]}, "reads and makes 'a'"),
        (nothing, {"outputs": [rs.Output("a", schema={"type": 1})]}, "is no JSON Schema"),
    ],
)
def test_a_wrong_declaration_is_refused(function: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RegistrationError, match=problem):
        rs.Pipeline("p").item(**{"state": "CREATED", **options})(function)


def test_a_name_is_taken_once() -> None:
    pipeline = rs.Pipeline("p")
    pipeline.item("CREATED")(nothing)
    with pytest.raises(RegistrationError, match="'nothing' is registered twice"):
        pipeline.item("DRAFTING")(nothing)


class TestParameters:
    PIPELINE = rs.Pipeline("p", params={"repo": None, "branch": "main"})

    def test_defaults_fill_in(self) -> None:
        assert self.PIPELINE.given({"repo": "r"}) == {"branch": "main", "repo": "r"}

    def test_one_that_is_missing(self) -> None:
        with pytest.raises(RegistrationError, match="needs the parameter 'repo'"):
            self.PIPELINE.given({})

    def test_one_that_nobody_knows(self) -> None:
        with pytest.raises(RegistrationError, match="no parameter 'x': it has branch, repo"):
            self.PIPELINE.given({"repo": "r", "x": "y"})


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\0b", "a\nb", ".~x", "a/.~x"]
)
def test_names_that_no_artifact_can_have(name: str) -> None:
    with pytest.raises(ArtifactInvalid, match="no name for an artifact"):
        parts_of(name)


def test_names_that_an_artifact_can_have() -> None:
    assert parts_of("a/b.c/..d/ü x") == ("a", "b.c", "..d", "ü x")


class TestSchemas:
    SCHEMA: Mapping[str, Any] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }

    def test_content_that_fits(self) -> None:
        schemas.check_content("a", b'{"n": 1}', self.SCHEMA, None)

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b'{"n": "x"}', "does not fit its schema urn:n at /n: 'x' is not of type 'integer'"),
            (b"{}", "does not fit its schema urn:n at its root: 'n' is a required property"),
            (b"{", "is no JSON"),
            (b'{"n": 1, "n": 2}', "stands there twice"),
        ],
    )
    def test_content_that_does_not(self, content: bytes, problem: str) -> None:
        with pytest.raises(ArtifactInvalid, match=problem):
            schemas.check_content("a", content, self.SCHEMA, "urn:n")

    def test_without_jsonschema_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
        with pytest.raises(RegistrationError, match=r"runstone\[pipeline\]"):
            declared(outputs=[rs.Output("a", schema=self.SCHEMA)])
