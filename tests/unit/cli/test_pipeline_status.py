"""What `pipeline status` says of a run below its graph: short, however large the run is."""

from __future__ import annotations

from typing import get_args

import pytest

from runstone.cli.pipeline_status import _SEVERITIES, _facts
from runstone.core.payloads import IssueSeverity
from runstone.core.pipeline import Issue, PipelineState
from tests.unit.core.build import NOON


def issue(name: str, severity: IssueSeverity) -> Issue:
    return Issue(issue=name, code="X", severity=severity, message="m", opened_at=NOON)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(2, ["section s0: LINKED", "section s1: DRAFTED"]), (30, ["1 section: DRAFTED", "29 sections: LINKED"])],
)
def test_many_sections_are_counted(count: int, shown: list[str]) -> None:
    state = PipelineState(
        section_states={f"s{number}": "DRAFTED" if number == 1 else "LINKED" for number in range(count)}
    )
    assert list(_facts(state))[2:] == shown


def test_the_worst_issues_come_first_and_the_rest_is_counted() -> None:
    issues = {f"w{number}": issue(f"w{number}", "WARNING") for number in range(25)}
    state = PipelineState(issues={**issues, "b": issue("b", "BLOCKER"), "i": issue("i", "INFO")})
    shown = list(_facts(state))[2:]
    assert shown[:2] == ["BLOCKER X b: m", "WARNING X w0: m"]
    assert shown[-1] == "and 7 more open issues: --json has them all"
    assert len(shown) == 21


def test_every_severity_has_its_place() -> None:
    assert sorted(_SEVERITIES) == sorted(get_args(IssueSeverity))
