"""Decide: what is true of every decision, whatever was decided."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from runstone.core import commands, decide
from runstone.core.commands import Command
from runstone.core.commit import Lease
from runstone.core.decide import Case
from runstone.core.fold import fold_run, fold_signal
from runstone.core.payloads import WaitSpec
from runstone.errors import CommandRefused, InvalidPayload
from tests.unit.core.build import (
    NOON,
    OTHER_HASH,
    TENANT,
    Story,
    an_id,
    answer,
    control,
    data,
    decided,
    error,
    raw,
    receive,
)
from tests.unit.core.stories import STORIES

every_story = pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)


def all_commands() -> set[type[Command]]:
    kinds = vars(commands).values()
    return {
        kind
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, Command) and not kind.__name__.startswith("_")
    }


def test_every_command_has_somebody_who_decides_it() -> None:
    assert set(decide._DECIDERS) == all_commands()


@pytest.mark.parametrize(
    "command",
    [
        commands.StartRun(),
        commands.PauseRun(reason="X"),
        commands.SuspendRun(),
        commands.SetVariable(name="x", value=raw(1)),
        commands.CreateCheckpoint(checkpoint_id=an_id(1)),
        commands.ReturnHandler(result=raw(1)),
        commands.ContinueRun(carry=raw(1)),
        commands.FailRun(error=error()),
        commands.CancelRun(exit_reason="X"),
        control("PAUSE"),
        commands.RefuseControl(control_signal_id=an_id(1), kind="PAUSE", sender="eve", error=error()),
        commands.StartStep(step_key="a", step_type="DECISION"),
        commands.CompleteStep(step_key="a", output=decided(1)),
        commands.FailStep(step_key="a", error=error()),
        commands.SkipStep(step_key="a", reason="X"),
        commands.RetryStep(step_key="a"),
        commands.CorrectStep(step_id=an_id(1), output=decided(1), reason="X"),
        commands.CallTool(step_key="a", tool_name="t", tool_args=raw(1)),
        commands.RequestEffect(step_key="a", effect_type="X", spec={}),
        commands.BeginEffect(effect_id=an_id(1), executor="x"),
        commands.CompleteEffect(effect_id=an_id(1), executor="x", result=raw(1)),
        commands.FailEffect(effect_id=an_id(1), executor="x", error=error(), next_retry_at=NOON),
        commands.LoseEffect(effect_id=an_id(1), executor="x"),
        commands.ReconcileEffect(effect_id=an_id(1), sent=True),
        commands.RequeueEffect(effect_id=an_id(1)),
        commands.DiscardEffect(effect_id=an_id(1)),
        commands.ReportLateOutcome(effect_id=an_id(1), executor="x"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_nothing_can_be_asked_of_a_run_that_does_not_exist(command: Command) -> None:
    with pytest.raises(CommandRefused):
        Story.received().do(command)


def test_a_refusal_leaves_everything_as_it_was() -> None:
    """Also when an earlier command of the same decision was fine."""
    story = Story.running()
    before = story.case
    with pytest.raises(CommandRefused):
        story.do(
            commands.StartStep(step_key="a", step_type="DECISION"),
            commands.CompleteStep(step_key="b", output=decided(1)),
        )
    assert story.case is before
    assert story.state.steps == {}
    story.step("a")


def test_deciding_twice_on_the_same_case_gives_the_same_events() -> None:
    """Pure: whoever loses a race reads again and decides again."""
    one, other = Story.running(), Story.running()
    assert one.do(commands.PauseRun(reason="X")).commit == other.do(commands.PauseRun(reason="X")).commit


def test_a_command_sees_what_the_commands_before_it_did() -> None:
    story = Story()
    decision = story.do(
        receive(),
        commands.CreateRun(plan_id="p"),
        commands.StartRun(),
        commands.StartStep(step_key="a", step_type="DECISION"),
        commands.CompleteStep(step_key="a", output=decided(1)),
        commands.ReturnHandler(result=raw(1)),
    )
    assert (story.status, story.signal.status) == ("COMPLETED", "PROCESSED")
    assert [write.expected_seq for write in decision.commit.writes] == [0, 0]


def test_no_command_no_commit() -> None:
    story = Story.running()
    before = story.case
    decision = story.do(lease=Lease(owner=None))
    assert decision.commit.writes == ()
    assert decision.case == before


class TestEnvelope:
    """What every event says about where it comes from."""

    def test_it_carries_what_the_context_knows(self) -> None:
        story = Story.queued(plan_version="2")
        story.do(
            commands.StartRun(),
            actor="worker-1",
            trace_id="ab" * 16,
            span_id="cd" * 8,
            adapter_version="2.0.0",
            engine_attempt=4,
            engine_run_ref={"id": 1},
        )
        for event in (story.last, story.signal_events[-1]):
            assert (event.actor, event.trace_id, event.span_id) == ("worker-1", "ab" * 16, "cd" * 8)
            assert (event.adapter_version, event.engine_attempt) == ("2.0.0", 4)
            assert event.engine_run_ref == {"id": 1}

    @every_story
    def test_run_and_stream(self, tell: Callable[[], Story]) -> None:
        """§ORD-1, §ORD-3, §TEN-3"""
        story = tell()
        assert {(event.stream_id, event.run_id) for event in story.signal_events} == {(story.signal_id, None)}
        assert {(event.stream_id, event.run_id) for event in story.run_events} == {
            (story.run_id, story.run_id)
        }
        assert {event.tenant_id for event in story.events} == {TENANT}

    @every_story
    def test_sequences_are_contiguous_from_one(self, tell: Callable[[], Story]) -> None:
        """§ORD-5"""
        story = tell()
        for events in (story.signal_events, story.run_events):
            assert [event.run_seq for event in events] == list(range(1, len(events) + 1))

    @every_story
    def test_one_correlation_from_the_signal_on(self, tell: Callable[[], Story]) -> None:
        """§ORD-18"""
        story = tell()
        assert {event.correlation_id for event in story.events} == {story.signal.correlation_id}
        assert story.run.correlation_id == story.signal.correlation_id

    @every_story
    def test_keys_are_unique_in_their_stream(self, tell: Callable[[], Story]) -> None:
        """§ORD-6, §IDM-7"""
        story = tell()
        for events in (story.signal_events, story.run_events):
            keys = [event.idempotency_key for event in events]
            assert len(set(keys)) == len(keys)

    def test_a_case_that_is_known_by_its_run_alone_keeps_the_correlation(self) -> None:
        story = Story.running()
        story.case = replace(story.case, signal=Case.new(TENANT, story.signal_id, story.run_id).signal)
        story.do(commands.PauseRun(reason="X"))
        assert story.last.correlation_id == story.run.correlation_id


class TestCausation:
    """§ORD-20, §ORD-21"""

    @every_story
    def test_every_event_but_the_first_has_a_cause_that_came_before_it(
        self, tell: Callable[[], Story]
    ) -> None:
        """So the graph has no cycle: an order exists in which every cause precedes what it caused."""
        story = tell()
        caused = {event.id: event.causation_id for event in story.events}
        assert caused.pop(story.signal_events[0].id) is None
        known = {story.signal_events[0].id}
        waiting = dict(caused)
        while waiting:
            ready = {event for event, cause in waiting.items() if cause in known}
            assert ready, f"no cause, or a circle: {waiting}"
            known |= ready
            waiting = {event: cause for event, cause in waiting.items() if event not in ready}

    @every_story
    def test_a_cause_in_the_same_stream_stands_before_its_effect(self, tell: Callable[[], Story]) -> None:
        story = tell()
        for events in (story.signal_events, story.run_events):
            places = {event.id: event.run_seq for event in events}
            for event in events:
                assert places.get(event.causation_id or "", 0) < event.run_seq

    @every_story
    def test_a_commit_lists_its_events_behind_their_causes(self, tell: Callable[[], Story]) -> None:
        """The order of the feed: whatever an event names is stored already, or stands before it."""
        stored: set[str | None] = {None}
        for decision in tell().decisions:
            for event in decision.commit.events:
                assert event.causation_id in stored
                stored.add(event.id)

    def test_a_run_is_caused_by_its_signal_and_its_start_causes_the_signals(self) -> None:
        story = Story.running()
        created, started = story.run_events
        assert created.causation_id == story.signal_events[0].id
        assert started.causation_id == created.id
        assert story.signal_events[1].causation_id == started.id

    def test_a_step_is_caused_by_what_let_the_handler_go_on(self) -> None:
        story = Story.running()
        story.step("first")
        story.open_step("second")
        assert story.last.causation_id == story.of_type("STEP_COMPLETED")[0].id

    def test_a_branch_may_say_what_it_saw_last(self) -> None:
        story = Story.running()
        story.step("first")
        story.step("second")
        first = story.of_type("STEP_COMPLETED")[0].id
        story.open_step("third", cause=first)
        assert story.last.causation_id == first

    def test_tools_and_effects_are_caused_by_their_step(self) -> None:
        story = Story.running()
        story.open_step()
        step = story.last.id
        story.do(commands.CallTool(step_key="work", tool_name="t", tool_args=raw(1)))
        assert story.last.causation_id == step
        story.do(commands.RequestEffect(step_key="work", effect_type="X", spec={}))
        assert story.last.causation_id == step

    def test_the_end_is_caused_by_the_fact_that_was_missing(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.returned()
        story.sent(effect)
        completed = story.of_type("RUN_COMPLETED")[0]
        assert completed.causation_id == story.of_type("EFFECT_COMPLETED")[0].id
        assert story.signal_events[-1].causation_id == completed.id

    def test_a_start_is_caused_by_what_let_the_run_go(self) -> None:
        """§ORD-42: not by a control signal that was refused meanwhile."""
        story = Story.queued(approval_required=True)
        story.do(control("APPROVE", 801))
        approved = story.last.id
        story.do(control("PAUSE", 802))
        assert story.last.event_type == "SIGNAL_REJECTED"
        story.do(commands.StartRun())
        assert story.of_type("RUN_STARTED")[0].causation_id == approved

    @pytest.mark.parametrize(
        "rest",
        [
            commands.SuspendRun(),
            commands.PauseRun(reason="NON_DETERMINISTIC"),
            commands.CreateCheckpoint(checkpoint_id=an_id(700)),
        ],
        ids=["suspended", "paused", "checkpointed"],
    )
    def test_a_rest_is_caused_by_what_let_the_handler_come_there(self, rest: commands.Command) -> None:
        """§ORD-42"""
        story = Story.running()
        story.step("first")
        came_from = story.last.id
        story.do(commands.SetVariable(name="n", value=raw(1)))
        story.do(rest)
        assert story.last.causation_id == came_from

    def test_a_step_causes_the_pause_of_the_run_that_it_parks(self) -> None:
        story = Story.running()
        story.parked_step()
        assert story.last.event_type == "RUN_PAUSED"
        assert story.last.causation_id == story.of_type("STEP_FAILED")[0].id

    @pytest.mark.parametrize(
        "end",
        [
            commands.ReturnHandler(result=raw(1)),
            commands.ContinueRun(carry=raw(1)),
            commands.FailRun(error=error()),
            commands.CancelRun(exit_reason="ENOUGH"),
        ],
        ids=["returned", "continued", "failed", "cancelled"],
    )
    def test_what_is_under_way_ends_by_the_cause_of_its_runs_end(self, end: commands.Command) -> None:
        """§ORD-42: the end does not come of what it closes."""
        story = Story.running()
        story.step("first")
        came_from = story.last.id
        story.open_step("call")
        story.do(commands.CallTool(step_key="call", tool_name="slow", tool_args=raw({})))
        tool, step, ended = story.do(end).commit.writes[-1].events[:3]
        assert [tool.event_type, step.event_type] == ["TOOL_FAILED", "STEP_FAILED"]
        assert {tool.causation_id, step.causation_id, ended.causation_id} == {came_from}

    def test_effects_are_withdrawn_by_what_cancels_their_run(self) -> None:
        """§ORD-42"""
        story = Story.running()
        story.effect("pending")
        story.not_sent(story.effect("failed", spec={"to": "joe"}), retryable=True)
        story.do(control("CANCEL"))
        (accepted,) = story.of_type("SIGNAL_ACCEPTED")
        withdrawn = story.of_type("EFFECT_CANCELLED") + story.of_type("EFFECT_DEAD_LETTERED")
        assert len(withdrawn) == 3
        assert {event.causation_id for event in withdrawn} == {accepted.id}

    def test_a_conflict_is_caused_by_the_signal_that_came_first(self) -> None:
        """§ORD-42: whatever became of it since."""
        story = Story.running()
        story.do(commands.ReportConflict(source_hash=OTHER_HASH))
        assert story.signal_events[-1].event_type == "SIGNAL_CONFLICT"
        assert story.signal_events[-1].causation_id == story.signal_events[0].id

    def test_a_child_names_an_event_of_its_parent(self) -> None:
        parent, child = Story.running(), Story()
        child.do(receive(cause=parent.last.id))
        assert child.signal_events[0].causation_id == parent.last.id


class TestTime:
    """§ORD-23"""

    def test_it_never_goes_back_in_a_stream_though_the_clock_does(self) -> None:
        story = Story.running()
        latest = story.now
        story.now -= timedelta(hours=1)
        story.do(commands.PauseRun(reason="X"))
        assert story.now < latest
        assert story.last.occurred_at == latest
        story.now = latest + timedelta(hours=1)
        story.do(control("RESUME"))
        assert story.last.occurred_at == story.now

    def test_a_row_has_the_time_of_its_event(self) -> None:
        story = Story.running()
        latest = story.now
        story.now -= timedelta(hours=1)
        story.step()
        assert (story.latest().started_at, story.latest().completed_at) == (latest, latest)

    @every_story
    def test_times_rise_in_every_story(self, tell: Callable[[], Story]) -> None:
        story = tell()
        for events in (story.signal_events, story.run_events):
            times = [event.occurred_at for event in events]
            assert times == sorted(times)

    def test_what_came_to_be_before_it_was_written_says_when(self) -> None:
        """§EVT-5, §ENG-14: a step's start may ride with a later commit."""
        story = Story.running()
        begun, ended = story.now + timedelta(seconds=10), story.now + timedelta(seconds=12)
        story.do(
            commands.StartStep(step_key="work", step_type="DECISION"),
            commands.CompleteStep(step_key="work", output=decided(1)),
            commands.ReturnHandler(result=raw(1)),
            times=[begun, ended, ended],
        )
        assert (story.latest().started_at, story.latest().completed_at) == (begun, ended)
        assert data(story.of_type("STEP_COMPLETED")[0])["duration_ms"] == 2000
        assert story.run.completed_at == story.signal.processed_at == ended

    @pytest.mark.parametrize(
        ("milliseconds", "microseconds"), [(0, 0), (1, 1), (1001, 0), (1001, 999), (4_003_001, 0)]
    )
    def test_durations_are_whole_milliseconds(self, milliseconds: int, microseconds: int) -> None:
        story = Story.running()
        story.open_step()
        started = story.now
        taken = timedelta(milliseconds=milliseconds, microseconds=microseconds)
        story.do(commands.CompleteStep(step_key="work", output=decided(1)), now=started + taken)
        assert data(story.last)["duration_ms"] == milliseconds

    def test_no_duration_is_negative(self) -> None:
        story = Story.running()
        story.open_step()
        story.do(commands.FailStep(step_key="work", error=error()), now=story.now - timedelta(hours=1))
        assert data(story.last)["duration_ms"] == 0


