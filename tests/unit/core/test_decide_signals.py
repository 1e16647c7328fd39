"""Decisions about a signal: it comes in once, and a second content under its id is a conflict."""

from __future__ import annotations

import pytest

from runstone.core import commands
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import HASH, NOON, OTHER_HASH, Story, an_id, data, receive, types


def test_taking_a_signal_in() -> None:
    story = Story()
    decision = story.do(receive({"order": 7}, ingested_by="gateway"))
    assert types(decision) == ["SIGNAL_RECEIVED"]
    assert data(story.signal_events[0]) == {
        "signal_type": "API_CALL",
        "source_channel": "http",
        "source_id": "order-1",
        "source_hash": HASH,
        "normalized_payload": {"order": 7},
        "received_at": NOON.isoformat().replace("+00:00", "Z"),
        "ingested_by": "gateway",
    }
    assert story.signal.status == "PENDING"
    assert story.state.run is None


def test_it_comes_in_once() -> None:
    story = Story.received()
    with pytest.raises(StateTransitionError) as refused:
        story.do(receive())
    assert (refused.value.aggregate, refused.value.aggregate_id) == ("signal", story.signal_id)
    assert (refused.value.from_state, refused.value.to_state) == ("PENDING", "PENDING")


def test_other_content_under_the_same_id_is_recorded_with_both_hashes() -> None:
    """§IDM-15"""
    story = Story.received()
    before = story.signal
    decision = story.do(commands.ReportConflict(source_hash=OTHER_HASH))
    assert types(decision) == ["SIGNAL_CONFLICT"]
    assert data(story.signal_events[-1]) == {"first_hash": HASH, "second_hash": OTHER_HASH}
    assert decision.commit.writes[0].rows == ()
    assert story.signal is before


def test_a_second_conflict_is_a_second_fact() -> None:
    """§IDM-5"""
    story = Story.received()
    story.do(commands.ReportConflict(source_hash=OTHER_HASH))
    story.do(commands.ReportConflict(source_hash=OTHER_HASH))
    one, other = story.signal_events[1:]
    assert one.idempotency_key != other.idempotency_key


def test_the_same_content_is_no_conflict() -> None:
    """§IDM-14"""
    with pytest.raises(CommandRefused, match="same content"):
        Story.received().do(commands.ReportConflict(source_hash=HASH))


def test_no_conflict_with_a_signal_that_never_came() -> None:
    with pytest.raises(StateTransitionError) as refused:
        Story().do(commands.ReportConflict(source_hash=HASH))
    assert refused.value.from_state is None


def test_a_conflict_after_the_end_leaves_the_frozen_row() -> None:
    """§TRN-4"""
    story = Story.running()
    story.returned()
    before = story.signal
    assert types(story.do(commands.ReportConflict(source_hash=OTHER_HASH))) == ["SIGNAL_CONFLICT"]
    assert story.signal is before


def test_a_child_inherits_its_parents_correlation() -> None:
    """§ORD-19"""
    story = Story()
    story.do(receive(correlation_id=an_id(700), cause=an_id(701)), commands.CreateRun(plan_id="child"))
    assert {event.correlation_id for event in story.events} == {an_id(700)}
    assert story.signal_events[0].causation_id == an_id(701)
