"""Decisions about steps and the tools inside them: input, output, attempts, corrections."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec import UNSET

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.decide import input_digest
from runstone.core.payloads import ArtifactRef, EntityRef, OutputResult, StepType
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import (
    LARGE,
    NOON,
    Story,
    an_id,
    control,
    data,
    decided,
    error,
    parked,
    plain,
    raw,
    types,
)

ORDER = EntityRef(entity_id="o-1", entity_type="order")


class TestStart:
    def test_what_a_step_received(self) -> None:
        """§ENT-14, §ENT-15: what the log holds already is referred to."""
        story = Story.running()
        story.step("first")
        story.do(
            commands.StartStep(
                step_key="second",
                step_type="SPECIALIST_CALL",
                arguments=raw({"n": 1}),
                sor_entities=(ORDER,),
                specialist_context=raw({"mood": "good"}),
                specialist_id="lawyer",
            )
        )
        assert plain(story.latest("second").input_context) == {
            "arguments": {"n": 1},
            "signal_data": {"$event": story.signal_events[0].id, "field": "normalized_payload"},
            "prior_step_output": {
                "$event": story.of_type("STEP_COMPLETED")[0].id,
                "field": "output_result",
            },
            "sor_entities": [{"entity_id": "o-1", "entity_type": "order"}],
            "specialist_context": {"mood": "good"},
        }

    def test_the_first_step_has_only_the_signal_before_it(self) -> None:
        story = Story.running()
        story.open_step()
        assert set(plain(story.latest().input_context)) == {"signal_data"}

    def test_the_signals_payload_is_found_even_after_a_conflict(self) -> None:
        """§ENT-15: the reference leads to the event that holds the payload."""
        story = Story.received()
        story.do(commands.ReportConflict(source_hash="b" * 64))
        story.do(commands.CreateRun(plan_id="orders"), commands.StartRun())
        story.open_step()
        reference = plain(story.latest().input_context)["signal_data"]
        assert reference["$event"] == story.of_type("SIGNAL_RECEIVED")[0].id

    def test_null_is_an_argument_like_any_other(self) -> None:
        story = Story.running()
        story.open_step("none", arguments=raw(None))
        assert plain(story.latest("none").input_context)["arguments"] is None
        assert story.latest("none").input_digest == input_digest(raw(None)) != input_digest(UNSET)

    def test_the_output_of_a_failed_or_skipped_step_is_not_passed_on(self) -> None:
        story = Story.running()
        story.step("good")
        story.failed_step("bad")
        story.open_step("next")
        prior = plain(story.latest("next").input_context)["prior_step_output"]
        assert prior["$event"] == story.of_type("STEP_COMPLETED")[0].id

    def test_its_event_says_which_attempt_at_what(self) -> None:
        story = Story.running()
        story.do(
            commands.StartStep(step_key="work", step_type="DECISION", step_id=an_id(300)), engine_attempt=2
        )
        event = story.last
        assert (event.event_type, event.aggregate_type) == ("STEP_STARTED", "STEP")
        assert (event.aggregate_id, event.step_key) == (an_id(300), "work")
        assert (event.logical_attempt, event.engine_attempt) == (1, 2)

    def test_indexes_are_given_in_the_order_of_start(self) -> None:
        """§ENT-13: branches may end in any order."""
        story = Story.running()
        for key in "abc":
            story.open_step(key)
        for key in "cab":
            story.do(commands.CompleteStep(step_key=key, output=decided(key)))
        assert [(step.step_key, step.step_index) for step in story.state.steps.values()] == [
            ("a", 0),
            ("b", 1),
            ("c", 2),
        ]

    @pytest.mark.parametrize(
        ("end", "status"),
        [
            (None, "RUNNING"),
            (commands.CompleteStep(step_key="work", output=decided(1)), "COMPLETED"),
            (commands.FailStep(step_key="work", error=error()), "FAILED"),
            (commands.SkipStep(step_key="work", reason="X"), "SKIPPED"),
        ],
    )
    def test_a_step_is_not_done_twice(self, end: Command | None, status: str) -> None:
        story = Story.running()
        story.open_step()
        if end is not None:
            story.do(end)
        with pytest.raises(CommandRefused, match=rf"has been done \({status}\) and is not due again"):
            story.open_step()

    def test_a_queued_run_starts_no_step(self) -> None:
        with pytest.raises(CommandRefused, match="PENDING"):
            Story.queued().open_step()


class TestInputDigest:
    """§ENT-16: what replay compares is what the caller gave."""

    def test_it_covers_all_of_it(self) -> None:
        digests = {
            input_digest(raw(1)),
            input_digest(raw(2)),
            input_digest(raw(None)),
            input_digest(raw(1), (ORDER,)),
            input_digest(raw(1), (ORDER,), raw({})),
        }
        assert len(digests) == 5

    def test_it_covers_nothing_else(self) -> None:
        one, other = Story.running({"a": 1}), Story.running({"b": 2})
        one.step("before")
        for story in (one, other):
            story.open_step("work", arguments=raw({"x": 1}), metadata=raw(story.run_events[-1].run_seq))
        assert one.latest().input_digest == other.latest().input_digest == input_digest(raw({"x": 1}))
        assert one.latest().input_context != other.latest().input_context


class TestEnd:
    @pytest.mark.parametrize(
        ("step_type", "output", "kept"),
        [
            ("DECISION", OutputResult(decision=raw(1)), {"decision": 1}),
            ("SPECIALIST_CALL", OutputResult(specialist_reasoning=raw("so")), {"specialist_reasoning": "so"}),
            ("TOOL_SEQUENCE", OutputResult(tool_results=(raw(1), raw([]))), {"tool_results": [1, []]}),
            ("EFFECT_REQUEST", OutputResult(effect_spec=raw({"to": 1})), {"effect_spec": {"to": 1}}),
            ("WAIT", OutputResult(answer=raw(None)), {"answer": None}),
            ("CHECKPOINT", OutputResult(next_step_hint="end"), {"next_step_hint": "end"}),
        ],
    )
    def test_an_output_stands_under_the_key_of_its_type(
        self, step_type: StepType, output: OutputResult, kept: object
    ) -> None:
        """§ENT-17"""
        story = Story.running()
        story.open_step("work", step_type)
        story.do(commands.CompleteStep(step_key="work", output=output))
        assert plain(story.latest().output_result) == kept

    def test_success(self) -> None:
        story = Story.running()
        story.open_step()
        artifact = ArtifactRef(uri="file:///a", kind="log")
        done = commands.CompleteStep(step_key="work", output=decided(1), artifacts=(artifact,))
        assert types(story.do(done)) == ["STEP_COMPLETED"]
        assert data(story.last) == {
            "step_index": 0,
            "step_type": "DECISION",
            "output_result": {"decision": 1},
            "duration_ms": 1000,
            "artifacts": [{"uri": "file:///a", "kind": "log"}],
        }
        assert (story.last.step_key, story.last.logical_attempt) == ("work", 1)

    def test_failure(self) -> None:
        story = Story.running()
        story.open_step()
        assert types(story.do(commands.FailStep(step_key="work", error=error("BOOM", retryable=True)))) == [
            "STEP_FAILED"
        ]
        assert data(story.last) == {
            "step_index": 0,
            "step_type": "DECISION",
            "error": {
                "category": "APPLICATION",
                "code": "BOOM",
                "message": "It went BOOM",
                "retryable": True,
            },
            "duration_ms": 1000,
        }
        assert story.run.status == "RUNNING"

    def test_not_needed(self) -> None:
        """§TRN-7: started and skipped, in one commit where it never began."""
        story = Story.running()
        decision = story.do(
            commands.StartStep(step_key="work", step_type="DECISION"),
            commands.SkipStep(step_key="work", reason="cached"),
        )
        assert types(decision) == ["STEP_STARTED", "STEP_SKIPPED"]
        assert data(story.last) == {"step_index": 0, "step_type": "DECISION", "reason": "cached"}

    @pytest.mark.parametrize(
        "command",
        [
            commands.CompleteStep(step_key="work", output=decided(1)),
            commands.FailStep(step_key="work", error=error()),
            commands.SkipStep(step_key="work", reason="X"),
            commands.CallTool(step_key="work", tool_name="t", tool_args=raw(1)),
        ],
        ids=lambda command: type(command).__name__,
    )
    def test_only_an_open_step(self, command: Command) -> None:
        story = Story.running()
        with pytest.raises(CommandRefused, match="no open step 'work'"):
            story.do(command)
        story.step()
        with pytest.raises(CommandRefused, match="no open step 'work'"):
            story.do(command)


class TestRetry:
    """§TRN-27, §IDM-22: a retry is a new row, with the next index and the next logical attempt."""

    def failed(self) -> Story:
        story = Story.running()
        story.step("before")
        story.failed_step()
        return story

    def test_the_policy_asks_for_another_attempt(self) -> None:
        story = self.failed()
        due = NOON + timedelta(hours=1)
        assert types(story.do(commands.RetryStep(step_key="work", retry_at=due))) == ["STEP_RETRIED"]
        assert data(story.last) == {"next_attempt": 2, "retry_at": "2026-03-01T13:00:00Z"}
        assert (story.last.aggregate_id, story.last.logical_attempt) == (story.latest().id, 1)
        assert story.state.due_attempts == {"work": 2}
        assert story.state.retry_times == {"work": due}

    def test_the_attempt_is_a_row_of_its_own(self) -> None:
        story = self.failed()
        story.do(commands.RetryStep(step_key="work"))
        story.step()
        _, first, second = story.state.steps.values()
        assert (first.step_index, first.logical_attempt, first.retry_count) == (1, 1, 0)
        assert (second.step_index, second.logical_attempt, second.retry_count) == (2, 2, 1)
        assert (first.status, second.status) == ("FAILED", "COMPLETED")
        assert first.step_key == second.step_key
        assert first.id != second.id
        assert story.state.due_attempts == story.state.retry_times == {}

    def test_attempts_add_up(self) -> None:
        story = self.failed()
        for attempt in (2, 3, 4):
            story.do(commands.RetryStep(step_key="work"))
            story.failed_step()
            assert (story.latest().logical_attempt, story.latest().retry_count) == (attempt, attempt - 1)
        assert (story.run.total_steps, story.run.failed_steps) == (5, 4)

    def test_every_attempt_has_events_of_its_own(self) -> None:
        """§IDM-1: the logical attempt is in the key; the engine's is not (§IDM-6)."""
        story = self.failed()
        story.do(commands.RetryStep(step_key="work"))
        story.open_step()
        first, second = (e for e in story.of_type("STEP_STARTED") if e.step_key == "work")
        assert first.idempotency_key != second.idempotency_key

        keys = set()
        for engine_attempt in (1, 2):
            story = Story.running()
            start = commands.StartStep(step_key="work", step_type="DECISION")
            story.do(start, engine_attempt=engine_attempt)
            keys.add(story.last.idempotency_key)
        assert len(keys) == 1

    def test_not_before_it_was_asked_for(self) -> None:
        with pytest.raises(CommandRefused, match="not due again"):
            self.failed().open_step()

    def test_it_is_asked_for_once(self) -> None:
        """§IDM-7: a second STEP_RETRIED of one attempt would be the same fact again."""
        story = self.failed()
        story.do(commands.RetryStep(step_key="work"))
        with pytest.raises(CommandRefused):
            story.do(commands.RetryStep(step_key="work"))

    def test_there_must_be_something_to_retry(self) -> None:
        with pytest.raises(CommandRefused, match="no step 'other' to retry"):
            self.failed().do(commands.RetryStep(step_key="other"))

    @pytest.mark.parametrize("key", ["before", "open"])
    def test_only_a_failure_is_retried(self, key: str) -> None:
        story = self.failed()
        story.open_step("open")
        with pytest.raises(CommandRefused, match="only its last failure is retried"):
            story.do(commands.RetryStep(step_key=key))

    def test_a_wait_that_timed_out_can_be_waited_for_again(self) -> None:
        story = Story.running()
        story.wait("color")
        timed_out = commands.FailStep(step_key="wait", error=error("TIMEOUT", category="TIMEOUT"))
        story.do(timed_out, parked("wait"))
        story.do(control("RETRY_STEP", target="wait"))
        story.wait("color")
        assert story.latest("wait").logical_attempt == 2


