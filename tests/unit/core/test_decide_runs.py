"""Decisions about a run: how it begins, rests, remembers and goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, timezone

import pytest
from msgspec.structs import replace

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.state import RunState
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import (
    TENANT,
    Story,
    an_id,
    answer,
    control,
    data,
    decided,
    error,
    plain,
    raw,
    types,
)


def ended() -> Story:
    story = Story.running()
    story.returned()
    return story


class TestCreate:
    def test_a_run_is_queued_for_its_signal(self) -> None:
        story = Story.received()
        assert types(story.do(commands.CreateRun(plan_id="orders"))) == ["RUN_CREATED"]
        assert data(story.last) == {
            "plan_id": "orders",
            "run_type": "SIGNAL_PROCESSING",
            "signal_id": story.signal_id,
        }
        assert (story.status, story.signal.status) == ("PENDING", "PENDING")

    def test_without_a_signal_there_is_no_run(self) -> None:
        """§ENT-10"""
        with pytest.raises(StateTransitionError) as refused:
            Story().do(commands.CreateRun(plan_id="orders"))
        assert (refused.value.aggregate, refused.value.from_state) == ("signal", None)

    def test_it_is_created_once(self) -> None:
        story = Story.running()
        with pytest.raises(StateTransitionError) as refused:
            story.do(commands.CreateRun(plan_id="orders"))
        assert (refused.value.aggregate, refused.value.aggregate_id) == ("run", story.run_id)
        assert (refused.value.from_state, refused.value.to_state) == ("RUNNING", "PENDING")

    def test_a_signal_that_has_ended_gets_no_further_run(self) -> None:
        """§TRN-26"""
        story = ended()
        story.case = replace(story.case, run=RunState(stream_id=an_id(500), tenant_id=TENANT))
        with pytest.raises((CommandRefused, StateTransitionError)):
            story.do(commands.CreateRun(plan_id="orders"))

    def test_the_plan_version_is_in_the_key_of_every_event(self) -> None:
        """§IDM-1"""
        one, other = Story.running(plan_version="1"), Story.running(plan_version="2")
        for event, same_of_other in zip(one.run_events, other.run_events, strict=True):
            assert event.idempotency_key != same_of_other.idempotency_key


class TestStart:
    def test_the_run_starts_and_its_signal_with_it(self) -> None:
        """§TRN-23"""
        story = Story.queued(orchestrator_version="1.0")
        assert types(story.do(commands.StartRun())) == ["RUN_STARTED", "SIGNAL_PROCESSING_STARTED"]
        assert data(story.last) == {
            "signal_id": story.signal_id,
            "run_type": "SIGNAL_PROCESSING",
            "orchestrator_version": "1.0",
        }
        assert (story.status, story.signal.status) == ("RUNNING", "PROCESSING")

    def test_the_version_that_runs_it_is_kept(self) -> None:
        story = Story.queued(orchestrator_version="1.0")
        story.do(commands.StartRun(orchestrator_version="1.1"))
        assert story.run.orchestrator_version == "1.1"

    def test_not_before_it_is_approved(self) -> None:
        """§TRN-11"""
        story = Story.queued(approval_required=True)
        with pytest.raises(CommandRefused, match="waits for its approval"):
            story.do(commands.StartRun())
        story.do(control("APPROVE"))
        story.do(commands.StartRun())
        assert story.status == "RUNNING"

    def test_it_starts_once(self) -> None:
        story = Story.running()
        with pytest.raises(StateTransitionError) as refused:
            story.do(commands.StartRun())
        assert (refused.value.from_state, refused.value.to_state) == ("RUNNING", "RUNNING")

    def test_a_paused_run_is_resumed_not_started(self) -> None:
        """§ENT-11: `started_at` is when it first started."""
        story = Story.running()
        story.do(commands.PauseRun(reason="PARKED"))
        with pytest.raises((CommandRefused, StateTransitionError)):
            story.do(commands.StartRun())


class TestPause:
    def test_the_engine_says_why(self) -> None:
        """§ENG-19"""
        story = Story.running()
        details = {"expected": "a", "found": "b"}
        story.do(commands.PauseRun(reason="NON_DETERMINISTIC", details=raw(details)))
        assert data(story.last) == {"reason": "NON_DETERMINISTIC", "details": details}
        assert story.status == "PAUSED"

    @pytest.mark.parametrize("tell", [Story.queued, ended], ids=["PENDING", "COMPLETED"])
    def test_only_what_runs_can_pause(self, tell: Callable[[], Story]) -> None:
        story = tell()
        with pytest.raises(StateTransitionError) as refused:
            story.do(commands.PauseRun(reason="X"))
        assert (refused.value.from_state, refused.value.to_state) == (story.status, "PAUSED")

    def test_a_second_pause_is_a_second_fact(self) -> None:
        """§IDM-5"""
        story = Story.running()
        story.do(commands.PauseRun(reason="X"))
        story.do(control("RESUME"))
        story.do(commands.PauseRun(reason="X"))
        one, other = story.of_type("RUN_PAUSED")
        assert one.idempotency_key != other.idempotency_key

    def test_a_paused_run_starts_no_step(self) -> None:
        story = Story.running()
        story.do(commands.PauseRun(reason="X"))
        with pytest.raises(CommandRefused, match="PAUSED"):
            story.open_step()


class TestSuspend:
    """§STO-26"""

    def test_it_says_until_when_and_for_what(self) -> None:
        story = Story.running()
        story.wait("color")
        deadline = story.now + timedelta(hours=1)
        assert types(story.do(commands.SuspendRun(wake_at=deadline, waiting=("wait",)))) == ["RUN_SUSPENDED"]
        assert data(story.last) == {
            "wake_at": deadline.isoformat().replace("+00:00", "Z"),
            "waiting": ["wait"],
        }
        assert story.status == "RUNNING"

    def test_a_deadline_is_told_in_utc(self) -> None:
        story = Story.running()
        deadline = story.now + timedelta(hours=1)
        story.do(commands.SuspendRun(wake_at=deadline.astimezone(timezone(timedelta(hours=5)))))
        assert story.state.wake_at == deadline
        assert story.state.wake_at.utcoffset() == timedelta(0)

    @pytest.mark.parametrize("tell", [Story.queued, ended], ids=["PENDING", "COMPLETED"])
    def test_only_a_running_handler_suspends(self, tell: Callable[[], Story]) -> None:
        with pytest.raises(CommandRefused):
            tell().do(commands.SuspendRun())


def test_a_variable_is_set() -> None:
    story = Story.running()
    assert types(story.do(commands.SetVariable(name="seen", value=raw([1])))) == ["RUN_VARIABLE_SET"]
    assert data(story.last) == {"name": "seen", "value": [1]}
    assert plain(story.state.variables["seen"]) == [1]


def test_a_checkpoint_says_what_it_covers() -> None:
    """§EVT-12"""
    story = Story.running()
    head, seq = story.state.head, story.state.last_seq
    story.do(commands.CreateCheckpoint(checkpoint_id=an_id(400)))
    assert data(story.last) == {
        "checkpoint_id": an_id(400),
        "checkpoint_index": 0,
        "last_seq": seq,
        "head": head,
    }
    story.do(commands.CreateCheckpoint(checkpoint_id=an_id(401)))
    assert data(story.last)["checkpoint_index"] == 1


@pytest.mark.parametrize(
    "command",
    [
        commands.SetVariable(name="x", value=raw(1)),
        commands.CreateCheckpoint(checkpoint_id=an_id(1)),
        commands.SuspendRun(),
        commands.FailRun(error=error()),
        commands.CancelRun(exit_reason="X"),
        commands.StartStep(step_key="a", step_type="DECISION"),
        commands.RetryStep(step_key="a"),
        commands.RequestEffect(step_key="a", effect_type="X", spec={}),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_run_that_has_ended_takes_no_more(command: Command) -> None:
    with pytest.raises(CommandRefused, match=r"has ended \(COMPLETED\)"):
        ended().do(command)


class TestHandlerReturned:
    """§ENG-30: after it the handler does nothing more; only its effects are still open."""

    def returned(self) -> Story:
        story = Story.running()
        story.failed_step("broken")
        story.effect()
        story.returned()
        assert story.status == "RUNNING"
        return story

    @pytest.mark.parametrize(
        "command",
        [
            commands.StartStep(step_key="a", step_type="DECISION"),
            commands.SuspendRun(),
            commands.ContinueRun(carry=raw(1)),
            commands.ReturnHandler(result=raw(1)),
            commands.RetryStep(step_key="broken"),
        ],
        ids=lambda command: type(command).__name__,
    )
    def test_what_only_a_handler_does_is_refused(self, command: Command) -> None:
        with pytest.raises(CommandRefused):
            self.returned().do(command)

    def test_nobody_can_ask_for_a_step_again(self) -> None:
        story = self.returned()
        decision = story.do(control("RETRY_STEP", target="broken"))
        assert types(decision) == ["SIGNAL_REJECTED"]
        assert story.state.wake_at is None


class TestContinueAsNew:
    """§ENG-39 to §ENG-41"""

    def continued(self) -> Story:
        story = Story.running()
        story.step("page", {"cursor": 1})
        story.do(commands.ContinueRun(carry=raw({"cursor": 1})))
        return story

    def test_a_generation_begins_in_the_same_run_and_stream(self) -> None:
        story = self.continued()
        assert story.last.event_type == "RUN_CONTINUED"
        assert data(story.last) == {"generation": 2, "carry": {"cursor": 1}}
        assert (story.run.generation, story.status) == (2, "RUNNING")
        assert story.state.continued == (story.now, story.last.id)

    def test_the_same_step_key_can_be_used_again(self) -> None:
        story = self.continued()
        story.step("page", {"cursor": 2})
        first, second = story.state.steps.values()
        assert (first.step_key, first.generation, first.step_index) == ("page", 1, 0)
        assert (second.step_key, second.generation, second.step_index) == ("page", 2, 1)
        assert (second.logical_attempt, second.retry_count) == (1, 0)

    def test_its_events_have_other_keys(self) -> None:
        """§IDM-7"""
        story = self.continued()
        story.step("page", {"cursor": 2})
        story.do(commands.ContinueRun(carry=raw(1)))
        story.failed_step("page")
        story.do(commands.RetryStep(step_key="page"))
        keys = [event.idempotency_key for event in story.run_events]
        assert len(set(keys)) == len(keys)

    def test_an_effect_asked_for_again_is_another_effect(self) -> None:
        """§IDM-25: a step key is scoped by its generation, and so is what it asks for."""
        story = Story.running()
        story.effect("mail")
        story.do(commands.ContinueRun(carry=raw(1)))
        story.effect("mail")
        keys = [effect.idempotency_key for effect in story.state.effects.values()]
        assert len(set(keys)) == 2

    def test_the_first_step_sees_the_signal_and_no_output_of_before(self) -> None:
        story = self.continued()
        story.open_step("page")
        assert set(plain(story.latest("page").input_context)) == {"signal_data"}

    def test_a_retry_that_was_due_is_forgotten(self) -> None:
        story = Story.running()
        story.failed_step()
        story.do(commands.RetryStep(step_key="work"))
        assert story.state.due_attempts == {"work": 2}
        story.do(commands.ContinueRun(carry=raw(1)))
        assert story.state.due_attempts == {}
        story.step()
        assert story.latest().logical_attempt == 1

    def test_effects_stay_open_and_count(self) -> None:
        """§ENG-40"""
        story = Story.running()
        effect = story.effect()
        story.do(commands.ContinueRun(carry=raw(1)))
        story.returned()
        assert story.status == "RUNNING"
        story.sent(effect)
        assert story.status == "COMPLETED"

    def test_an_answer_that_was_kept_is_there_for_the_next_generation(self) -> None:
        """§ENG-40"""
        story = Story.running()
        story.do(answer("color", "red"))
        story.do(commands.ContinueRun(carry=raw(1)))
        story.wait("color")
        assert plain(story.latest("wait").output_result) == {"answer": "red"}

    def test_work_under_way_is_closed(self) -> None:
        story = Story.running()
        story.open_step()
        assert types(story.do(commands.ContinueRun(carry=raw(1)))) == ["STEP_FAILED", "RUN_CONTINUED"]
        assert data(story.of_type("STEP_FAILED")[0])["error"]["code"] == "RUN_CONTINUED"

    def test_only_a_running_run_continues(self) -> None:
        story = Story.running()
        story.do(commands.PauseRun(reason="X"))
        with pytest.raises(CommandRefused, match="cannot continue"):
            story.do(commands.ContinueRun(carry=raw(1)))


def test_an_output_hint_is_part_of_the_output() -> None:
    """§ENT-17"""
    story = Story.running()
    story.open_step()
    output = replace(decided(1), next_step_hint="publish")
    story.do(commands.CompleteStep(step_key="work", output=output))
    assert plain(story.latest().output_result) == {"decision": 1, "next_step_hint": "publish"}
