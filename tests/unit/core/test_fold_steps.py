"""Steps and tool calls in the fold: every state against every event, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from runstone.core import commands, payloads
from runstone.core.fold import fold_run
from runstone.core.payloads import ArtifactRef, Payload
from runstone.core.state import RunState
from runstone.core.step import Step, StepCorrection
from runstone.core.toolcall import ToolCall
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import HASH, Story, an_id, decided, error, plain, raw

STEP, CALL = an_id(700), an_id(701)
OUTPUT = raw({"decision": 1})


def running() -> Story:
    story = Story.running()
    story.open_step("work", step_id=STEP)
    return story


def completed() -> Story:
    story = running()
    story.do(commands.CompleteStep(step_key="work", output=decided(1)))
    return story


def failed() -> Story:
    story = running()
    story.do(commands.FailStep(step_key="work", error=error()))
    return story


def skipped() -> Story:
    story = running()
    story.do(commands.SkipStep(step_key="work", reason="no need"))
    return story


STATES: dict[str, Callable[[], Story]] = {
    "RUNNING": running,
    "COMPLETED": completed,
    "FAILED": failed,
    "SKIPPED": skipped,
}
ENDS: dict[str, Payload] = {
    "COMPLETED": payloads.StepCompleted(
        step_index=0, step_type="DECISION", output_result=OUTPUT, duration_ms=1
    ),
    "FAILED": payloads.StepFailed(step_index=0, step_type="DECISION", error=error(), duration_ms=1),
    "SKIPPED": payloads.StepSkipped(step_index=0, step_type="DECISION", reason="X"),
}


def fold(story: Story, payload: Payload, aggregate_id: str = STEP, **given: Any) -> RunState:
    return fold_run(story.state, [story.forge(payload, aggregate_id, **given)])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", STATES)
def test_a_step_ends_once(state: str, end: str) -> None:
    """§TRN-7"""
    story = STATES[state]()
    assert story.latest().status == state
    if state == "RUNNING":
        assert fold(story, ENDS[end]).steps[STEP].status == end
        return
    with pytest.raises(StateTransitionError) as refused:
        fold(story, ENDS[end])
    assert (refused.value.aggregate, refused.value.aggregate_id) == ("step", STEP)
    assert (refused.value.from_state, refused.value.to_state) == (state, end)


@pytest.mark.parametrize("end", ENDS)
def test_a_step_that_never_began(end: str) -> None:
    with pytest.raises(StateTransitionError) as refused:
        fold(Story.running(), ENDS[end])
    assert (refused.value.from_state, refused.value.to_state) == (None, end)


def start(step_index: int = 1) -> payloads.StepStarted:
    return payloads.StepStarted(
        step_index=step_index, step_type="DECISION", input_context=raw({}), input_digest=HASH
    )


class TestStart:
    def test_the_row_of_a_new_step(self) -> None:
        """§ENT-13"""
        story = Story.running()
        deadline = story.now + timedelta(hours=1)
        story.do(
            commands.StartStep(
                step_key="work",
                step_type="WAIT",
                step_id=STEP,
                specialist_id="lawyer",
                wait=payloads.WaitSpec(name="color", deadline=deadline),
                metadata=raw({"cost": 1}),
            ),
            engine_attempt=3,
        )
        row = story.latest()
        assert row == Step(
            id=STEP,
            tenant_id=story.run.tenant_id,
            run_id=story.run_id,
            step_index=0,
            step_type="WAIT",
            step_key="work",
            generation=1,
            logical_attempt=1,
            engine_attempt=3,
            started_at=story.now,
            completed_at=None,
            status="RUNNING",
            input_context=row.input_context,
            input_digest=row.input_digest,
            output_result=None,
            specialist_id="lawyer",
            error_details=None,
            skip_reason=None,
            retry_count=0,
            artifacts=None,
            wait_name="color",
            wait_deadline=deadline,
            correlation_id=story.run.correlation_id,
            metadata=raw({"cost": 1}),
        )

    def test_an_event_of_another_system_may_lack_attempt_and_key(self) -> None:
        """Appended at the contract's edge: it counts as a first attempt at a nameless step."""
        story = Story.running()
        step = fold(story, start(0)).steps[STEP]
        assert (step.step_key, step.logical_attempt) == ("", 1)

    def test_a_key_is_open_once(self) -> None:
        with pytest.raises(StateTransitionError) as refused:
            fold(running(), start(), an_id(702), step_key="work")
        assert (refused.value.from_state, refused.value.to_state) == ("RUNNING", "RUNNING")

    def test_an_id_is_used_once(self) -> None:
        with pytest.raises(StateTransitionError) as refused:
            fold(running(), start(), STEP, step_key="another")
        assert refused.value.aggregate_id == STEP

    @pytest.mark.parametrize("index", [0, 2])
    def test_indexes_have_no_gap(self, index: int) -> None:
        """§ENT-13"""
        assert len(fold(running(), start(1), an_id(702), step_key="next").steps) == 2
        with pytest.raises(CommandRefused, match=f"index {index}, not 1"):
            fold(running(), start(index), an_id(702), step_key="next")

    def test_only_a_running_run_starts_steps(self) -> None:
        with pytest.raises(CommandRefused, match="PENDING"):
            fold(Story.queued(), start(0), step_key="work")

    def test_none_after_the_handler_has_returned(self) -> None:
        """§ENG-30"""
        story = Story.running()
        story.effect()
        story.returned()
        with pytest.raises(CommandRefused):
            fold(story, start(1), step_key="work")


