"""Control signals: each is decided once, and the decision is in the log (§ENG-25, §ENG-26)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.payloads import ControlKind
from runstone.errors import CommandRefused, TooManyControls
from tests.unit.core.build import SECOND, Story, an_id, answer, control, data, error, raw, types


def waiting_for_approval() -> Story:
    return Story.queued(approval_required=True)


def approved() -> Story:
    story = waiting_for_approval()
    story.do(control("APPROVE", 800))
    return story


def paused() -> Story:
    story = Story.running()
    story.do(commands.PauseRun(reason="PARKED"))
    return story


def broken() -> Story:
    story = Story.running()
    story.parked_step()
    return story


def ended() -> Story:
    story = Story.running()
    story.returned()
    return story


def seen_while_running() -> Story:
    story = Story.running()
    story.failed_step()
    return story


def seen_before_a_pause() -> Story:
    story = Story.running()
    story.failed_step()
    story.do(commands.PauseRun(reason="NON_DETERMINISTIC"))
    return story


def seen_after_a_resumption() -> Story:
    story = broken()
    story.do(control("RESUME", 800))
    return story


def parked_by_another() -> Story:
    story = Story.running()
    story.failed_step()
    story.parked_step("other")
    return story


class TestAccepted:
    def test_approval(self) -> None:
        """§TRN-11"""
        story = waiting_for_approval()
        assert types(story.do(control("APPROVE"))) == ["SIGNAL_ACCEPTED", "RUN_APPROVED"]
        assert data(story.last) == {"approved_by": "ada"}
        assert story.status == "APPROVED"

    @pytest.mark.parametrize(("given", "recorded"), [("LUNCH", "LUNCH"), ("", "OPERATOR")])
    def test_a_pause_has_a_reason(self, given: str, recorded: str) -> None:
        story = Story.running()
        assert types(story.do(control("PAUSE", reason=given))) == ["SIGNAL_ACCEPTED", "RUN_PAUSED"]
        assert data(story.last) == {"reason": recorded}
        assert story.status == "PAUSED"

    def test_a_resumption(self) -> None:
        story = paused()
        assert types(story.do(control("RESUME"))) == ["SIGNAL_ACCEPTED", "RUN_RESUMED"]
        assert story.status == "RUNNING"

    def test_a_cancellation(self) -> None:
        story = Story.running()
        story.do(control("CANCEL", reason="WRONG_ORDER"))
        assert (story.status, story.run.exit_reason) == ("CANCELLED", "WRONG_ORDER")

    def test_a_retry_resumes_the_run_that_the_step_parked(self) -> None:
        """§ENG-29, §TRN-17"""
        story = broken()
        assert types(story.do(control("RETRY_STEP", target="work"))) == [
            "SIGNAL_ACCEPTED",
            "STEP_RETRIED",
            "RUN_RESUMED",
        ]
        assert data(story.of_type("STEP_RETRIED")[0]) == {"next_attempt": 2, "reason": "OPERATOR"}
        assert (story.status, story.state.wake_at) == ("RUNNING", story.now)
        story.step()
        assert story.latest().logical_attempt == 2

    def test_a_retry_of_what_failed_while_the_run_was_paused(self) -> None:
        """§ENG-29: it was under way, and its handler has not heard of it."""
        story = Story.running()
        story.open_step()
        story.do(control("PAUSE", 901))
        story.do(commands.FailStep(step_key="work", error=error()))
        story.do(control("RETRY_STEP", 902, target="work"))
        assert (story.status, story.state.due_attempts) == ("RUNNING", {"work": 2})

    def test_a_run_stays_paused_until_all_such_failures_are_seen_to(self) -> None:
        """§ENG-29: the handler would see the other failure, for good."""
        story = Story.running()
        story.open_step("other")
        story.parked_step()
        story.do(commands.FailStep(step_key="other", error=error()))
        assert types(story.do(control("RETRY_STEP", 901, target="work"))) == [
            "SIGNAL_ACCEPTED",
            "STEP_RETRIED",
        ]
        assert (story.status, story.state.wake_at) == ("PAUSED", None)
        story.do(control("RETRY_STEP", 902, target="other"))
        assert (story.status, story.state.due_attempts) == ("RUNNING", {"work": 2, "other": 2})

    @pytest.mark.parametrize(
        ("tell", "command"),
        [
            (waiting_for_approval, control("APPROVE")),
            (Story.running, control("PAUSE")),
            (paused, control("RESUME")),
            (broken, control("RETRY_STEP", target="work")),
            (Story.running, control("CANCEL")),
        ],
        ids=["APPROVE", "PAUSE", "RESUME", "RETRY_STEP", "CANCEL"],
    )
    def test_what_follows_names_it_as_cause(
        self, tell: Callable[[], Story], command: commands.Control
    ) -> None:
        """§EVT-13"""
        story = tell()
        accepted, *effects = story.do(command).commit.writes[-1].events
        assert accepted.event_type == "SIGNAL_ACCEPTED"
        assert accepted.control_signal_id == command.control_signal_id
        assert effects
        assert {event.causation_id for event in effects} == {accepted.id}
        assert {event.control_signal_id for event in effects} == {command.control_signal_id}

    def test_what_the_sender_gave_along_is_kept(self) -> None:
        story = Story.running()
        story.do(control("PAUSE", data=raw({"ticket": 7})))
        assert data(story.of_type("SIGNAL_ACCEPTED")[0]) == {
            "kind": "PAUSE",
            "sender": "ada",
            "data": {"ticket": 7},
        }


class TestCause:
    """§ORD-41: what somebody outside reacted to, never what happened to stand before it in the log."""

    @staticmethod
    def busy(story: Story) -> Story:
        """The last event of the run itself has nothing to do with what comes."""
        story.do(commands.SetVariable(name="n", value=raw(1)))
        return story

    @pytest.mark.parametrize("name", ["color", "size"])
    def test_an_answer_is_caused_by_the_wait_that_takes_it(self, name: str) -> None:
        story = Story.running()
        starts: dict[str, str] = {}
        for each in ("color", "size"):
            story.wait(each, f"wait:{each}")
            starts[each] = story.last.id
        self.busy(story).do(answer(name, "red"))
        (accepted,) = story.of_type("SIGNAL_ACCEPTED")
        assert accepted.causation_id == starts[name]

    def test_one_that_comes_before_its_wait_is_caused_by_the_run(self) -> None:
        story = Story.running()
        story.wait(None, "sleep")
        story.wait("size", "wait:size")
        self.busy(story).do(answer("color", "red"))
        assert story.last.causation_id == story.of_type("RUN_CREATED")[0].id

    def test_a_resumption_is_caused_by_the_pause(self) -> None:
        story = Story.running()
        for number in (1, 2):
            story.do(control("PAUSE", 810 + number))
            pause = story.last.id
            self.busy(story).do(control("RESUME", 820 + number))
            assert story.of_type("SIGNAL_ACCEPTED")[-1].causation_id == pause

    def test_a_retry_is_caused_by_the_failure(self) -> None:
        story = self.busy(broken())
        story.do(control("RETRY_STEP", target="work"))
        assert story.of_type("SIGNAL_ACCEPTED")[0].causation_id == story.of_type("STEP_FAILED")[0].id

    @pytest.mark.parametrize(
        ("tell", "command"),
        [
            (waiting_for_approval, control("APPROVE")),
            (Story.running, control("PAUSE")),
            (Story.running, control("CANCEL")),
            (paused, control("CANCEL")),
        ],
        ids=["APPROVE", "PAUSE", "CANCEL", "CANCEL of a paused run"],
    )
    def test_what_refers_to_the_run_is_caused_by_it(
        self, tell: Callable[[], Story], command: commands.Control
    ) -> None:
        story = self.busy(tell())
        story.do(command)
        assert story.of_type("SIGNAL_ACCEPTED")[0].causation_id == story.of_type("RUN_CREATED")[0].id

    @pytest.mark.parametrize(
        ("kind", "target"),
        [("RESUME", None), ("APPROVE", None), ("RETRY_STEP", "nope"), ("RETRY_STEP", None), ("ANSWER", None)],
    )
    def test_a_refusal_of_what_refers_to_nothing(self, kind: ControlKind, target: str | None) -> None:
        story = Story.running()
        story.wait(None, "sleep")  # a wait without a name is not what an answer without one means
        self.busy(story).do(control(kind, target=target))
        assert story.last.event_type == "SIGNAL_REJECTED"
        assert story.last.causation_id == story.of_type("RUN_CREATED")[0].id

    def test_a_refusal_of_what_refers_to_something(self) -> None:
        story = Story.running()
        story.wait("color")
        wait = story.last.id
        story.failed_step()
        failure = story.last.id
        asked: list[tuple[ControlKind, str]] = [("RETRY_STEP", "work"), ("ANSWER", "color")]
        for number, (kind, target) in enumerate(asked, 810):
            refused = commands.RefuseControl(
                control_signal_id=an_id(number), kind=kind, sender="eve", target=target, error=error()
            )
            self.busy(story).do(refused)
        assert [one.causation_id for one in story.of_type("SIGNAL_REJECTED")] == [failure, wait]


class TestRejected:
    """By the run's state: recorded, and nothing else changes."""

    @pytest.mark.parametrize(
        ("tell", "kind", "target", "why"),
        [
            (Story.queued, "APPROVE", None, "the run is PENDING and waits for no approval"),
            (Story.running, "APPROVE", None, "the run is RUNNING and waits for no approval"),
            (approved, "APPROVE", None, "the run is APPROVED and waits for no approval"),
            (Story.queued, "PAUSE", None, "the run is PENDING, not running"),
            (paused, "PAUSE", None, "the run is PAUSED, not running"),
            (Story.running, "RESUME", None, "the run is RUNNING, not paused"),
            (Story.running, "ANSWER", None, "an answer names the wait it is for"),
            (Story.running, "ANSWER", "", "an answer names the wait it is for"),
            (Story.running, "RETRY_STEP", None, "there is no step None"),
            (Story.running, "RETRY_STEP", "nope", "there is no step 'nope'"),
            (ended, "CANCEL", None, "the run has ended (COMPLETED)"),
            (ended, "ANSWER", "color", "the run has ended (COMPLETED)"),
            (ended, "RETRY_STEP", "work", "the run has ended (COMPLETED)"),
        ],
    )
    def test_with_the_reason(
        self, tell: Callable[[], Story], kind: ControlKind, target: str | None, why: str
    ) -> None:
        story = tell()
        status, news = story.status, story.state.news_seq
        assert types(story.do(control(kind, target=target))) == ["SIGNAL_REJECTED"]
        assert story.last.control_signal_id == an_id(900)
        assert data(story.last)["error"] == {
            "category": "VALIDATION",
            "code": "NOT_APPLICABLE",
            "message": why,
        }
        assert (story.status, story.state.news_seq) == (status, news)

    def test_a_retry_of_what_is_not_there_is_told_what_is(self) -> None:
        story = Story.running()
        for number in range(12):
            story.open_step(f"flaky#{number:02}")
        story.parked_step("flaky#12")
        story.do(control("RETRY_STEP", 901, target="flaky"))
        said = "there is no step 'flaky'; those that can be retried: flaky#12"
        assert data(story.last)["error"]["message"] == said
        for number in range(12):
            story.do(commands.FailStep(step_key=f"flaky#{number:02}", error=error()))
        story.do(control("RETRY_STEP", 902, target="flaky"))
        assert data(story.last)["error"]["message"].endswith("flaky#08, flaky#09, …")

    def test_what_is_to_be_tried_already_is_not_offered(self) -> None:
        story = Story.running()
        for key in ("one#1", "two#1"):
            story.open_step(key)
        story.parked_step("zero#1")
        for key in ("one#1", "two#1"):
            story.do(commands.FailStep(step_key=key, error=error()))
        story.do(control("RETRY_STEP", 901, target="one#1"))
        story.do(control("RETRY_STEP", 902, target="one"))
        assert data(story.last)["error"]["message"].endswith("those that can be retried: two#1, zero#1")

    def test_a_retry_of_what_did_not_fail(self) -> None:
        story = Story.running()
        story.step()
        story.do(control("RETRY_STEP", target="work"))
        assert data(story.last)["error"]["message"] == "step 'work' is COMPLETED, not failed"

    def test_a_retry_that_is_due_already(self) -> None:
        story = broken()
        story.do(control("RETRY_STEP", 901, target="work"))
        story.do(control("RETRY_STEP", 902, target="work"))
        assert "to be tried again already" in data(story.last)["error"]["message"]
        assert len(story.of_type("STEP_RETRIED")) == 1

    def test_only_the_last_attempt_is_retried(self) -> None:
        """§ENG-29"""
        story = broken()
        story.do(control("RETRY_STEP", 901, target="work"))
        story.step()
        story.do(control("RETRY_STEP", 902, target="work"))
        assert story.last.event_type == "SIGNAL_REJECTED"

    @pytest.mark.parametrize(
        "tell", [seen_while_running, seen_before_a_pause, seen_after_a_resumption, parked_by_another]
    )
    def test_a_failure_that_the_handler_has_dealt_with_stays(self, tell: Callable[[], Story]) -> None:
        """§ENG-29: another outcome now would contradict all that the handler did since."""
        story = tell()
        status = story.status
        assert types(story.do(control("RETRY_STEP", target="work"))) == ["SIGNAL_REJECTED"]
        assert "the handler has dealt with the failure of 'work'" in data(story.last)["error"]["message"]
        assert (story.status, story.state.due_attempts) == (status, {})

    @pytest.mark.parametrize("details", [raw({"step": 7}), raw({}), raw("work"), raw(None)])
    def test_a_pause_that_names_no_step_was_parked_by_none(self, details: Raw) -> None:
        story = Story.running()
        story.failed_step()
        story.do(commands.PauseRun(reason="PARKED", details=details))
        assert story.state.unseen_failures == frozenset()