class TestCorrection:
    """§EVT-9, §EVT-10"""

    def test_both_versions_and_the_reason_stay(self) -> None:
        story = Story.running()
        step = story.step("total", 41)
        completed = story.last
        before = story.latest("total")
        correct = commands.CorrectStep(step_id=step, output=decided(42), reason="off by one")
        assert types(story.do(correct)) == ["STEP_CORRECTED"]
        assert data(story.last) == {
            "version": 2,
            "original_output": {"decision": 41},
            "corrected_output": {"decision": 42},
            "reason": "off by one",
        }
        assert story.last.causation_id == completed.id
        assert story.latest("total") is before

    def test_a_further_correction_corrects_the_one_before(self) -> None:
        story = Story.running()
        step = story.step("total", 41)
        for value in (42, 43):
            story.do(commands.CorrectStep(step_id=step, output=decided(value), reason="again"))
        first, second = story.of_type("STEP_CORRECTED")
        assert data(second)["version"] == 3
        assert data(second)["original_output"] == {"decision": 42}
        assert second.causation_id == first.id
        assert [kept.version for kept in story.state.corrections.values()] == [2, 3]

    def test_each_step_has_versions_of_its_own(self) -> None:
        story = Story.running()
        for key in "ab":
            step = story.step(key, key)
            story.do(commands.CorrectStep(step_id=step, output=decided("x"), reason="X"))
        assert [data(event)["version"] for event in story.of_type("STEP_CORRECTED")] == [2, 2]
        assert data(story.last)["original_output"] == {"decision": "b"}

    def test_a_large_original_is_kept_whole(self) -> None:
        story = Story.running()
        step = story.step("total", LARGE)
        for value in (LARGE, 1):
            story.do(commands.CorrectStep(step_id=step, output=decided(value), reason="X"))
            assert data(story.last)["original_output"] == {"decision": LARGE}

    def test_it_can_come_after_the_end(self) -> None:
        """§TRN-4"""
        story = Story.running()
        step = story.step()
        story.returned()
        frozen = story.run
        story.do(commands.CorrectStep(step_id=step, output=decided(2), reason="X"))
        assert story.run is frozen
        assert len(story.state.corrections) == 1

    def test_the_next_step_still_sees_what_was_recorded(self) -> None:
        """§EVT-10: replay goes on delivering the value that the step's row holds."""
        story = Story.running()
        step = story.step()
        completed = story.last.id
        story.do(commands.CorrectStep(step_id=step, output=decided(2), reason="X"))
        story.open_step("next")
        assert plain(story.latest("next").input_context)["prior_step_output"]["$event"] == completed

    def test_there_must_be_an_output(self) -> None:
        story = Story.running()
        failed, still_open = story.failed_step("bad"), story.open_step("open")
        for step in (failed, still_open, an_id(300)):
            with pytest.raises(CommandRefused, match="no output to correct"):
                story.do(commands.CorrectStep(step_id=step, output=decided(1), reason="X"))