class TestEnd:
    def test_counters_move_with_it(self) -> None:
        """§TRN-18"""
        story = running()
        assert (story.run.total_steps, story.run.failed_steps) == (0, 0)
        story.do(commands.FailStep(step_key="work", error=error()))
        assert (story.run.total_steps, story.run.failed_steps) == (1, 1)
        story.step("second")
        assert (story.run.total_steps, story.run.failed_steps) == (2, 1)
        story.open_step("third")
        story.do(commands.SkipStep(step_key="third", reason="X"))
        assert (story.run.total_steps, story.run.failed_steps) == (3, 1)

    def test_what_each_end_leaves(self) -> None:
        done, broken, left_out = completed(), failed(), skipped()
        assert (plain(done.latest().output_result), done.latest().completed_at) == ({"decision": 1}, done.now)
        assert plain(broken.latest().error_details)["code"] == "BOOM"
        assert left_out.latest().skip_reason == "no need"
        assert {story.latest().artifacts for story in (done, broken, left_out)} == {None}

    def test_artifacts_are_kept_of_success_and_failure(self) -> None:
        """§PAY-20"""
        made = (ArtifactRef(uri="s3://b/k", kind="log", sha256=HASH, size_bytes=3),)
        ended: list[commands.CompleteStep | commands.FailStep] = [
            commands.CompleteStep(step_key="work", output=decided(1), artifacts=made),
            commands.FailStep(step_key="work", error=error(), artifacts=made),
        ]
        for command in ended:
            story = running()
            story.do(command)
            assert plain(story.latest().artifacts) == [
                {"kind": "log", "sha256": HASH, "size_bytes": 3, "uri": "s3://b/k"}
            ]

    def test_it_is_not_open_any_more(self) -> None:
        assert running().state.open_steps == {"work": STEP}
        for end in (completed, failed, skipped):
            assert end().state.open_steps == {}
            assert end().state.latest_steps == {"work": STEP}


class TestRetry:
    @pytest.mark.parametrize("state", ["RUNNING", "COMPLETED", "SKIPPED"])
    def test_only_a_failure_is_retried(self, state: str) -> None:
        with pytest.raises(CommandRefused, match=f"{state}: only its last failure"):
            fold(STATES[state](), payloads.StepRetried(next_attempt=2))

    def test_the_next_attempt_is_the_next_number(self) -> None:
        assert fold(failed(), payloads.StepRetried(next_attempt=2)).due_attempts == {"work": 2}
        with pytest.raises(CommandRefused, match="Attempt 3"):
            fold(failed(), payloads.StepRetried(next_attempt=3))

    def test_an_attempt_that_was_followed_by_another_is_past(self) -> None:
        story = failed()
        story.do(commands.RetryStep(step_key="work"))
        story.failed_step("work")
        with pytest.raises(CommandRefused, match="only its last failure"):
            fold(story, payloads.StepRetried(next_attempt=2))

    def test_a_step_that_never_began(self) -> None:
        with pytest.raises(StateTransitionError):
            fold(Story.running(), payloads.StepRetried(next_attempt=2))


class TestCorrection:
    def correction(self) -> payloads.StepCorrected:
        return payloads.StepCorrected(version=2, original_output=OUTPUT, corrected_output=OUTPUT, reason="X")

    @pytest.mark.parametrize("state", ["RUNNING", "FAILED", "SKIPPED"])
    def test_there_must_be_an_output_to_correct(self, state: str) -> None:
        with pytest.raises(CommandRefused, match=f"{state}: there is no output"):
            fold(STATES[state](), self.correction())

    def test_a_step_that_never_began(self) -> None:
        with pytest.raises(StateTransitionError):
            fold(Story.running(), self.correction())

    def test_the_row_of_a_correction(self) -> None:
        """§ENT-19: the step's own row stays as it is."""
        story = completed()
        before = story.latest()
        story.do(commands.CorrectStep(step_id=STEP, output=decided(2), reason="wrong"), actor="ada")
        assert story.state.corrections == {
            story.last.id: StepCorrection(
                id=story.last.id,
                tenant_id=story.run.tenant_id,
                run_id=story.run_id,
                step_id=STEP,
                version=2,
                output_result=raw({"decision": 2}),
                reason="wrong",
                corrected_at=story.now,
                corrected_by="ada",
                correlation_id=story.run.correlation_id,
            )
        }
        assert story.latest() is before