class TestTooMany:
    """§ENG-27: counted from the log, so by all processes together."""

    def busy(self, number: int = 60) -> Story:
        story = Story.running()
        for place in range(number):
            story.now -= SECOND  # all at the same moment
            story.do(answer("color", place, 1000 + place))
        return story

    def test_the_sixty_first_within_a_minute(self) -> None:
        story = self.busy()
        before = story.case
        with pytest.raises(TooManyControls, match="at most 60 control signals a minute") as refused:
            story.do(control("PAUSE"))
        assert refused.value.retry_after == timedelta(seconds=59)
        assert story.case == before, "a refusal by rate is not recorded"

    def test_what_was_answered_before_is_not_one_more(self) -> None:
        """§ENG-25"""
        story = self.busy()
        assert types(story.do(answer("color", 0, 1000))) == []

    def test_a_minute_later(self) -> None:
        story = self.busy()
        story.now += timedelta(seconds=59)
        story.do(control("PAUSE"))
        assert story.status == "PAUSED"

    def test_a_refusal_by_the_runs_state_counts_too(self) -> None:
        story = self.busy(59)
        story.do(control("RESUME", 901))
        assert story.last.event_type == "SIGNAL_REJECTED"
        with pytest.raises(TooManyControls):
            story.do(control("RESUME", 902))

    def denied(self, story: Story, place: int, code: str = "NOT_AUTHORIZED") -> None:
        story.now -= SECOND
        refused = commands.RefuseControl(
            control_signal_id=an_id(2000 + place), kind="CANCEL", sender="eve", error=error(code)
        )
        story.do(refused)

    def test_whoever_is_not_authorized_uses_up_nothing_but_their_own(self) -> None:
        story = Story.running()
        for place in range(60):
            self.denied(story, place)
        with pytest.raises(TooManyControls):
            self.denied(story, 60)
        story.do(control("PAUSE"))
        assert story.status == "PAUSED"
        assert len(story.of_type("SIGNAL_REJECTED")) == 60

    def test_whoever_is_authorized_and_wrong_uses_up_the_same(self) -> None:
        story = self.busy()
        with pytest.raises(TooManyControls):
            self.denied(story, 0, "INVALID_ANSWER")