def opened(**start: Any) -> Story:
    story = Story.running()
    story.open_step(**start)
    return story


NAIVE = NOON.replace(tzinfo=None)
UNREADABLE: dict[str, tuple[Callable[[], Story], Command]] = {
    "empty source id": (Story, receive(source_id="")),
    "long source channel": (Story, receive(source_channel="x" * 101)),
    "no hash": (Story, receive(source_hash="abc")),
    "time without a zone": (Story, receive(received_at=NAIVE)),
    "empty variable name": (Story.running, commands.SetVariable(name="", value=raw(1))),
    "empty exit reason": (Story.running, commands.CancelRun(exit_reason="")),
    "empty error code": (Story.running, commands.FailRun(error=error(""))),
    "wake-up without a zone": (Story.running, commands.SuspendRun(wake_at=NAIVE)),
    "checkpoint without an id": (Story.running, commands.CreateCheckpoint(checkpoint_id="1")),
    "a control signal of no kind": (Story.running, control("DANCE")),  # type: ignore[arg-type]
    "step id that is none": (
        Story.running,
        commands.StartStep(step_key="a", step_type="DECISION", step_id="a"),
    ),
    "long specialist": (
        Story.running,
        commands.StartStep(step_key="a", step_type="DECISION", specialist_id="x" * 101),
    ),
    "deadline without a zone": (
        Story.running,
        commands.StartStep(step_key="a", step_type="WAIT", wait=WaitSpec(deadline=NAIVE)),
    ),
    "empty tool name": (opened, commands.CallTool(step_key="work", tool_name="", tool_args=raw(1))),
    "empty effect type": (opened, commands.RequestEffect(step_key="work", effect_type="", spec={})),
    "long effect key": (
        opened,
        commands.RequestEffect(step_key="work", effect_type="X", spec={}, effect_key="x" * 256),
    ),
    "half a character": (Story.running, commands.PauseRun(reason="\ud800")),
    "a NUL in a text": (Story.running, commands.PauseRun(reason="a\0b")),
    "a NUL in a step key": (Story.running, commands.StartStep(step_key="a\0b", step_type="DECISION")),
    "negative retries": (
        opened,
        commands.RequestEffect(step_key="work", effect_type="X", spec={}, max_retries=-1),
    ),
}


