"""A signal in the fold: every state against every event, and its row (§TRN-5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, timezone

import pytest

from runstone.core import commands, payloads
from runstone.core.fold import fold_signal
from runstone.core.payloads import Payload
from runstone.core.signal import Signal
from runstone.errors import StateTransitionError
from tests.unit.core.build import HASH, NOON, OTHER_HASH, Story, error, raw, receive


def completed() -> Story:
    story = Story.running()
    story.returned()
    return story


def failed() -> Story:
    story = Story.running()
    story.do(commands.FailRun(error=error()))
    return story


STATES: dict[str, Callable[[], Story]] = {
    "PENDING": Story.queued,
    "PROCESSING": Story.running,
    "PROCESSED": completed,
    "FAILED": failed,
}
EVENTS: dict[str, tuple[Payload, str, set[str]]] = {
    "processing_started": (payloads.SignalProcessingStarted(), "PROCESSING", {"PENDING"}),
    "processed": (payloads.SignalProcessed(), "PROCESSED", {"PROCESSING"}),
    "processing_failed": (payloads.SignalProcessingFailed(exit_reason="X"), "FAILED", {"PROCESSING"}),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_state_against_every_event(state: str, event: str) -> None:
    story = STATES[state]()
    assert story.signal.status == state
    payload, target, legal = EVENTS[event]
    forged = story.forge(payload)
    if state in legal:
        after = fold_signal(story.case.signal, [forged]).signal
        assert after is not None
        assert after.status == target
        return
    with pytest.raises(StateTransitionError) as refused:
        fold_signal(story.case.signal, [forged])
    assert (refused.value.aggregate, refused.value.aggregate_id) == ("signal", story.signal_id)
    assert (refused.value.from_state, refused.value.to_state) == (state, target)


@pytest.mark.parametrize("event", EVENTS)
def test_a_signal_that_never_came(event: str) -> None:
    story = Story()
    payload, target, _ = EVENTS[event]
    with pytest.raises(StateTransitionError) as refused:
        fold_signal(story.case.signal, [story.forge(payload)])
    assert (refused.value.from_state, refused.value.to_state) == (None, target)


def test_a_conflict_with_nothing() -> None:
    story = Story()
    conflict = payloads.SignalConflict(first_hash=HASH, second_hash=HASH)
    with pytest.raises(StateTransitionError):
        fold_signal(story.case.signal, [story.forge(conflict)])


def test_a_signal_comes_once() -> None:
    story = Story.received()
    again = story.forge(story_payload(), story.signal_id)
    with pytest.raises(StateTransitionError) as refused:
        fold_signal(story.case.signal, [again])
    assert (refused.value.from_state, refused.value.to_state) == ("PENDING", "PENDING")


def story_payload() -> payloads.SignalReceived:
    return payloads.SignalReceived(
        signal_type="EMAIL",
        source_channel="imap",
        source_id="m-1",
        source_hash=HASH,
        normalized_payload=raw({}),
        received_at=NOON,
    )


def test_the_row_of_a_new_signal() -> None:
    """§ENT-8"""
    story = Story()
    sent_at = NOON.astimezone(timezone(timedelta(hours=2)))
    story.do(receive({"subject": "hi"}, signal_type="EMAIL", received_at=sent_at, ingested_by="gateway"))
    assert story.signal == Signal(
        id=story.signal_id,
        tenant_id=story.case.signal.tenant_id,
        signal_type="EMAIL",
        source_channel="http",
        source_id="order-1",
        source_hash=HASH,
        normalized_payload=raw({"subject": "hi"}),
        received_at=NOON,
        ingested_at=story.now,
        processed_at=None,
        status="PENDING",
        correlation_id=story.signal_events[0].correlation_id,
        ingested_by="gateway",
    )


def test_the_end_has_its_time() -> None:
    """§TRN-5: `processed_at` is set with the terminal state."""
    for tell in (completed, failed):
        story = tell()
        assert story.signal.processed_at == story.now
    assert Story.running().signal.processed_at is None


def test_a_conflict_leaves_the_first_as_it_was() -> None:
    """§IDM-15"""
    story = Story.received()
    before = story.signal
    conflict = story.forge(payloads.SignalConflict(first_hash=HASH, second_hash=OTHER_HASH))
    after = fold_signal(story.case.signal, [conflict])
    assert after.signal is before
    assert after.last_seq == 2