class TestRefusedByAuthorization:
    def refusal(self, number: int = 900) -> commands.RefuseControl:
        return commands.RefuseControl(
            control_signal_id=an_id(number),
            kind="CANCEL",
            sender="eve",
            target="x",
            error=error("FORBIDDEN", category="VALIDATION"),
        )

    def test_who_and_why_are_kept(self) -> None:
        """§ENG-26"""
        story = Story.running()
        assert types(story.do(self.refusal())) == ["SIGNAL_REJECTED"]
        assert data(story.last) == {
            "kind": "CANCEL",
            "sender": "eve",
            "target": "x",
            "error": {"category": "VALIDATION", "code": "FORBIDDEN", "message": "It went FORBIDDEN"},
        }
        assert story.status == "RUNNING"

    def test_also_after_the_end(self) -> None:
        story = ended()
        frozen = story.run
        story.do(self.refusal())
        assert story.run is frozen

    def test_once_for_each_id(self) -> None:
        story = Story.running()
        story.do(self.refusal())
        assert types(story.do(self.refusal())) == []
        assert types(story.do(self.refusal(901))) == ["SIGNAL_REJECTED"]

    def test_only_of_a_run_that_exists(self) -> None:
        with pytest.raises(CommandRefused, match="no run"):
            Story.received().do(self.refusal())


class TestSentTwice:
    """§ENG-25: the same id again changes nothing."""

    @pytest.mark.parametrize(
        ("tell", "command"),
        [
            (waiting_for_approval, control("APPROVE")),
            (Story.running, control("PAUSE")),
            (paused, control("RESUME")),
            (broken, control("RETRY_STEP", target="work")),
            (Story.running, control("CANCEL")),
            (Story.running, answer("color", "red")),
            (Story.running, control("RESUME")),
        ],
        ids=["APPROVE", "PAUSE", "RESUME", "RETRY_STEP", "CANCEL", "ANSWER", "rejected"],
    )
    def test_there_is_nothing_to_commit(self, tell: Callable[[], Story], command: commands.Control) -> None:
        story = tell()
        story.do(command)
        before = story.case
        decision = story.do(command)
        assert decision.commit.writes == ()
        assert decision.case == before

    def test_another_id_is_another_signal(self) -> None:
        story = Story.running()
        story.do(answer("color", "red", 901))
        story.do(answer("color", "red", 902))
        assert len(story.state.answers["color"]) == 2
        one, other = story.of_type("SIGNAL_ACCEPTED")
        assert one.idempotency_key != other.idempotency_key
