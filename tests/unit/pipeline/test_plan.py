"""What has to be done, in which order, and why: from a declaration and a run's state alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runstone.core.pipeline import Artifact, PipelineState, Try, WorkItem
from runstone.errors import ArtifactInvalid, RegistrationError
from runstone.pipeline import plan
from runstone.pipeline.items import Declaration, Item, Output

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B, C = "a" * 64, "b" * 64, "c" * 64


def declare(
    name: str, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = (), **more: Any
) -> Declaration:
    def function(work: object) -> None: ...

    return Declaration(name, "S", function, inputs, tuple(map(Output, outputs)), **more)


def item(name: str, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = (), **more: Any) -> Item:
    return Item(name, declare(name, **more), "", inputs, tuple(map(Output, outputs)))


def made(sha256: str, inputs: Mapping[str, str] | None = None, **more: Any) -> Artifact:
    return Artifact(path="p", sha256=sha256, writer_worker="w", ts=NOON, inputs=inputs or {}, **more)


def done(outputs: tuple[str, ...] = (), inputs: Mapping[str, str] | None = None, **more: Any) -> WorkItem:
    fields = {"status": "DONE", "ended_at": NOON, **more}
    return WorkItem(worker="w", started_at=NOON, outputs=outputs, inputs=inputs or {}, **fields)


class TestOrder:
    """§PIP-30"""

    def names(self, *declarations: Declaration) -> list[str]:
        return [declared.name for declared in plan.in_order(declarations)]

    def test_names_decide_where_nothing_else_does(self) -> None:
        assert self.names(declare("c"), declare("a"), declare("b")) == ["a", "b", "c"]

    def test_who_makes_something_goes_first(self) -> None:
        reader = declare("a", inputs=("facts/x.json",))
        assert self.names(reader, declare("b"), declare("z", outputs=("facts/*",))) == ["b", "z", "a"]
        by_pattern = declare("a", inputs=("facts/*",))
        assert self.names(by_pattern, declare("z", outputs=("facts/x.json",))) == ["z", "a"]

    def test_an_item_does_not_wait_for_itself(self) -> None:
        assert self.names(declare("a", inputs=("x/*",), outputs=("x/*",), in_loop=True)) == ["a"]

    def test_a_circle_is_refused(self) -> None:
        one, two = declare("a", inputs=("x",), outputs=("y",)), declare("b", inputs=("y",), outputs=("x",))
        with pytest.raises(RegistrationError, match="need each other's artifacts: a, b"):
            self.names(one, two)


class TestInputs:
    def test_patterns_and_names_in_order(self) -> None:
        available = {"b/2": B, "b/1": A, "c": C, "d": C}
        assert list(plan.inputs_of(item("x", inputs=("c", "b/*")), available).items()) == [
            ("b/1", A),
            ("b/2", B),
            ("c", C),
        ]

    def test_a_pattern_may_stand_for_nothing(self) -> None:
        assert plan.inputs_of(item("x", inputs=("b/*",)), {}) == {}

    def test_a_name_has_to_be_there(self) -> None:
        with pytest.raises(ArtifactInvalid, match="'x' needs 'c', and nothing has made it"):
            plan.inputs_of(item("x", inputs=("c",)), {"d": A})

    def test_what_an_item_makes_is_no_input_of_it_except_in_a_loop(self) -> None:
        available = {"a/1": A, "a/2": B}
        assert plan.inputs_of(item("x", inputs=("a/*",), outputs=("a/2",)), available) == {"a/1": A}
        loop = item("x", inputs=("a/*",), outputs=("a/2",), in_loop=True)
        assert plan.inputs_of(loop, available) == available

    def test_escaped_characters_are_plain(self) -> None:
        assert plan.inputs_of(item("x", inputs=("a[*]b",)), {"a*b": A, "acb": B}) == {"a*b": A}

    def test_stale_artifacts_are_not_available(self) -> None:
        state = PipelineState(artifacts={"b": made(B, stale=True), "a": made(A)})
        assert plan.fresh(state) == {"a": A}

    def test_a_stale_input_is_named_unless_nothing_makes_it_any_more(self) -> None:
        wanted = item("x", inputs=("a/*",))
        stale = made(A, stale=True, stale_because="up")
        assert plan.stale_input(wanted, PipelineState(artifacts={"a/1": stale, "b": stale})) == "a/1"
        gone = made(A, stale=True, stale_because="a/1")
        assert plan.stale_input(wanted, PipelineState(artifacts={"a/1": gone})) is None


class TestVerdict:
    """§PIP-29"""

    def judge(self, state: PipelineState, forced: bool = False) -> plan.Verdict:
        return plan.judge(item("x", inputs=("in",)), state, plan.fresh(state), forced)

    def state(self, work: WorkItem | None, **artifacts: Artifact) -> PipelineState:
        return PipelineState(artifacts={"in": made(A), **artifacts}, work_items={"x": work} if work else {})

    def test_what_was_never_done(self) -> None:
        assert self.judge(self.state(None)).reason == "it was not done yet"

    def test_what_is_done_stays_done(self) -> None:
        verdict = self.judge(self.state(done(("out",), {"in": A}), out=made(B, {"in": A})))
        assert verdict == plan.Verdict()
        assert not verdict.must_run

    def test_unless_it_is_forced(self) -> None:
        verdict = self.judge(self.state(done((), {"in": A})), forced=True)
        assert (verdict.must_run, verdict.forced) == (True, True)

    def test_forcing_what_was_never_done_is_no_force(self) -> None:
        assert not self.judge(self.state(None), forced=True).forced

    def test_or_its_last_try_did_not_end_well(self) -> None:
        earlier = (Try(status="DONE", worker="w", started_at=NOON, inputs={"in": A}),)
        failed = done((), {"in": A}, status="FAILED", earlier=earlier)
        assert self.judge(self.state(failed)).must_run

    @pytest.mark.parametrize(
        ("before", "reason"),
        [
            ({"in": B}, "in changed"),
            ({}, "in is new among its inputs"),
            ({"in": A, "more": B}, "more is no longer among its inputs"),
        ],
    )
    def test_or_its_inputs_are_others(self, before: dict[str, str], reason: str) -> None:
        assert self.judge(self.state(done((), before))).reason == reason

    def test_or_its_file_is_gone(self) -> None:
        gone = made(B, {"in": A}, stale=True, stale_because="out")
        assert self.judge(self.state(done(("out",), {"in": A}), out=gone)).reason == "out is gone"

    def test_a_stale_artifact_stands_if_it_was_made_from_the_same(self) -> None:
        """§PIP-27: the cascade is cut off where nothing changed."""
        stale = made(B, {"in": A}, stale=True, stale_because="in")
        verdict = self.judge(self.state(done(("out",), {"in": A}), out=stale))
        assert (verdict.must_run, verdict.stands) == (False, ("out",))


class TestDownstream:
    """§PIP-26"""

    def chain(self) -> PipelineState:
        artifacts = {
            "a": made(A),
            "b": made(B, {"a": A}),
            "c": made(C, {"b": B}),
            "d": made(C, {"c": C, "a": A}),
            "other": made(A, {"else": A}),
        }
        return PipelineState(artifacts=artifacts)

    def test_everything_made_from_it_directly_or_not_and_nothing_else(self) -> None:
        found = plan.downstream(self.chain(), {"a": C})
        assert [(event.name, event.because) for event in found] == [("b", "a"), ("d", "a"), ("c", "b")]
        assert found[0].reason == f"a changed from {A[:12]} to {C[:12]}"
        assert found[2].reason == "b is stale"

    def test_the_same_content_changes_nothing(self) -> None:
        assert plan.downstream(self.chain(), {"a": A}) == []

    def test_something_that_is_gone(self) -> None:
        found = plan.downstream(self.chain(), {"c": None})
        assert [(event.name, event.reason) for event in found] == [("d", "c is gone")]

    def test_what_is_made_anew_with_it_is_kept(self) -> None:
        assert [event.name for event in plan.downstream(self.chain(), {"a": C}, keep={"b"})] == ["d"]

    def test_what_is_stale_already_is_not_marked_again(self) -> None:
        state = self.chain()
        state = PipelineState(artifacts={**state.artifacts, "b": made(B, {"a": A}, stale=True)})
        assert [event.name for event in plan.downstream(state, {"a": C})] == ["d"]


def test_the_latest_maker_counts() -> None:
    later = NOON + timedelta(seconds=1)
    items = {"fix#1": done(("x",), ended_at=later), "draft": done(("x", "y")), "new": done(status="RUNNING")}
    assert plan.makers(PipelineState(work_items=items)) == {"x": "fix#1", "y": "draft"}


@pytest.mark.parametrize(
    ("name", "pattern", "meant"),
    [
        ("draft/api", "draft/api", True),
        ("draft/api", "draft", True),
        ("draft/api", "draft/*", True),
        ("draft/api", "draft/web", False),
        ("draft", "dra", False),
        ("fix/api#2", "fix/api", True),
        ("fix/api#2", "fix/api#2", True),
        ("fix/api#2", "fix/api#1", False),
        ("fix#2", "fix", True),
    ],
)
def test_an_item_is_meant_by_name_or_pattern(name: str, pattern: str, meant: bool) -> None:
    assert plan.matches(name, [pattern]) is meant
