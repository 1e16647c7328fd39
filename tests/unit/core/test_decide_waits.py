"""Waits and answers: whichever comes first, each answer is taken once (§ENG-21 to §ENG-24)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runstone.core import commands
from runstone.core.payloads import OutputResult
from runstone.errors import CommandRefused
from tests.unit.core.build import Story, answer, control, data, error, plain, types


def outcome(story: Story, key: str = "wait") -> object:
    return plain(story.latest(key).output_result)


class TestAnswerToAnOpenWait:
    def test_it_ends_the_wait(self) -> None:
        story = Story.running()
        step = story.wait("color")
        decision = story.do(answer("color", "red"))
        assert types(decision) == ["SIGNAL_ACCEPTED", "STEP_COMPLETED"]
        accepted, completed = decision.commit.events
        assert (completed.aggregate_id, completed.causation_id) == (step, accepted.id)
        assert completed.control_signal_id == accepted.control_signal_id
        assert outcome(story) == {"answer": "red"}
        assert story.state.answers == {}

    def test_without_data_the_answer_is_null(self) -> None:
        story = Story.running()
        story.wait("go")
        story.do(control("ANSWER", target="go"))
        assert outcome(story) == {"answer": None}

    def test_the_run_goes_on_behind_it(self) -> None:
        story = Story.running()
        story.wait("color")
        story.do(answer("color", "red"))
        completed = story.last.id
        story.open_step("next")
        assert story.last.causation_id == completed

    def test_one_of_another_name_leaves_it_open(self) -> None:
        story = Story.running()
        story.wait("color")
        assert types(story.do(answer("size", "XL"))) == ["SIGNAL_ACCEPTED"]
        assert story.latest("wait").status == "RUNNING"
        assert list(story.state.answers) == ["size"]

    def test_a_step_that_is_no_wait_is_not_answered(self) -> None:
        story = Story.running()
        story.open_step("color")
        story.do(answer("color", "red"))
        assert story.latest("color").status == "RUNNING"

    def test_of_two_waits_of_one_name_the_older_takes_it(self) -> None:
        story = Story.running()
        story.wait("color", "first")
        story.wait("color", "second")
        story.do(answer("color", "red", 901))
        assert (story.latest("first").status, story.latest("second").status) == ("COMPLETED", "RUNNING")
        story.do(answer("color", "blue", 902))
        assert (outcome(story, "first"), outcome(story, "second")) == ({"answer": "red"}, {"answer": "blue"})
        assert story.state.answers == {}

    def test_a_paused_run_takes_answers_and_stays_paused(self) -> None:
        story = Story.running()
        story.wait("color")
        story.do(control("PAUSE", 901))
        story.do(answer("color", "red", 902))
        assert (story.status, story.state.wake_at) == ("PAUSED", None)
        assert outcome(story) == {"answer": "red"}


class TestAnswerBeforeItsWait:
    """§ENG-24"""

    def test_it_is_kept_and_taken_when_the_wait_begins(self) -> None:
        story = Story.running()
        story.do(answer("color", "red"))
        accepted = story.last
        story.wait("color")
        assert [event.event_type for event in story.run_events[-2:]] == ["STEP_STARTED", "STEP_COMPLETED"]
        assert outcome(story) == {"answer": "red"}
        assert story.last.causation_id == accepted.id
        assert story.last.control_signal_id == accepted.control_signal_id

    def test_each_is_taken_once_the_oldest_first(self) -> None:
        story = Story.running()
        story.do(answer("color", "red", 901))
        story.do(answer("color", "blue", 902))
        story.wait("color", "first")
        assert len(story.state.answers["color"]) == 1
        story.wait("color", "second")
        story.wait("color", "third")
        assert (outcome(story, "first"), outcome(story, "second")) == ({"answer": "red"}, {"answer": "blue"})
        assert story.latest("third").status == "RUNNING"
        assert story.state.answers == {}

    def test_it_can_come_before_the_run_has_started(self) -> None:
        story = Story.queued()
        story.do(answer("color", "red"))
        story.do(commands.StartRun())
        story.wait("color")
        assert outcome(story) == {"answer": "red"}

    def test_a_sleep_takes_none(self) -> None:
        story = Story.running()
        story.do(answer("color", "red"))
        story.wait(None, "sleep", deadline=story.now + timedelta(hours=1))
        assert story.latest("sleep").status == "RUNNING"
        assert list(story.state.answers) == ["color"]

    def test_a_run_that_ends_leaves_it_unused(self) -> None:
        story = Story.running()
        story.do(answer("color", "red"))
        story.returned()
        assert list(story.state.answers) == ["color"]


class TestDeadline:
    """§ENG-23"""

    def test_a_wait_ends_in_the_log(self) -> None:
        story = Story.running()
        deadline = story.now + timedelta(minutes=1)
        story.wait("color", deadline=deadline)
        assert story.latest("wait").wait_deadline == deadline
        story.do(commands.FailStep(step_key="wait", error=error("WAIT_TIMEOUT", category="TIMEOUT")))
        assert story.latest("wait").status == "FAILED"

    def test_an_answer_that_was_committed_first_wins(self) -> None:
        story = Story.running()
        story.wait("color", deadline=story.now)
        story.do(answer("color", "red"))
        with pytest.raises(CommandRefused, match="no open step"):
            story.do(commands.FailStep(step_key="wait", error=error("WAIT_TIMEOUT")))

    def test_an_answer_that_comes_too_late_is_kept_for_the_next_wait(self) -> None:
        story = Story.running()
        story.wait("color", "first")
        story.do(commands.FailStep(step_key="first", error=error("WAIT_TIMEOUT")))
        story.do(answer("color", "red"))
        story.wait("color", "second")
        assert outcome(story, "second") == {"answer": "red"}

    def test_a_step_completed_by_its_handler_takes_no_answer_away(self) -> None:
        """Only the control signal that ended a wait has been used up."""
        story = Story.running()
        story.wait("color")
        story.do(commands.CompleteStep(step_key="wait", output=OutputResult()))
        story.do(answer("color", "red"))
        assert list(story.state.answers) == ["color"]


def test_what_an_accepted_answer_says() -> None:
    """§ENG-26: who said what to which wait."""
    story = Story.running()
    story.do(answer("color", {"hex": "f00"}))
    assert data(story.last) == {
        "kind": "ANSWER",
        "sender": "ada",
        "target": "color",
        "data": {"hex": "f00"},
    }