class TestTools:
    """§EVT-16"""

    def test_a_call(self) -> None:
        story = Story.running()
        step = story.open_step("work", "TOOL_SEQUENCE")
        call = commands.CallTool(step_key="work", tool_name="find", tool_args=raw({"q": 1}))
        assert types(story.do(call)) == ["TOOL_CALLED"]
        assert data(story.last) == {"step_id": step, "tool_name": "find", "tool_args": {"q": 1}}
        assert (story.last.step_key, story.last.logical_attempt) == ("work", 1)
        assert list(story.state.tool_calls) == [story.last.aggregate_id]

    def test_its_outcomes(self) -> None:
        story = Story.running()
        story.open_step("work", "TOOL_SEQUENCE")
        ids = an_id(300), an_id(301)
        for tool_call_id in ids:
            call = commands.CallTool(
                step_key="work", tool_name="t", tool_args=raw(1), tool_call_id=tool_call_id
            )
            story.do(call)
        story.do(commands.CompleteTool(tool_call_id=ids[0], result=raw(2), duration_ms=5, cache_hit=True))
        assert data(story.last) == {"result": 2, "duration_ms": 5, "cache_hit": True}
        story.do(commands.FailTool(tool_call_id=ids[1], error=error(), duration_ms=6))
        assert data(story.last)["error"]["code"] == "BOOM"
        assert [story.tool_call(one).status for one in ids] == ["COMPLETED", "FAILED"]

    @pytest.mark.parametrize(
        ("command", "to_state"),
        [
            (commands.CompleteTool(tool_call_id=an_id(300), result=raw(1), duration_ms=1), "COMPLETED"),
            (commands.FailTool(tool_call_id=an_id(300), error=error(), duration_ms=1), "FAILED"),
        ],
    )
    def test_an_outcome_of_a_call_that_was_never_made(self, command: Command, to_state: str) -> None:
        with pytest.raises(StateTransitionError) as refused:
            Story.running().do(command)
        error_ = refused.value
        assert (error_.aggregate, error_.aggregate_id) == ("tool call", an_id(300))
        assert (error_.from_state, error_.to_state) == (None, to_state)
