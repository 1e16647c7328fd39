"""Control signals in the fold: each is remembered by its id, and an answer is kept until a wait takes it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from runstone.core import payloads
from runstone.core.fold import fold_run
from runstone.errors import CommandRefused
from tests.unit.core.build import Story, an_id, answer, control, error


def test_an_answer_must_say_to_what_and_by_which_control_signal() -> None:
    story = Story.running()
    accepted = payloads.SignalAccepted(kind="ANSWER", sender="ada", target="color")
    fold_run(story.state, [story.forge(accepted, control_signal_id=an_id(900))])
    nameless = payloads.SignalAccepted(kind="ANSWER", sender="ada")
    for wrong in (story.forge(accepted), story.forge(nameless, control_signal_id=an_id(900))):
        with pytest.raises(CommandRefused, match="names no wait"):
            fold_run(story.state, [wrong])


def test_an_answer_without_data_is_null() -> None:
    story = Story.running()
    story.do(control("ANSWER", target="go"))
    assert story.state.answers["go"][0].data == Raw(b"null")


def test_answers_of_one_name_are_kept_in_their_order() -> None:
    story = Story.running()
    for number, value in ((901, "red"), (902, "blue")):
        story.do(answer("color", value, number))
    story.do(answer("size", "XL", 903))
    kept = {name: [bytes(one.data) for one in answers] for name, answers in story.state.answers.items()}
    assert kept == {"color": [b'"red"', b'"blue"'], "size": [b'"XL"']}
    assert story.state.answers["size"][0].event_id == story.last.id


def test_every_control_signal_is_remembered_with_the_event_that_answered_it() -> None:
    """§ENG-25"""
    story = Story.running()
    story.do(control("RESUME", 901))
    story.do(control("PAUSE", 902))
    accepted, rejected = story.of_type("SIGNAL_ACCEPTED")[0], story.of_type("SIGNAL_REJECTED")[0]
    assert story.state.controls == {an_id(901): rejected.id, an_id(902): accepted.id}


def test_one_that_another_system_appended_may_lack_its_id() -> None:
    story = Story.running()
    rejected = story.forge(payloads.SignalRejected(kind="PAUSE", sender="ada", error=error()))
    assert fold_run(story.state, [rejected]).controls == {rejected.id: rejected.id}
    accepted = story.forge(payloads.SignalAccepted(kind="PAUSE", sender="ada"))
    assert fold_run(story.state, [accepted]).controls == {accepted.id: accepted.id}