def call() -> payloads.ToolCalled:
    return payloads.ToolCalled(step_id=STEP, tool_name="find", tool_args=raw({"q": 1}))


TOOL_ENDS: dict[str, Payload] = {
    "COMPLETED": payloads.ToolCompleted(result=raw(1), duration_ms=5),
    "FAILED": payloads.ToolFailed(error=error(), duration_ms=5),
}


class TestToolCalls:
    """§TRN-10, §ENT-23"""

    def called(self) -> Story:
        story = running()
        story.do(
            commands.CallTool(
                step_key="work", tool_name="find", tool_args=raw({"q": 1}), tool_call_id=CALL, metadata=raw(7)
            )
        )
        return story

    def test_the_row_of_a_new_call(self) -> None:
        story = self.called()
        assert story.tool_call(CALL) == ToolCall(
            id=CALL,
            tenant_id=story.run.tenant_id,
            run_id=story.run_id,
            step_id=STEP,
            tool_name="find",
            tool_args=raw({"q": 1}),
            called_at=story.now,
            completed_at=None,
            status="PENDING",
            result=None,
            error_details=None,
            execution_duration_ms=None,
            cache_hit=False,
            correlation_id=story.run.correlation_id,
            metadata=raw(7),
        )

    def test_what_a_success_leaves(self) -> None:
        story = self.called()
        story.do(commands.CompleteTool(tool_call_id=CALL, result=raw([1]), duration_ms=5, cache_hit=True))
        row = story.tool_call(CALL)
        assert (row.status, plain(row.result), row.completed_at) == ("COMPLETED", [1], story.now)
        assert (row.execution_duration_ms, row.cache_hit) == (5, True)

    def test_what_a_failure_leaves(self) -> None:
        story = self.called()
        story.do(commands.FailTool(tool_call_id=CALL, error=error("NO_NET"), duration_ms=6))
        row = story.tool_call(CALL)
        assert (row.status, row.result, row.execution_duration_ms) == ("FAILED", None, 6)
        assert plain(row.error_details)["code"] == "NO_NET"

    @pytest.mark.parametrize("again", TOOL_ENDS)
    @pytest.mark.parametrize("end", TOOL_ENDS)
    def test_a_call_ends_once(self, end: str, again: str) -> None:
        story = self.called()
        after = fold(story, TOOL_ENDS[end], CALL)
        assert after.tool_calls[CALL].status == end
        with pytest.raises(StateTransitionError) as refused:
            fold_run(after, [story.forge(TOOL_ENDS[again], CALL, run_seq=after.last_seq + 1)])
        assert (refused.value.aggregate, refused.value.aggregate_id) == ("tool call", CALL)
        assert (refused.value.from_state, refused.value.to_state) == (end, again)

    @pytest.mark.parametrize("end", TOOL_ENDS)
    def test_a_call_that_was_never_made(self, end: str) -> None:
        with pytest.raises(StateTransitionError) as refused:
            fold(running(), TOOL_ENDS[end], CALL)
        assert (refused.value.from_state, refused.value.to_state) == (None, end)

    @pytest.mark.parametrize("story", [Story.running, completed], ids=["no step", "ended step"])
    def test_a_tool_is_called_inside_a_running_step(self, story: Callable[[], Story]) -> None:
        with pytest.raises(CommandRefused, match="outside of a running step"):
            fold(story(), call(), CALL)

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_repeated_call_is_a_new_row(self, ended: bool) -> None:
        """§TRN-3, §TRN-10: what has ended is not called again under the same id."""
        story = self.called()
        if ended:
            story.do(commands.CompleteTool(tool_call_id=CALL, result=raw(1), duration_ms=1))
        with pytest.raises(StateTransitionError) as refused:
            fold(story, call(), CALL)
        assert (refused.value.aggregate, refused.value.to_state) == ("tool call", "PENDING")


def test_no_step_is_tried_again_after_the_handler_has_returned() -> None:
    """§ENG-30: not by a blind append either."""
    story = Story.running()
    story.failed_step("broken")
    story.effect()
    story.returned()
    step = story.latest("broken")
    retried = story.forge(payloads.StepRetried(next_attempt=2), aggregate_id=step.id, step_key="broken")
    with pytest.raises(CommandRefused, match="has returned"):
        fold_run(story.state, [retried])
