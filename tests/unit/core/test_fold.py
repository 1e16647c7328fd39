"""The fold: the same events give the same state, however they are fed in, and nothing is skipped."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from runstone.core.events import Event
from runstone.core.fold import fold_run, fold_signal, run_fold
from runstone.core.payloads import RunResumed, SignalProcessingStarted
from runstone.core.state import RunState, SignalState
from runstone.errors import (
    CommandRefused,
    ForeignEvent,
    SequenceGap,
    StateTransitionError,
    UnknownEventType,
    UnknownEventVersion,
)
from tests.unit.core.build import Story
from tests.unit.core.stories import STORIES

every_story = pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)


def refold(story: Story) -> tuple[SignalState, RunState]:
    """Both states from the log alone."""
    signal = fold_signal(story.beginning.signal, story.signal_events)
    return signal, fold_run(story.beginning.run, story.run_events)


def image(state: object) -> bytes:
    """A state as bytes, containers included, in the order they have."""
    return msgspec.json.encode(state)


@every_story
def test_the_log_alone_gives_the_state_that_was_decided_on(tell: Callable[[], Story]) -> None:
    """§ENG-2"""
    story = tell()
    signal, run = refold(story)
    assert image(signal) == image(story.case.signal)
    assert image(run) == image(story.case.run)


@every_story
def test_it_makes_no_difference_where_the_log_is_cut(tell: Callable[[], Story]) -> None:
    """§ORD-34: a projector goes on from its watermark."""
    story = tell()
    whole = image(story.state)
    for cut in range(len(story.run_events) + 1):
        first = fold_run(story.beginning.run, story.run_events[:cut])
        assert first.last_seq == cut
        assert image(fold_run(first, story.run_events[cut:])) == whole


@every_story
def test_events_that_were_folded_already_change_nothing(tell: Callable[[], Story]) -> None:
    story = tell()
    signal, run = refold(story)
    assert image(fold_run(run, story.run_events)) == image(run)
    assert image(fold_signal(signal, story.signal_events)) == image(signal)
    twice = [event for event in story.run_events for _ in range(2)]
    assert image(fold_run(story.beginning.run, twice)) == image(run)


@every_story
def test_the_state_it_began_with_stays_as_it_was(tell: Callable[[], Story]) -> None:
    """§ORD-36: a projection is a new immutable value."""
    story = tell()
    for cut in range(len(story.run_events) + 1):
        before = fold_run(story.beginning.run, story.run_events[:cut])
        kept = image(before)
        fold_run(before, story.run_events[cut:])
        assert image(before) == kept
    assert image(story.beginning.run) == image(
        RunState(stream_id=story.run_id, tenant_id=story.run.tenant_id)
    )


@every_story
def test_the_state_says_how_far_it_goes(tell: Callable[[], Story]) -> None:
    story = tell()
    for state, events in ((story.case.signal, story.signal_events), (story.case.run, story.run_events)):
        assert state.last_seq == len(events)
        assert state.last_event == events[-1].id
        assert state.last_at == events[-1].occurred_at


@every_story
def test_a_missing_event_stops_it(tell: Callable[[], Story]) -> None:
    """§ORD-31: a gap read from the store is corruption."""
    events = tell().run_events
    for missing in range(len(events) - 1):
        with pytest.raises(SequenceGap, match="PROJECTOR_GAP_DETECTED") as refused:
            fold_run(
                RunState(stream_id=events[0].stream_id, tenant_id=events[0].tenant_id),
                events[:missing] + events[missing + 1 :],
            )
        assert refused.value.stream_id == events[0].stream_id
        assert (refused.value.expected, refused.value.found) == (missing + 1, missing + 2)


class TestUnreadableEvents:
    """§EVT-20, §EVT-21"""

    def next_events(self) -> list[tuple[Callable[[Event], object], Event]]:
        story = Story.running()
        return [
            (lambda event: fold_run(story.state, [event]), story.forge(RunResumed())),
            (lambda event: fold_signal(story.case.signal, [event]), story.forge(SignalProcessingStarted())),
        ]

    def test_an_unknown_type_stops_it(self) -> None:
        for fold, event in self.next_events():
            with pytest.raises(UnknownEventType) as refused:
                fold(replace(event, event_type="RUN_FLEW"))
            assert refused.value.event_type == "RUN_FLEW"

    def test_a_version_that_is_too_new_stops_it(self) -> None:
        for fold, event in self.next_events():
            with pytest.raises(UnknownEventVersion) as refused:
                fold(replace(event, event_version=9))
            assert (refused.value.event_version, refused.value.known) == (9, 1)

    def test_an_event_of_the_other_kind_of_stream_is_unknown_here(self) -> None:
        """§ENT-3: a signal's events are no business of its run, nor the other way round."""
        story = Story.running()
        of_run = replace(story.forge(SignalProcessingStarted()), run_seq=3, stream_id=story.run_id)
        of_signal = replace(story.forge(RunResumed()), run_seq=3, stream_id=story.signal_id)
        with pytest.raises(UnknownEventType):
            fold_run(story.state, [of_run])
        with pytest.raises(UnknownEventType):
            fold_signal(story.case.signal, [of_signal])

    def test_a_fold_that_was_frozen_takes_nothing_more_in(self) -> None:
        story = Story.running()
        fold = run_fold(story.state)
        fold.freeze()
        with pytest.raises(AssertionError, match="frozen"):
            fold.apply(story.forge(RunResumed()))

    def test_an_event_of_another_stream_or_tenant_is_refused(self) -> None:
        """§TEN-3"""
        story = Story.running()
        foreign = replace(story.forge(RunResumed()), run_seq=3)
        for field in ("stream_id", "tenant_id"):
            with pytest.raises(ForeignEvent):
                fold_run(story.state, [replace(foreign, **{field: story.signal_id})])


def first_event(kind: str) -> Event:
    """Some event of that type, taken from a story that has one."""
    return next(event for tell in STORIES.values() for event in tell().events if event.event_type == kind)


def run_types() -> list[str]:
    types = {event.event_type for tell in STORIES.values() for event in tell().run_events}
    return sorted(types - {"RUN_CREATED"})


@pytest.mark.parametrize("event_type", run_types())
def test_nothing_can_happen_to_a_run_that_was_never_created(event_type: str) -> None:
    """§TRN-6: RUN_CREATED opens its stream."""
    event = replace(first_event(event_type), run_seq=1)
    with pytest.raises((StateTransitionError, CommandRefused)):
        fold_run(RunState(stream_id=event.stream_id, tenant_id=event.tenant_id), [event])


@every_story
def test_times_in_rows_come_from_events(tell: Callable[[], Story]) -> None:
    """§ENT-4: nothing in a row is later than the log, and every end has the time of its event."""
    story = tell()
    at = {event.id: event.occurred_at for event in story.run_events}
    ends = [event for event in story.run_events if event.event_type in ("STEP_COMPLETED", "STEP_FAILED")]
    for event in ends:
        assert story.state.steps[event.aggregate_id].completed_at == at[event.id]
    assert story.run.created_at == story.run_events[0].occurred_at
