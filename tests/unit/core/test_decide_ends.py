"""A run ends by its last fact, whoever writes it, and its signal with it in the same commit (§ENG-31)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from runstone.core import commands
from runstone.core.payloads import ArtifactRef
from runstone.core.state import SignalState
from runstone.errors import CommandRefused
from tests.unit.core.build import TENANT, Story, control, data, decided, error, plain, raw, types

END = ["RUN_HANDLER_RETURNED", "RUN_COMPLETED", "SIGNAL_PROCESSED"]


class TestCompletion:
    """§TRN-14: the handler has returned and no effect is open."""

    def test_a_handler_without_effects_completes_its_run_by_returning(self) -> None:
        story = Story.running()
        assert types(story.returned({"total": 7})) == END
        assert (story.status, story.signal.status) == ("COMPLETED", "PROCESSED")
        assert plain(story.run.result) == {"total": 7}
        assert story.run.completed_at == story.signal.processed_at == story.now

    def test_an_open_effect_keeps_it_running(self) -> None:
        story = Story.running()
        story.effect()
        assert types(story.returned()) == ["RUN_HANDLER_RETURNED"]
        assert (story.status, story.signal.status) == ("RUNNING", "PROCESSING")

    def test_the_last_outcome_ends_it(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.returned()
        assert types(story.sent(effect)) == [
            "EFFECT_EXECUTING",
            "EFFECT_COMPLETED",
            "RUN_COMPLETED",
            "SIGNAL_PROCESSED",
        ]
        assert (story.status, story.signal.status) == ("COMPLETED", "PROCESSED")

    def test_of_several_effects_only_the_last_one(self) -> None:
        story = Story.running()
        first, second = story.effect("a"), story.effect("b")
        story.returned()
        story.sent(second)
        assert story.status == "RUNNING"
        story.sent(first)
        assert story.status == "COMPLETED"

    def test_an_outcome_before_the_return_leaves_the_end_to_the_handler(self) -> None:
        story = Story.running()
        story.sent(story.effect())
        assert story.status == "RUNNING"
        assert types(story.returned()) == END

    @pytest.mark.parametrize("sent", [True, False])
    def test_an_unknown_outcome_is_open_until_somebody_finds_out(self, sent: bool) -> None:
        story = Story.running()
        effect = story.effect(delivery="at_most_once")
        story.returned()
        story.do(commands.BeginEffect(effect_id=effect, executor="x"))
        story.do(commands.LoseEffect(effect_id=effect, executor="x"))
        assert story.status == "RUNNING"
        story.do(commands.ReconcileEffect(effect_id=effect, sent=sent))
        assert story.status == ("COMPLETED" if sent else "RUNNING")

    def test_a_failure_that_will_be_retried_is_open(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.returned()
        story.not_sent(effect, retryable=True)
        assert story.status == "RUNNING"
        story.sent(effect)
        assert story.status == "COMPLETED"

    def test_a_paused_run_ends_when_it_is_resumed(self) -> None:
        """PAUSED → COMPLETED is no arrow (§TRN-6)."""
        story = Story.running()
        effect = story.effect()
        story.returned()
        story.do(control("PAUSE", 901))
        story.sent(effect)
        assert story.status == "PAUSED"
        story.do(control("RESUME", 902))
        assert (story.status, story.signal.status) == ("COMPLETED", "PROCESSED")

    def test_artifacts_of_all_steps_are_named_at_the_end(self) -> None:
        story = Story.running()
        made = [ArtifactRef(uri=f"file:///{name}", kind="report") for name in "ab"]
        story.step("plain")
        story.open_step("good")
        story.do(commands.CompleteStep(step_key="good", output=decided(1), artifacts=(made[0],)))
        story.open_step("bad")
        story.do(commands.FailStep(step_key="bad", error=error(), artifacts=(made[1],)))
        story.returned()
        uris = [artifact["uri"] for artifact in data(story.last)["artifacts"]]
        assert uris == ["file:///a", "file:///b"]

    def test_what_the_handler_did_not_wait_for_is_closed(self) -> None:
        story = Story.running()
        story.open_step("tools", "TOOL_SEQUENCE")
        story.do(commands.CallTool(step_key="tools", tool_name="t", tool_args=raw(1)))
        story.wait("never")
        assert types(story.returned()) == [
            "TOOL_FAILED",
            "STEP_FAILED",
            "STEP_FAILED",
            "RUN_HANDLER_RETURNED",
            "RUN_COMPLETED",
            "SIGNAL_PROCESSED",
        ]
        assert {data(event)["error"]["code"] for event in story.of_type("STEP_FAILED")} == {
            "HANDLER_RETURNED"
        }
        assert story.state.open_steps == {}

    @pytest.mark.parametrize("status", ["PENDING", "PAUSED", "COMPLETED"])
    def test_only_a_running_handler_returns(self, status: str) -> None:
        story = Story.queued() if status == "PENDING" else Story.running()
        if status == "PAUSED":
            story.do(commands.PauseRun(reason="X"))
        if status == "COMPLETED":
            story.returned()
        assert story.status == status
        with pytest.raises(CommandRefused, match=f"{status} and its handler cannot return"):
            story.returned()


class TestDeadLetters:
    """§OUT-30, §TRN-16"""

    def test_a_critical_one_fails_the_run(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.returned()
        assert types(story.not_sent(effect)) == [
            "EFFECT_EXECUTING",
            "EFFECT_FAILED",
            "EFFECT_DEAD_LETTERED",
            "RUN_FAILED",
            "SIGNAL_PROCESSING_FAILED",
        ]
        assert (story.status, story.run.exit_reason) == ("FAILED", "EFFECT_DEAD_LETTERED")
        assert effect in plain(story.run.error_details)["message"]
        assert data(story.signal_events[-1]) == {"exit_reason": "EFFECT_DEAD_LETTERED"}

    def test_one_that_is_not_critical_does_not(self) -> None:
        story = Story.running()
        effect = story.effect(critical=False)
        story.returned()
        story.not_sent(effect)
        assert (story.status, story.effect_row(effect).status) == ("COMPLETED", "DEAD_LETTER")

    def test_the_others_go_out_before_it_fails(self) -> None:
        story = Story.running()
        bad, good = story.effect("bad"), story.effect("good")
        story.returned()
        story.not_sent(bad)
        assert story.status == "RUNNING"
        story.sent(good)
        assert story.status == "FAILED"

    def test_one_that_was_put_right_before_the_end_does_not_fail_it(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.not_sent(effect)
        story.do(commands.RequeueEffect(effect_id=effect))
        story.sent(effect)
        story.returned()
        assert story.status == "COMPLETED"

    def test_one_that_was_discarded_before_the_end_does_not_either(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.not_sent(effect)
        story.do(commands.DiscardEffect(effect_id=effect))
        story.returned()
        assert story.status == "COMPLETED"

    def test_what_becomes_of_it_later_does_not_move_the_ended_run(self) -> None:
        """§OUT-31, §TRN-3"""
        story = Story.running()
        effect = story.effect()
        story.returned()
        story.not_sent(effect)
        frozen = story.run
        story.do(commands.RequeueEffect(effect_id=effect))
        assert types(story.sent(effect)) == ["EFFECT_EXECUTING", "EFFECT_COMPLETED"]
        assert story.run is frozen


class TestFailure:
    """§TRN-16"""

    def test_the_handlers_error_is_the_root_cause(self) -> None:
        story = Story.running()
        assert types(story.do(commands.FailRun(error=error("BOOM")))) == [
            "RUN_FAILED",
            "SIGNAL_PROCESSING_FAILED",
        ]
        assert (story.status, story.run.exit_reason) == ("FAILED", "BOOM")
        assert plain(story.run.error_details)["code"] == "BOOM"
        assert story.signal.status == "FAILED"

    def test_a_reason_may_be_given(self) -> None:
        story = Story.running()
        story.do(commands.FailRun(error=error("BOOM"), exit_reason="STEP_EXHAUSTED"))
        assert story.run.exit_reason == "STEP_EXHAUSTED"
        assert data(story.signal_events[-1]) == {"exit_reason": "STEP_EXHAUSTED"}

    def test_steps_and_tools_under_way_are_closed_and_the_trail_is_whole(self) -> None:
        """§ENG-32"""
        story = Story.running()
        story.open_step()
        story.do(commands.CallTool(step_key="work", tool_name="t", tool_args=raw(1)))
        story.do(commands.FailRun(error=error()))
        assert {step.status for step in story.state.steps.values()} == {"FAILED"}
        assert {call.status for call in story.state.tool_calls.values()} == {"FAILED"}
        assert data(story.of_type("TOOL_FAILED")[0])["error"]["category"] == "CANCELLED"

    def test_its_effects_go_out_all_the_same(self) -> None:
        """§TRN-22"""
        story = Story.running()
        effect = story.effect()
        story.do(commands.FailRun(error=error()))
        assert story.effect_row(effect).status == "PENDING"
        story.sent(effect)
        assert (story.status, story.effect_row(effect).status) == ("FAILED", "COMPLETED")

    @pytest.mark.parametrize("approve", [False, True])
    def test_a_run_can_fail_before_it_started(self, approve: bool) -> None:
        """§TRN-25: its signal passes through PROCESSING."""
        story = Story.queued(approval_required=True)
        if approve:
            story.do(control("APPROVE"))
        assert types(story.do(commands.FailRun(error=error()))) == [
            "RUN_FAILED",
            "SIGNAL_PROCESSING_STARTED",
            "SIGNAL_PROCESSING_FAILED",
        ]


def by_command(story: Story, reason: str) -> Any:
    return story.do(commands.CancelRun(exit_reason=reason))


def by_control_signal(story: Story, reason: str) -> Any:
    return story.do(control("CANCEL", reason=reason))


either_way = pytest.mark.parametrize("cancel", [by_command, by_control_signal])


class TestCancel:
    """§TRN-19 to §TRN-21"""

    @either_way
    def test_it_ends_run_and_signal(self, cancel: Callable[[Story, str], Any]) -> None:
        story = Story.running()
        cancel(story, "CHANGED_MIND")
        assert (story.status, story.run.exit_reason) == ("CANCELLED", "CHANGED_MIND")
        assert story.run.completed_at == story.now
        assert story.signal.status == "FAILED"
        assert data(story.signal_events[-1]) == {"exit_reason": "CHANGED_MIND"}

    @either_way
    def test_it_closes_open_steps_and_tool_calls(self, cancel: Callable[[Story, str], Any]) -> None:
        story = Story.running()
        story.open_step("tools", "TOOL_SEQUENCE")
        done, open_call = story.new_id(), story.new_id()
        for call in (done, open_call):
            story.do(commands.CallTool(step_key="tools", tool_name="t", tool_args=raw(1), tool_call_id=call))
        story.do(commands.CompleteTool(tool_call_id=done, result=raw(1), duration_ms=1))
        story.wait("never")
        cancel(story, "X")
        assert story.state.open_steps == {}
        assert {step.status for step in story.state.steps.values()} == {"FAILED"}
        assert (story.tool_call(done).status, story.tool_call(open_call).status) == ("COMPLETED", "FAILED")
        assert story.run.failed_steps == story.run.total_steps == 2

    @either_way
    def test_it_withdraws_what_nobody_has_begun(self, cancel: Callable[[Story, str], Any]) -> None:
        story = Story.running()
        pending = story.effect("pending")
        failed = story.effect("failed")
        story.not_sent(failed, retryable=True)
        cancel(story, "X")
        assert story.effect_row(pending).status == story.effect_row(failed).status == "CANCELLED"
        history = [e.event_type for e in story.run_events if e.aggregate_id == failed]
        assert history[-2:] == ["EFFECT_DEAD_LETTERED", "EFFECT_CANCELLED"]
        assert {data(event)["reason"] for event in story.of_type("EFFECT_CANCELLED")} == {"RUN_CANCELLED"}

    @either_way
    def test_what_was_begun_keeps_its_claim_and_its_outcome(
        self, cancel: Callable[[Story, str], Any]
    ) -> None:
        story = Story.running()
        effect = story.effect()
        story.do(commands.BeginEffect(effect_id=effect, executor="smtp"))
        cancel(story, "X")
        assert story.effect_row(effect).status == "EXECUTING"
        assert types(story.sent(effect)) == ["EFFECT_COMPLETED"]
        assert (story.status, story.effect_row(effect).status) == ("CANCELLED", "COMPLETED")

    @either_way
    def test_what_waits_for_a_person_or_has_ended_is_left_alone(
        self, cancel: Callable[[Story, str], Any]
    ) -> None:
        story = Story.running()
        dead, sent = story.effect("dead", critical=False), story.effect("sent")
        story.not_sent(dead)
        story.sent(sent)
        cancel(story, "X")
        assert (story.effect_row(dead).status, story.effect_row(sent).status) == ("DEAD_LETTER", "COMPLETED")

    @either_way
    def test_it_raises_the_fence(self, cancel: Callable[[Story, str], Any]) -> None:
        """§ORD-13: the worker that held the run can write no more."""
        story = Story.running()
        story.case = replace(story.case, run_fence=4)
        run_write = cancel(story, "X").commit.writes[-1]
        assert (run_write.fence, run_write.raise_fence) == (4, True)
        assert story.case.run_fence == 5

    @either_way
    def test_a_run_that_never_started_passes_its_signal_through_processing(
        self, cancel: Callable[[Story, str], Any]
    ) -> None:
        """§TRN-25"""
        story = Story.queued()
        cancel(story, "X")
        assert [event.event_type for event in story.signal_events] == [
            "SIGNAL_RECEIVED",
            "SIGNAL_PROCESSING_STARTED",
            "SIGNAL_PROCESSING_FAILED",
        ]
        assert story.run.started_at is None

    def test_a_control_signal_is_named_by_what_it_did(self) -> None:
        """§EVT-13"""
        story = Story.running()
        decision = story.do(control("CANCEL"))
        assert types(decision) == ["SIGNAL_ACCEPTED", "RUN_CANCELLED", "SIGNAL_PROCESSING_FAILED"]
        accepted, cancelled = story.run_events[-2:]
        assert cancelled.control_signal_id == accepted.control_signal_id
        assert cancelled.causation_id == accepted.id
        assert story.run.exit_reason == "CANCELLED_BY_OPERATOR"

    def test_a_run_is_cancelled_once(self) -> None:
        story = Story.running()
        by_command(story, "X")
        with pytest.raises(CommandRefused, match=r"has ended \(CANCELLED\)"):
            by_command(story, "X")

    def test_a_long_reason_is_cut_for_the_column(self) -> None:
        story = Story.running()
        by_command(story, "x" * 200)
        assert story.run.exit_reason == "x" * 100


def test_a_run_whose_signal_is_not_at_hand_ends_without_it() -> None:
    """An adapter that knows runs only: the signal's stream is left alone."""
    story = Story.running()
    story.case = replace(story.case, signal=SignalState(stream_id=story.signal_id, tenant_id=TENANT))
    assert types(story.returned()) == ["RUN_HANDLER_RETURNED", "RUN_COMPLETED"]
