"""A commit: places, hashes and rows computed beforehand, so that a store only compares and writes."""

from __future__ import annotations

from msgspec.structs import replace

from runstone.core import payloads
from runstone.core.catalogue import CATALOGUE
from runstone.core.chain import event_hash
from runstone.core.commands import CancelRun, CreateRun, PauseRun, SetVariable, StartRun
from runstone.core.commit import (
    ONCE_PER_ATTEMPT,
    Commit,
    Lease,
    StreamWriter,
    causal_order,
    span_of,
)
from runstone.core.contract import CONTRACT_VERSION
from runstone.core.decide import decide
from runstone.core.events import Event, EventDraft
from runstone.core.fold import run_fold
from runstone.core.keys import event_key
from tests.unit.core.build import TENANT, Story, an_id, control, raw, receive, writer_on


class TestStreamWrite:
    """§STO-12"""

    def test_what_a_store_compares_and_writes(self) -> None:
        story = Story.queued()
        decision = story.do(StartRun(), lease=Lease(owner="worker-1", attempts=2))
        signal, run = decision.commit.writes
        assert (signal.stream_id, signal.kind, signal.tenant_id) == (story.signal_id, "SIGNAL", TENANT)
        assert (run.stream_id, run.kind, run.tenant_id) == (story.run_id, "RUN", TENANT)
        for write in (signal, run):
            assert (write.expected_seq, write.last_seq) == (1, 2)
            assert write.head == event_hash(write.events[-1])
            assert write.last_at == story.now
            assert write.raise_fence is False
        assert signal.rows == (story.signal,)
        assert run.rows == (story.run,)
        assert (signal.queue, signal.queue_changed, signal.lease) == (None, False, None)
        assert run.queue is not None
        assert run.lease == Lease(owner="worker-1", attempts=2)

    def test_it_carries_the_fence_it_was_decided_under(self) -> None:
        """§ORD-10"""
        story = Story.queued()
        story.case = replace(story.case, signal_fence=3, run_fence=8)
        signal, run = story.do(StartRun()).commit.writes
        assert (signal.fence, run.fence) == (3, 8)
        assert (story.case.signal_fence, story.case.run_fence) == (3, 8)

    def test_only_a_cancel_raises_it(self) -> None:
        """§ORD-13"""
        story = Story.running()
        assert not story.do(PauseRun(reason="X")).commit.writes[-1].raise_fence
        assert story.do(CancelRun(exit_reason="X")).commit.writes[-1].raise_fence

    def test_a_stream_that_was_not_touched_is_not_in_it(self) -> None:
        story = Story.running()
        (write,) = story.do(PauseRun(reason="X")).commit.writes
        assert write.kind == "RUN"


class TestOccurrence:
    """§IDM-4, §IDM-5"""

    def key(self, story: Story, event: Event, occurrence: str) -> str:
        return event_key(story.run_id, event.event_type, occurrence=occurrence)

    def test_it_is_empty_for_what_happens_once(self) -> None:
        story = Story.running()
        assert story.last.event_type in ONCE_PER_ATTEMPT
        assert story.last.idempotency_key == self.key(story, story.last, "")

    def test_it_is_the_control_signal_that_caused_it(self) -> None:
        story = Story.running()
        story.do(control("PAUSE", 901))
        assert story.last.idempotency_key == self.key(story, story.last, an_id(901))

    def test_or_else_the_place_in_the_stream(self) -> None:
        story = Story.running()
        story.do(SetVariable(name="x", value=raw(1)))
        assert story.last.idempotency_key == self.key(story, story.last, "3")

    def test_what_happens_once_is_in_the_catalogue(self) -> None:
        assert set(CATALOGUE.types) > ONCE_PER_ATTEMPT


class TestWriter:
    def test_it_keeps_its_own_journal_unless_it_is_given_one(self) -> None:
        story = Story.running()
        alone = writer_on(story)
        alone.record(payloads.RunPaused(reason="X"))
        assert alone.journal is alone.events

        shared: list[Event] = []
        together = StreamWriter(run_fold(story.state), story.context(), an_id(1), journal=shared)
        event = together.record(payloads.RunPaused(reason="X"))
        assert shared == together.events == [event]

    def test_the_correlation_is_the_one_it_was_given(self) -> None:
        story = Story.running()
        writer = StreamWriter(run_fold(story.state), story.context(), an_id(77))
        assert writer.record(payloads.RunPaused(reason="X")).correlation_id == an_id(77)


def drafted(story: Story, payload: payloads.Payload, **changes: object) -> EventDraft:
    event = replace(story.forge(payload), **changes)
    return EventDraft(**{name: getattr(event, name) for name in EventDraft.__struct_fields__})


class TestCausalOrder:
    """§ORD-21: the feed shows a cause before what it caused, and each stream in its own order."""

    def ids(self, *streams: list[Event]) -> list[str]:
        return [event.id for event in causal_order(streams)]

    def test_a_case_can_be_put_together_again(self) -> None:
        story = Story.running()
        story.returned()
        ordered = causal_order([story.signal_events, story.run_events])
        assert sorted(event.id for event in ordered) == sorted(event.id for event in story.events)
        seen: set[str | None] = {None}
        for event in ordered:
            assert event.causation_id in seen
            seen.add(event.id)
        for stream in (story.signal_events, story.run_events):
            assert [event for event in ordered if event in stream] == stream

    def test_a_cause_that_is_elsewhere_counts_as_known(self) -> None:
        story = Story.running()
        assert self.ids(story.run_events) == [event.id for event in story.run_events]
        assert self.ids([], story.run_events[1:]) == [story.last.id]
        assert self.ids() == []

    def test_a_circle_does_not_hang_it(self) -> None:
        """`verify` reports it; here every event still comes out once."""
        story = Story.running()
        one, other = story.run_events
        tangled = [[replace(one, causation_id=other.id)], [replace(other, causation_id=one.id)]]
        assert self.ids(*tangled) == [one.id, other.id]


def test_decisions_about_different_cases_become_durable_together() -> None:
    one, other = Story.running(), Story.running()
    first, second = one.do(PauseRun(reason="X")).commit, other.do(PauseRun(reason="Y")).commit
    both = Commit.of(first, second)
    assert both.writes == first.writes + second.writes
    assert both.events == first.events + second.events
    assert Commit.of() == Commit((), ())


class TestTrace:
    """§EVT-3, §VER-2"""

    def test_without_a_trace_the_correlation_is_the_trace_and_the_commit_the_span(self) -> None:
        story = Story()
        story.do(receive(), CreateRun(plan_id="p"))
        first, second = story.events
        assert first.trace_id == second.trace_id == first.correlation_id.replace("-", "")
        assert first.span_id == second.span_id == span_of(first.id)
        story.do(StartRun())
        assert story.last.span_id != first.span_id
        assert story.last.adapter_version == CONTRACT_VERSION

    def test_a_trace_that_is_under_way_goes_on(self) -> None:
        story = Story.running()
        context = replace(story.context(), trace_id="a" * 32, span_id="b" * 16)
        (event,) = decide(story.case, PauseRun(reason="X"), context=context).commit.events
        assert (event.trace_id, event.span_id) == ("a" * 32, "b" * 16)
