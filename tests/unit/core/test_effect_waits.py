"""Waits that an effect's outcome ends, whichever of the two comes first (§OUT-41)."""

from __future__ import annotations

from typing import Any

import pytest

from runstone.core import commands
from runstone.core.effect import effect_wait
from tests.unit.core.build import LARGE, Story, answer, data, error, plain, raw, types


def waiting(**request: Any) -> tuple[Story, str]:
    """A run that sleeps until its effect has an outcome."""
    story = Story.running()
    effect = story.effect("mail", **request)
    story.wait(effect_wait(effect), "outcome")
    story.do(commands.SuspendRun(waiting=("outcome",)))
    assert story.state.wake_at is None
    return story, effect


def test_success_answers_the_wait_and_wakes_the_run() -> None:
    story, effect = waiting()
    decision = story.sent(effect, {"id": 5})
    assert types(decision) == ["EFFECT_EXECUTING", "EFFECT_COMPLETED", "STEP_COMPLETED"]
    step = story.latest("outcome")
    assert (step.status, plain(step.output_result)) == ("COMPLETED", {"answer": {"id": 5}})
    assert story.last.causation_id == decision.commit.events[1].id
    assert story.state.wake_at == story.now
    assert story.state.news_seq >= story.last.run_seq - 1


def test_a_large_result_is_answered_whole() -> None:
    story, effect = waiting()
    story.sent(effect, LARGE)
    assert data(story.last)["output_result"] == {"answer": LARGE}


def test_a_retry_ends_no_wait() -> None:
    story, effect = waiting()
    story.not_sent(effect, retryable=True)
    assert story.latest("outcome").status == "RUNNING"


def test_a_dead_letter_fails_the_wait_with_its_error() -> None:
    story, effect = waiting()
    decision = story.not_sent(effect)
    assert types(decision)[-2:] == ["EFFECT_DEAD_LETTERED", "STEP_FAILED"]
    failure = plain(story.latest("outcome").error_details)
    assert failure == {"category": "EXTERNAL", "code": "SMTP_550", "message": "It went SMTP_550"}
    assert story.state.wake_at == story.now


def test_an_outcome_that_came_first_ends_the_wait_as_it_begins() -> None:
    story = Story.running()
    good, bad = story.effect("good"), story.effect("bad", spec={"to": "eve"}, critical=False)
    story.sent(good)
    story.not_sent(bad)
    story.wait(effect_wait(good), "outcome:good")
    assert story.latest("outcome:good").status == "COMPLETED"
    story.wait(effect_wait(bad), "outcome:bad")
    assert story.latest("outcome:bad").status == "FAILED"


def test_a_discarded_dead_letter_was_withdrawn() -> None:
    story = Story.running()
    effect = story.effect()
    story.not_sent(effect)
    story.do(commands.DiscardEffect(effect_id=effect))
    story.wait(effect_wait(effect), "outcome")
    assert plain(story.latest("outcome").error_details)["code"] == "EFFECT_CANCELLED"


@pytest.mark.parametrize("sent", [True, False])
def test_what_a_person_found_out_ends_the_wait_if_it_was_sent(sent: bool) -> None:
    story, effect = waiting(delivery="at_most_once")
    story.do(commands.BeginEffect(effect_id=effect, executor="smtp"))
    story.do(commands.LoseEffect(effect_id=effect, executor="smtp", error=error("TIMEOUT")))
    assert data(story.last)["error"]["code"] == "TIMEOUT"
    assert story.latest("outcome").status == "RUNNING"
    story.do(commands.ReconcileEffect(effect_id=effect, sent=sent))
    step = story.latest("outcome")
    assert step.status == ("COMPLETED" if sent else "RUNNING")
    if sent:
        assert plain(step.output_result) == {"answer": None}


def test_everybody_who_waits_is_told() -> None:
    story, effect = waiting()
    story.wait(effect_wait(effect), "again")
    story.wait("something else", "other")
    story.sent(effect)
    assert [story.latest(key).status for key in ("outcome", "again", "other")] == [
        "COMPLETED",
        "COMPLETED",
        "RUNNING",
    ]


def test_a_wait_for_an_effect_that_nobody_asked_for_goes_on() -> None:
    story = Story.running()
    story.wait(effect_wait("nothing"), "outcome")
    assert story.latest("outcome").status == "RUNNING"


def test_no_control_signal_answers_it() -> None:
    story, effect = waiting()
    decision = story.do(answer(effect_wait(effect), "done!", 901))
    assert types(decision) == ["SIGNAL_REJECTED"]
    assert "comes from the outbox" in data(story.last)["error"]["message"]
    assert story.latest("outcome").status == "RUNNING"


class TestLateOutcomes:
    """§OUT-8, §OUT-13"""

    def late(self, effect: str, result: object = "sent") -> commands.ReportLateOutcome:
        return commands.ReportLateOutcome(effect_id=effect, executor="old", result=raw(result))

    def test_a_late_success_is_in_the_ledger_and_moves_nothing(self) -> None:
        story, effect = waiting()
        story.do(self.late(effect))
        row = story.effect_row(effect)
        assert (row.status, plain(row.execution_result), row.executed_at) == ("PENDING", "sent", None)
        assert story.latest("outcome").status == "RUNNING"

    def test_a_large_one_stands_in_its_event(self) -> None:
        story, effect = waiting()
        story.do(self.late(effect, LARGE))
        kept = story.effect_row(effect).execution_result
        assert kept is not None
        assert plain(story.state.whole(kept)) == LARGE

    def test_a_late_failure_is_only_a_fact(self) -> None:
        story, effect = waiting()
        before = story.effect_row(effect)
        story.do(commands.ReportLateOutcome(effect_id=effect, executor="old", error=error()))
        assert story.effect_row(effect) == before

    def test_an_effect_that_has_ended_stays_as_it_is(self) -> None:
        story, effect = waiting()
        story.sent(effect, "first")
        story.do(self.late(effect, "second"))
        assert plain(story.effect_row(effect).execution_result) == "first"
