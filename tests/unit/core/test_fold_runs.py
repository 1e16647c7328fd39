"""A run in the fold: every state against every event, its row, its place in the queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from runstone.core import commands, payloads
from runstone.core.fold import fold_run
from runstone.core.payloads import Payload
from runstone.core.run import Run
from runstone.core.state import FOLD_VERSION
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import HASH, Story, an_id, answer, control, error, plain, raw


def pending() -> Story:
    return Story.queued()


def approved() -> Story:
    story = Story.queued(approval_required=True)
    story.do(control("APPROVE"))
    return story


def running() -> Story:
    return Story.running()


def paused() -> Story:
    story = Story.running()
    story.do(commands.PauseRun(reason="PARKED"))
    return story


def completed() -> Story:
    story = Story.running()
    story.returned()
    return story


def failed() -> Story:
    story = Story.running()
    story.do(commands.FailRun(error=error()))
    return story


def cancelled() -> Story:
    story = Story.running()
    story.do(commands.CancelRun(exit_reason="ENOUGH"))
    return story


STATES: dict[str, Callable[[], Story]] = {
    "PENDING": pending,
    "APPROVED": approved,
    "RUNNING": running,
    "PAUSED": paused,
    "COMPLETED": completed,
    "FAILED": failed,
    "CANCELLED": cancelled,
}
UNFINISHED = {"PENDING", "APPROVED", "RUNNING", "PAUSED"}
STARTED = payloads.RunStarted(signal_id=an_id(1), run_type="SIGNAL_PROCESSING", orchestrator_version="2")

EVENTS: dict[str, tuple[Payload, str, set[str]]] = {
    "approved": (payloads.RunApproved(approved_by="ada"), "APPROVED", {"PENDING"}),
    "started": (STARTED, "RUNNING", {"PENDING", "APPROVED"}),
    "paused": (payloads.RunPaused(reason="X"), "PAUSED", {"RUNNING"}),
    "resumed": (payloads.RunResumed(), "RUNNING", {"PAUSED"}),
    "completed": (payloads.RunCompleted(), "COMPLETED", {"RUNNING"}),
    "failed": (payloads.RunFailed(exit_reason="X", error=error()), "FAILED", UNFINISHED),
    "cancelled": (payloads.RunCancelled(exit_reason="X"), "CANCELLED", UNFINISHED),
}
"""By event: what it makes of a run, and of which it can (§TRN-6, §EVT-12)."""


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_state_against_every_event(state: str, event: str) -> None:
    """§TRN-31. What starts is not what resumes: `started_at` is the first start (§ENT-11)."""
    story = STATES[state]()
    assert story.status == state
    payload, target, legal = EVENTS[event]
    forged = story.forge(payload)
    if state in legal:
        after = fold_run(story.state, [forged]).run
        assert after is not None
        assert after.status == target
        return
    with pytest.raises(StateTransitionError) as refused:
        fold_run(story.state, [forged])
    assert (refused.value.aggregate, refused.value.aggregate_id) == ("run", story.run_id)
    assert (refused.value.from_state, refused.value.to_state) == (state, target)


def test_a_run_is_created_once() -> None:
    story = Story.running()
    again = payloads.RunCreated(signal_id=an_id(1), run_type="CONTINUATION", plan_id="other")
    with pytest.raises(StateTransitionError) as refused:
        fold_run(story.state, [story.forge(again)])
    assert (refused.value.from_state, refused.value.to_state) == ("RUNNING", "PENDING")


def test_the_row_of_a_new_run() -> None:
    """§ENT-11"""
    story = Story.queued(
        run_type="HUMAN_TRIGGERED",
        plan_version="3",
        orchestrator_version="1.2",
        project="shop",
        environment="test",
        key="order-1",
        parent_run_id=an_id(600),
        metadata=raw({"tag": "x"}),
    )
    assert story.run == Run(
        id=story.run_id,
        tenant_id=story.signal.tenant_id,
        signal_id=story.signal_id,
        run_type="HUMAN_TRIGGERED",
        project="shop",
        environment="test",
        plan_id="orders",
        plan_version="3",
        run_request_id=story.signal_id,
        key="order-1",
        created_at=story.now,
        started_at=None,
        completed_at=None,
        status="PENDING",
        exit_reason=None,
        error_details=None,
        result=None,
        correlation_id=story.signal.correlation_id,
        causation_id=an_id(600),
        orchestrator_version="1.2",
        engine_run_ref=None,
        generation=1,
        total_steps=0,
        failed_steps=0,
        fold_version=FOLD_VERSION,
        metadata=raw({"tag": "x"}),
    )


def test_starting_keeps_when_and_by_which_version() -> None:
    story = Story.queued(orchestrator_version="1.0")
    story.do(commands.StartRun(orchestrator_version="1.1"))
    assert (story.run.started_at, story.run.orchestrator_version) == (story.now, "1.1")


def test_the_reference_of_a_foreign_engine_is_kept_when_there_is_one() -> None:
    """§EVT-12"""
    story = Story.queued()
    story.do(commands.StartRun(), engine_run_ref={"workflow": "w-1"})
    assert plain(story.run.engine_run_ref) == {"workflow": "w-1"}
    assert Story.running().run.engine_run_ref is None


def test_the_end_leaves_its_reason_and_the_root_cause() -> None:
    """§TRN-13"""
    story = failed()
    assert (story.run.exit_reason, story.run.completed_at) == ("BOOM", story.now)
    assert plain(story.run.error_details) == {
        "category": "APPLICATION",
        "code": "BOOM",
        "message": "It went BOOM",
    }
    assert cancelled().run.exit_reason == "ENOUGH"
    assert completed().run.exit_reason is None


class TestQueue:
    """§STO-27, §ENT-25: when somebody has to look at the run, and what others wrote."""

    def test_a_new_run_is_due_at_once(self) -> None:
        story = Story.queued()
        assert story.state.wake_at == story.now

    def test_a_run_that_waits_for_approval_is_not(self) -> None:
        story = Story.queued(approval_required=True)
        assert story.state.wake_at is None
        story.do(control("APPROVE"))
        assert story.state.wake_at == story.now

    def test_starting_makes_it_due(self) -> None:
        story = Story.running()
        assert story.state.wake_at == story.now

    def test_a_pause_lets_it_sleep_until_it_is_resumed(self) -> None:
        story = paused()
        assert story.state.wake_at is None
        story.do(control("RESUME"))
        assert story.state.wake_at == story.now

    def test_suspending_sets_the_deadline_or_never(self) -> None:
        story = Story.running()
        deadline = story.now + timedelta(hours=3)
        story.do(commands.SuspendRun(wake_at=deadline))
        assert (story.state.wake_at, story.state.suspended) == (deadline, True)
        story.do(commands.SuspendRun())
        assert (story.state.wake_at, story.state.suspended) == (None, True)

    def test_the_end_of_an_open_step_wakes_a_suspended_run(self) -> None:
        story = Story.running()
        story.wait("color")
        story.do(commands.SuspendRun(waiting=("wait",)))
        story.do(answer("color", "red"))
        assert (story.state.wake_at, story.state.suspended) == (story.now, False)

    def test_an_answer_that_no_wait_takes_does_not(self) -> None:
        story = Story.running()
        story.wait("color")
        story.do(commands.SuspendRun(waiting=("wait",)))
        story.do(answer("size", "XL"))
        assert (story.state.wake_at, story.state.suspended) == (None, True)

    def test_a_step_that_ends_beside_a_running_handler_leaves_it_alone(self) -> None:
        story = Story.running()
        before = story.state.wake_at
        story.step()
        assert story.state.wake_at == before

    def test_an_operators_retry_wakes_it(self) -> None:
        story = Story.running()
        story.parked_step()
        parked = story.state.wake_at
        assert parked is None
        story.do(control("RETRY_STEP", target="work"))
        assert (story.state.wake_at, story.state.suspended) == (story.now, False)

    def test_the_policys_own_retry_does_not(self) -> None:
        """The handler is there and sees to it."""
        story = Story.running()
        story.failed_step()
        story.do(commands.SuspendRun())
        story.do(commands.RetryStep(step_key="work"))
        assert (story.state.wake_at, story.state.suspended) == (None, True)

    def test_a_new_generation_is_due_at_once(self) -> None:
        story = Story.running()
        story.do(commands.ContinueRun(carry=raw(1)))
        assert story.state.wake_at == story.now

    def test_a_handler_that_has_returned_is_not_woken_any_more(self) -> None:
        story = Story.running()
        story.effect()
        story.returned()
        assert story.state.wake_at is None
        story.do(control("PAUSE", 901))
        story.do(control("RESUME", 902))
        assert (story.status, story.state.wake_at) == ("RUNNING", None)

    @pytest.mark.parametrize("end", [completed, failed, cancelled])
    def test_an_ended_run_is_never_due(self, end: Callable[[], Story]) -> None:
        assert end().state.wake_at is None

    def test_what_the_handler_writes_itself_is_no_news(self) -> None:
        story = Story.running()
        story.step()
        story.do(commands.SetVariable(name="x", value=raw(1)))
        story.effect()
        story.do(commands.SuspendRun())
        assert story.state.news_seq == 0

    def test_what_others_write_is(self) -> None:
        story = Story.running()
        effect = story.effect()
        story.wait("color")
        for command in (
            answer("color", "red", 901),
            commands.CompleteEffect(effect_id=effect, executor="x", result=raw(1)),
            control("PAUSE", 902),
            control("RESUME", 903),
            control("CANCEL", 904),
        ):
            story.do(command)
            assert story.state.news_seq == story.last.run_seq


class TestSuspension:
    @pytest.mark.parametrize("state", sorted(set(STATES) - {"RUNNING"}))
    def test_only_a_running_handler_suspends(self, state: str) -> None:
        story = STATES[state]()
        with pytest.raises(CommandRefused, match=state):
            fold_run(story.state, [story.forge(payloads.RunSuspended())])


class TestReturn:
    @pytest.mark.parametrize("state", sorted(set(STATES) - {"RUNNING"}))
    def test_only_a_running_handler_returns(self, state: str) -> None:
        story = STATES[state]()
        with pytest.raises(CommandRefused, match=state):
            fold_run(story.state, [story.forge(payloads.RunHandlerReturned(result=raw(1)))])

    def test_it_returns_once(self) -> None:
        story = Story.running()
        story.effect()
        story.returned()
        with pytest.raises(CommandRefused, match="cannot return again"):
            fold_run(story.state, [story.forge(payloads.RunHandlerReturned(result=raw(1)))])


class TestContinuation:
    def test_generations_come_one_after_the_other(self) -> None:
        story = Story.running()
        for generation in (2, 3):
            with pytest.raises(CommandRefused, match=f"as generation {generation + 1}"):
                self.fold(story, generation + 1)
            assert self.fold(story, generation) == generation
            story.do(commands.ContinueRun(carry=raw(1)))
        with pytest.raises(CommandRefused, match="as generation 3"):
            self.fold(story, 3)

    def fold(self, story: Story, generation: int) -> int:
        event = story.forge(payloads.RunContinued(generation=generation, carry=raw(1)))
        run = fold_run(story.state, [event]).run
        assert run is not None
        return run.generation

    @pytest.mark.parametrize("state", sorted(set(STATES) - {"RUNNING"}))
    def test_only_a_running_one_continues(self, state: str) -> None:
        story = STATES[state]()
        with pytest.raises(CommandRefused, match="cannot continue"):
            fold_run(story.state, [story.forge(payloads.RunContinued(generation=2, carry=raw(1)))])


def test_variables_are_kept_by_name_the_last_value_counts() -> None:
    """§EVT-12"""
    story = Story.running()
    story.do(commands.SetVariable(name="a", value=raw(1)), commands.SetVariable(name="b", value=raw(2)))
    story.do(commands.SetVariable(name="a", value=raw(3)))
    assert {name: plain(value) for name, value in story.state.variables.items()} == {"a": 3, "b": 2}


def test_variables_and_how_often_they_were_set_belong_to_a_generation() -> None:
    story = Story.running()
    for value in (1, 1):
        story.do(commands.SetVariable(name="a", value=raw(value)))
    assert story.state.variable_sets == 2
    story.do(commands.ContinueRun(carry=raw(1)))
    assert (story.state.variable_sets, story.state.variables) == (0, {})


def test_what_a_generation_was_handed_over() -> None:
    """§ENG-39"""
    story = Story.running()
    assert story.state.carry is None
    for value in ({"page": 1}, None):
        story.do(commands.ContinueRun(carry=raw(value)))
        assert plain(story.state.carry) == value


def test_the_order_in_which_steps_ended_is_known() -> None:
    """§ENG-4: replay delivers outcomes in the order of the log."""
    story = Story.running()
    first, second = story.open_step("a"), story.open_step("b")
    story.do(commands.SkipStep(step_key="b", reason="X"))
    story.do(commands.FailStep(step_key="a", error=error()))
    ended = [event.run_seq for event in story.run_events[-2:]]
    assert story.state.ends == {second: ended[0], first: ended[1]}


def test_checkpoints_are_counted() -> None:
    story = Story.running()
    created = payloads.RunCheckpointCreated(checkpoint_id=an_id(5), checkpoint_index=4, last_seq=2, head=HASH)
    assert fold_run(story.state, [story.forge(created)]).checkpoints == 5
