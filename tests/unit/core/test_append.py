"""A blind append: an event that somebody else drafted, put at the end of its stream (§STO-4)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from runstone.core import payloads
from runstone.core.append import append_write, empty_state, repeated, stream_kind
from runstone.core.catalogue import CATALOGUE
from runstone.core.contract import AppendResult
from runstone.core.events import Event, EventDraft
from runstone.core.fold import fold_run, fold_signal
from runstone.core.state import RunState, SignalState
from runstone.errors import StateTransitionError
from tests.unit.core.build import HASH, NOON, Story, an_id, raw


def drafted(story: Story, payload: payloads.Payload) -> EventDraft:
    event = story.forge(payload)
    return EventDraft(**{name: getattr(event, name) for name in EventDraft.__struct_fields__})


CREATED = payloads.RunCreated(signal_id=an_id(1), run_type="CONTINUATION", plan_id="p")
RECEIVED = payloads.SignalReceived(
    signal_type="EMAIL",
    source_channel="imap",
    source_id="m-1",
    source_hash=HASH,
    normalized_payload=raw({}),
    received_at=NOON,
)


@pytest.mark.parametrize("kind", CATALOGUE.types.values(), ids=CATALOGUE.types)
def test_the_stream_an_event_belongs_to(kind: type[payloads.Payload]) -> None:
    """§EVT-11, §EVT-12: SIGNAL_ACCEPTED and SIGNAL_REJECTED are events of the run."""
    draft = drafted(Story.running(), CREATED)
    of_kind = EventDraft(
        **{name: getattr(draft, name) for name in EventDraft.__struct_fields__}
        | {"event_type": kind.EVENT_TYPE}
    )
    own = kind.AGGREGATE if kind.AGGREGATE in ("SIGNAL", "ENTITY", "SCHEDULE") else "RUN"
    assert stream_kind(of_kind) == own


def test_the_first_event_of_a_run() -> None:
    story = Story()
    draft = drafted(story, CREATED)
    state = empty_state(draft)
    assert state == RunState(stream_id=story.run_id, tenant_id=draft.tenant_id)
    write, after = append_write(state, draft, 0)
    assert (write.kind, write.expected_seq, write.last_seq, write.fence) == ("RUN", 0, 1, 0)
    assert after == fold_run(story.case.run, write.events)
    assert write.queue is not None


def test_the_first_event_of_a_signal() -> None:
    story = Story()
    draft = drafted(story, RECEIVED)
    state = empty_state(draft)
    assert state == SignalState(stream_id=story.signal_id, tenant_id=draft.tenant_id)
    write, after = append_write(state, draft, 3)
    assert (write.kind, write.last_seq, write.fence) == ("SIGNAL", 1, 3)
    assert after == fold_signal(story.case.signal, write.events)


def test_a_further_one_goes_to_the_end() -> None:
    story = Story.running()
    draft = drafted(story, payloads.RunPaused(reason="X"))
    write, after = append_write(story.state, draft, 5)
    (event,) = write.events
    assert (event.id, event.run_seq, event.prev_hash) == (draft.id, 3, story.state.head)
    assert (write.expected_seq, write.fence, write.head) == (2, 5, after.head)
    assert isinstance(after, RunState)
    assert after.run is not None
    assert write.rows == (after.run,)


def test_one_that_takes_no_legal_arrow_is_refused() -> None:
    """§TRN-31: the core refuses it, whoever drafted it."""
    story = Story.running()
    with pytest.raises(StateTransitionError):
        append_write(story.state, drafted(story, payloads.RunResumed()), 0)


class TestRepeated:
    """§IDM-8 to §IDM-10"""

    def test_the_same_content_is_no_conflict(self) -> None:
        draft = drafted(Story.running(), payloads.RunPaused(reason="X"))
        assert repeated(draft, 7, "RUN_PAUSED", bytes(draft.event_data)) == AppendResult(
            run_seq=7, idempotent=True, persisted=False, conflict=False
        )

    @pytest.mark.parametrize(
        ("event_type", "event_data"), [("RUN_RESUMED", b'{"reason":"X"}'), ("RUN_PAUSED", b'{"reason":"Y"}')]
    )
    def test_another_type_or_payload_is(self, event_type: str, event_data: bytes) -> None:
        draft = drafted(Story.running(), payloads.RunPaused(reason="X"))
        assert repeated(draft, 7, event_type, event_data).conflict is True


class TestTime:
    """§ORD-23"""

    def appended(self, story: Story, draft: EventDraft) -> Event:
        (event,) = append_write(story.state, draft, 0)[0].events
        return event

    def test_it_does_not_go_back(self) -> None:
        story = Story.running()
        early = replace(drafted(story, payloads.RunPaused(reason="X")), occurred_at=NOON - timedelta(hours=1))
        assert self.appended(story, early).occurred_at == story.state.last_at

    def test_it_goes_on(self) -> None:
        story = Story.running()
        later = replace(drafted(story, payloads.RunPaused(reason="X")), occurred_at=NOON + timedelta(hours=1))
        assert self.appended(story, later).occurred_at == NOON + timedelta(hours=1)
