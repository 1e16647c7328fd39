"""The latency budget of writing, as settings give it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runstone.engine.budget import WriteBudget, write_budget
from runstone.errors import SettingsInvalid

OUTCOMES = ("STEP_COMPLETED", "STEP_FAILED")


def test_the_defaults_are_those_of_the_spec() -> None:
    """§ENG-33, §ENG-34"""
    assert write_budget(3000, ["STEP_STARTED"], OUTCOMES) == WriteBudget()
    assert WriteBudget().limit == timedelta(seconds=3)
    assert WriteBudget().starts_may_be_late


def test_either_name_of_an_event_will_do() -> None:
    assert write_budget(3000, ["StepStarted"], ["StepCompleted", "STEP_FAILED"]) == WriteBudget()


@pytest.mark.parametrize("never", [OUTCOMES, (*OUTCOMES, "STEP_STARTED")])
def test_a_start_may_be_held_to_the_budget_too(never: tuple[str, ...]) -> None:
    assert not write_budget(3000, [], never).starts_may_be_late


def test_a_step_that_exceeds_it_says_so() -> None:
    failure = WriteBudget().exceeded("charge#1")
    assert (failure.step_key, failure.category) == ("charge#1", "INFRASTRUCTURE")
    assert failure.code == "WRITE_BUDGET_EXCEEDED"
    assert "within 3 s" in failure.reason


@pytest.mark.parametrize(
    ("milliseconds", "late", "never", "said"),
    [
        (0, [], OUTCOMES, "leaves no time"),
        (1, ["STEP_COMPLETED"], OUTCOMES, "fail_open names STEP_COMPLETED, which must not be late"),
        (1, ["RUN_STARTED"], OUTCOMES, "fail_open names RUN_STARTED"),
        (1, ["STEP_BEGUN"], OUTCOMES, "fail_open names 'STEP_BEGUN', which is no type of event"),
        (1, [], ["STEP_FAILED"], "never_fail_open leaves out STEP_COMPLETED"),
        (1, [], [*OUTCOMES, "Nope"], "never_fail_open names 'Nope'"),
        (1, ["STEP_STARTED"], [*OUTCOMES, "STEP_STARTED"], "STEP_STARTED is in fail_open and in never"),
    ],
)
def test_what_would_break_a_promise_is_refused(
    milliseconds: int, late: list[str], never: list[str], said: str
) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        write_budget(milliseconds, late, never)
