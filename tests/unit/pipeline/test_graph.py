"""State graphs: what may follow what, where a run goes next, where it goes back to (§PIP-11 to §PIP-23)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from runstone.core.payloads import IssueSeverity
from runstone.core.pipeline import Issue, IssueStatus, PipelineState
from runstone.errors import RegistrationError
from runstone.pipeline.graph import DOCS_GRAPH, Graph, IssuesOpen, State, docs_graph

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

TABLE: Mapping[str, set[str]] = {
    "CREATED": {"CLONED_INPUTS", "FAILED", "CANCELLED"},
    "CLONED_INPUTS": {"INGESTED", "FAILED", "CANCELLED"},
    "INGESTED": {"FACTS_READY", "FAILED", "CANCELLED"},
    "FACTS_READY": {"PLAN_READY", "FAILED", "CANCELLED"},
    "PLAN_READY": {"DRAFTING", "FAILED", "CANCELLED"},
    "DRAFTING": {"DRAFT_READY", "FAILED", "CANCELLED"},
    "DRAFT_READY": {"LINKING", "FAILED", "CANCELLED"},
    "LINKING": {"VALIDATING", "FAILED", "CANCELLED"},
    "VALIDATING": {"READY_FOR_PR", "FIXING", "FAILED", "CANCELLED"},
    "FIXING": {"VALIDATING", "FAILED", "CANCELLED"},
    "READY_FOR_PR": {"PR_OPENED", "FAILED", "CANCELLED"},
    "PR_OPENED": {"DONE", "FAILED", "CANCELLED"},
    "DONE": set(),
    "FAILED": set(),
    "CANCELLED": set(),
}
"""The table of the specification, written out."""


def issue(severity: IssueSeverity = "ERROR", status: IssueStatus = "OPEN") -> Issue:
    return Issue(issue="i", code="C", severity=severity, status=status, opened_at=NOON)


def at(run_state: str, **given: Any) -> PipelineState:
    return PipelineState(run_state=run_state, **given)


class TestTheDocsGraph:
    def test_it_has_fifteen_states_in_their_order(self) -> None:
        assert DOCS_GRAPH.names == tuple(TABLE)

    @pytest.mark.parametrize("from_state", TABLE)
    @pytest.mark.parametrize("to_state", TABLE)
    def test_every_pair_of_states(self, from_state: str, to_state: str) -> None:
        """§PIP-11"""
        assert DOCS_GRAPH.allows(from_state, to_state) == (to_state in TABLE[from_state])

    @pytest.mark.parametrize("name", TABLE)
    def test_a_run_begins_in_the_first(self, name: str) -> None:
        assert DOCS_GRAPH.allows(None, name) == (name == "CREATED")

    def test_stable_and_transitional_states(self) -> None:
        """§PIP-20"""
        assert {n for n in TABLE if DOCS_GRAPH[n].stable} == {"PLAN_READY", "DRAFT_READY", "READY_FOR_PR"}
        transitional = {"DRAFTING", "LINKING", "VALIDATING", "FIXING"}
        assert {n for n in TABLE if DOCS_GRAPH[n].transitional} == transitional
        assert DOCS_GRAPH.terminal == {"DONE", "FAILED", "CANCELLED"}

    def test_states_that_are_not_declared_lead_nowhere(self) -> None:
        assert not DOCS_GRAPH.allows("NOWHERE", "CREATED")
        assert not DOCS_GRAPH.allows("CREATED", "NOWHERE")


class TestNext:
    """§PIP-12, §PIP-23"""

    @pytest.mark.parametrize(
        ("from_state", "to_state"),
        [(name, next(iter(to - {"FAILED", "CANCELLED"}))) for name, to in TABLE.items() if len(to) == 3],
    )
    def test_the_only_way(self, from_state: str, to_state: str) -> None:
        assert DOCS_GRAPH.next(at(from_state)) == to_state

    @pytest.mark.parametrize(
        ("issues", "to_state"),
        [
            ([], "READY_FOR_PR"),
            ([issue("ERROR")], "FIXING"),
            ([issue("BLOCKER")], "FIXING"),
            ([issue("WARNING"), issue("INFO")], "READY_FOR_PR"),
            ([issue(status="RESOLVED")], "READY_FOR_PR"),
            ([issue(status="RESOLVED"), issue()], "FIXING"),
        ],
    )
    def test_validation_decides_by_open_issues(self, issues: list[Issue], to_state: str) -> None:
        state = at("VALIDATING", issues={str(number): found for number, found in enumerate(issues)})
        assert DOCS_GRAPH.next(state) == to_state

    @pytest.mark.parametrize(
        ("visits", "to_state"), [(0, "FIXING"), (1, "FIXING"), (2, "FAILED"), (3, "FAILED")]
    )
    def test_fixes_are_limited(self, visits: int, to_state: str) -> None:
        state = at("VALIDATING", issues={"i": issue()}, visits={"FIXING": visits})
        assert docs_graph(max_fix_attempts=2).next(state) == to_state

    def test_used_up_fixes_do_not_matter_when_nothing_is_wrong(self) -> None:
        assert docs_graph(max_fix_attempts=1).next(at("VALIDATING", visits={"FIXING": 1})) == "READY_FOR_PR"


class TestGoingBack:
    """§PIP-20, §PIP-21"""

    def test_to_the_stable_state_that_was_last(self) -> None:
        entered = {
            "PLAN_READY": 9,
            "DRAFTING": 10,
            "DRAFT_READY": 12,
            "LINKING": 13,
            "VALIDATING": 14,
            "CREATED": 3,
        }
        assert DOCS_GRAPH.last_stable(at("VALIDATING", entered=entered)) == "DRAFT_READY"
        assert DOCS_GRAPH.last_stable(at("DRAFTING", entered=entered | {"PLAN_READY": 20})) == "PLAN_READY"

    @pytest.mark.parametrize(
        ("name", "back"),
        [
            ("DRAFTING", "PLAN_READY"),
            ("LINKING", "DRAFT_READY"),
            ("VALIDATING", "DRAFT_READY"),
            ("FIXING", "DRAFT_READY"),
            ("INGESTED", "INGESTED"),
            ("READY_FOR_PR", "READY_FOR_PR"),
        ],
    )
    def test_to_do_the_work_of_a_state_again(self, name: str, back: str) -> None:
        state = at("READY_FOR_PR", entered={name: place for place, name in enumerate(DOCS_GRAPH.names)})
        assert DOCS_GRAPH.stable_before(name, state) == back

    def test_only_loops_come_back(self) -> None:
        assert {name for name in TABLE if DOCS_GRAPH.loops(name)} == {"VALIDATING", "FIXING"}


class TestDescription:
    def test_a_graph_comes_back_from_its_description(self) -> None:
        again = Graph.described(DOCS_GRAPH.describe())
        assert again.names == DOCS_GRAPH.names
        assert again.table == DOCS_GRAPH.table
        assert again.describe() == DOCS_GRAPH.describe()

    def test_but_cannot_choose(self) -> None:
        again = Graph.described(DOCS_GRAPH.describe())
        with pytest.raises(RegistrationError, match="cannot choose"):
            again.next(at("VALIDATING"))


END = State("END")


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ([], "at least one state"),
        ([State("A", to="END"), State("A", to="END"), END], "'A' is declared twice"),
        ([State("A", to="B"), END], "leads to 'B', which is not declared"),
        ([State("A", to="END"), State("B", to="END"), END], "'B' cannot be reached from 'A'"),
        ([State("A", to="B", limit=2), State("B", to="A")], "no terminal state"),
        (
            [State("A", to=("END", "B"), choose=IssuesOpen("B", "END")), State("B", to="B", limit=1), END],
            "From state 'B' no terminal state",
        ),
        ([State("A", to="FAILED"), END], "'END' cannot be reached"),
        ([State("A", to="END", transitional=True), END], "'A' can be reached without passing a stable one"),
        (
            [
                State("A", to=("B", "C"), choose=IssuesOpen("B", "C")),
                State("B", to="C", stable=True),
                State("C", to="END", transitional=True),
                END,
            ],
            "'C' can be reached without passing a stable one",
        ),
        ([State("A", to="END", stable=True, transitional=True), END], "both stable and transitional"),
        ([State("A", to=("END", "B")), State("B", to="END"), END], "give it choose="),
        ([State("A", to="END", choose=IssuesOpen("END", "END")), END], "nothing to choose from"),
        ([State("A", to=("END", "END"), choose=IssuesOpen("END", "END")), END], "to the same state twice"),
        ([State("A", to="END", limit=0), END], "it has to be 1 or more"),
        ([State("A", to="END"), State("END", limit=1)], "a terminal state has no limit"),
        ([State("A", to="END"), END, State("FAILED", to="A")], "FAILED is terminal"),
        ([State("", to="END"), END], "'' is no name"),
        (
            [State("A", to="B"), State("B", to=("A", "END"), choose=IssuesOpen("A", "END")), END],
            "part of a loop without end",
        ),
    ],
)
def test_a_graph_in_which_a_run_could_be_lost_is_refused(states: list[State], problem: str) -> None:
    with pytest.raises(RegistrationError, match=problem):
        Graph(*states)


def test_a_loop_with_a_limit_is_fine() -> None:
    graph = Graph(
        State("A", to="B"), State("B", to=("A", "END"), limit=4, choose=IssuesOpen("A", "END")), END
    )
    assert graph.names == ("A", "B", "END", "FAILED", "CANCELLED")
    assert graph.allows("B", "A")


def test_ends_may_be_declared() -> None:
    graph = Graph(State("A", to="END"), END, State("CANCELLED"), State("FAILED"))
    assert graph.names == ("A", "END", "CANCELLED", "FAILED")
