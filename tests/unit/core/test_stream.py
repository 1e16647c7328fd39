"""A stream, as a store hands it over, folds by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from runstone.errors import UnreadableEvent
from tests.unit.core.build import Story, handed_over
from tests.unit.core.stories import STORIES


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_it_gives_the_state_its_kind_has(tell: Callable[[], Story]) -> None:
    story = tell()
    signal = handed_over(story.case.signal, story.signal_events)
    run = handed_over(story.case.run, story.run_events)
    assert signal.fold() == story.case.signal
    assert run.fold() == story.case.run


def test_a_kind_that_nobody_knows_cannot_be_folded() -> None:
    story = Story.running()
    stream = handed_over(story.state, story.run_events)
    odd = replace(stream, head=replace(stream.head, kind="PLANET"))
    with pytest.raises(UnreadableEvent, match="a kind that nobody knows: 'PLANET'"):
        odd.fold()
