"""A stream, as a store hands it over, folds by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from runstone.core.events import Event, StreamKind
from runstone.core.state import StreamState
from runstone.core.stream import Stream, StreamHead
from runstone.errors import UnreadableEvent
from tests.unit.core.build import Story
from tests.unit.core.stories import STORIES


def handed_over(kind: StreamKind, state: StreamState, events: list[Event]) -> Stream:
    assert state.last_at is not None
    head = StreamHead(
        stream_id=state.stream_id,
        tenant_id=state.tenant_id,
        kind=kind,
        last_seq=state.last_seq,
        head=state.head,
        last_at=state.last_at,
        fence=0,
    )
    return Stream(head=head, events=tuple(events))


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_it_gives_the_state_its_kind_has(tell: Callable[[], Story]) -> None:
    story = tell()
    signal = handed_over("SIGNAL", story.case.signal, story.signal_events)
    run = handed_over("RUN", story.case.run, story.run_events)
    assert signal.fold() == story.case.signal
    assert run.fold() == story.case.run


def test_a_kind_that_nobody_knows_cannot_be_folded() -> None:
    story = Story.running()
    stream = handed_over("RUN", story.state, story.run_events)
    odd = replace(stream, head=replace(stream.head, kind="PLANET"))
    with pytest.raises(UnreadableEvent, match="a kind that nobody knows: 'PLANET'"):
        odd.fold()