@pytest.mark.parametrize("wrong", UNREADABLE)
def test_what_could_not_be_read_back_is_not_written(wrong: str) -> None:
    """A commit that the fold cannot read would halt its stream for good (§ENG-1)."""
    tell, command = UNREADABLE[wrong]
    story = tell()
    with pytest.raises((InvalidPayload, CommandRefused)):
        story.do(command)


def test_a_text_that_only_looks_like_a_nul_is_written() -> None:
    story = Story.running()
    story.do(commands.PauseRun(reason="a\\u0000b"))
    assert data(story.last) == {"reason": "a\\u0000b"}


def test_a_long_exit_reason_is_cut_and_can_be_read() -> None:
    story = Story.running()
    story.do(commands.FailRun(error=error(), exit_reason="because " * 20))
    assert story.run.exit_reason == ("because " * 20)[:100]
    assert fold_run(story.beginning.run, story.run_events).run == story.run
    assert fold_signal(story.beginning.signal, story.signal_events).signal == story.signal


def test_a_kept_answer_is_part_of_the_state_a_decision_looks_at() -> None:
    story = Story.running()
    decision = story.do(
        answer("color", "red"),
        commands.StartStep(step_key="w", step_type="WAIT", wait=WaitSpec(name="color")),
    )
    assert [event.event_type for event in decision.commit.events] == [
        "SIGNAL_ACCEPTED",
        "STEP_STARTED",
        "STEP_COMPLETED",
    ]
