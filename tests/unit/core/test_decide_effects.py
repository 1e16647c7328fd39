"""Decisions about effects: asked for by a step, carried out by a dispatcher, put right by people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.effect import outbox_entry
from runstone.core.keys import effect_key
from runstone.core.payloads import ErrorInfo
from runstone.errors import CommandRefused, InvalidPayload, StateTransitionError
from tests.unit.core.build import NOON, Story, an_id, data, error, plain, raw, types

EFFECT = an_id(800)


def request(**given: Any) -> commands.RequestEffect:
    fields = {"step_key": "mail", "effect_type": "SEND_EMAIL", "spec": {"to": "bob"}, **given}
    return commands.RequestEffect(**fields)


def asking() -> Story:
    """A step is open that may ask for effects."""
    story = Story.running()
    story.open_step("mail", "EFFECT_REQUEST")
    return story


def asked(**given: Any) -> Story:
    story = Story.running()
    story.effect(effect_id=EFFECT, **given)
    return story


def failing(
    at: timedelta = timedelta(minutes=1), why: ErrorInfo | None = None, **given: Any
) -> commands.FailEffect:
    return commands.FailEffect(
        effect_id=EFFECT,
        executor="smtp",
        error=why or error("SMTP_421", retryable=True),
        next_retry_at=NOON + at,
        **given,
    )


class TestRequest:
    """§OUT-1"""

    def test_it_is_committed_with_its_step(self) -> None:
        story = Story.running()
        decision = story.do(
            commands.StartStep(step_key="mail", step_type="EFFECT_REQUEST"), request(effect_id=EFFECT)
        )
        assert types(decision) == ["STEP_STARTED", "EFFECT_REQUESTED"]
        key = story.effect_row(EFFECT).idempotency_key
        assert data(story.last) == {
            "step_id": story.latest("mail").id,
            "effect_type": "SEND_EMAIL",
            "effect_spec": {"to": "bob", "idempotency_key": key},
            "effect_key": key,
        }
        assert (story.last.aggregate_type, story.last.step_key) == ("EFFECT", "mail")

    def test_its_default_key(self) -> None:
        """§IDM-26: over the spec without the key."""
        story = asking()
        story.do(request(ordinal=2))
        (row,) = story.state.effects.values()
        assert row.idempotency_key == effect_key(
            story.run.tenant_id, story.run_id, "mail", 2, "SEND_EMAIL", raw({"to": "bob"})
        )

    def test_several_of_one_step_are_told_apart(self) -> None:
        story = asking()
        story.do(request(ordinal=0), request(ordinal=1), request(ordinal=0, spec={"to": "eve"}))
        assert len({row.idempotency_key for row in story.state.effects.values()}) == 3

    def test_a_caller_may_give_its_own_key(self) -> None:
        """§IDM-27: it stands in the spec, whatever stood there."""
        story = asking()
        story.do(request(effect_key="invoice-7", spec={"to": "bob", "idempotency_key": "x"}))
        (row,) = story.state.effects.values()
        assert row.idempotency_key == "invoice-7"
        assert plain(row.effect_spec) == {"to": "bob", "idempotency_key": "invoice-7"}

    def test_a_key_inside_the_spec_alone_is_refused(self) -> None:
        with pytest.raises(InvalidPayload) as refused:
            asking().do(request(spec={"idempotency_key": "x"}))
        assert refused.value.pointer == "/idempotency_key"

    def test_a_spec_that_cannot_be_stored_is_refused(self) -> None:
        with pytest.raises(InvalidPayload) as refused:
            asking().do(request(spec={"to": {"name": "a\0b"}}))
        assert refused.value.pointer == "/to/name"

    def test_the_same_key_again_is_the_same_effect(self) -> None:
        """§IDM-27"""
        story = asking()
        story.do(request(effect_key="invoice-7"))
        assert types(story.do(request(effect_key="invoice-7"))) == []
        assert len(story.state.effects) == 1

    @pytest.mark.parametrize("other", [{"spec": {"to": "eve"}}, {"effect_type": "NOTIFY_USER"}])
    def test_the_same_key_for_something_else_is_a_conflict(self, other: dict[str, Any]) -> None:
        """§IDM-27, §IDM-11"""
        story = asking()
        story.do(request(effect_key="invoice-7"))
        with pytest.raises(CommandRefused):
            story.do(request(effect_key="invoice-7", **other))

    def test_a_step_that_is_tried_again_does_not_send_again(self) -> None:
        """The key does not hold the attempt, so what the first attempt asked for is on its way."""
        story = asking()
        story.do(request(), commands.FailStep(step_key="mail", error=error()))
        story.do(commands.RetryStep(step_key="mail"))
        story.open_step("mail", "EFFECT_REQUEST")
        story.do(request())
        assert len(story.state.effects) == 1

    @pytest.mark.parametrize(
        ("effect_type", "given", "retries"),
        [("SEND_EMAIL", None, 3), ("API_CALL", None, 5), ("MY_OWN", None, 3), ("SEND_EMAIL", 0, 0)],
    )
    def test_how_often_it_may_be_retried(self, effect_type: str, given: int | None, retries: int) -> None:
        """§OUT-21"""
        story = asking()
        story.do(request(effect_type=effect_type, max_retries=given))
        (row,) = story.state.effects.values()
        assert row.max_retries == retries

    def test_only_an_open_step_asks(self) -> None:
        story = Story.running()
        with pytest.raises(CommandRefused, match="no open step 'mail' to ask for an effect from"):
            story.do(request())
        story.step("mail")
        with pytest.raises(CommandRefused, match="no open step 'mail'"):
            story.do(request())


class TestExecution:
    def test_a_beginning_that_has_to_be_durable_first(self) -> None:
        """§OUT-7"""
        story = asked(delivery="at_most_once")
        begin = commands.BeginEffect(effect_id=EFFECT, executor="smtp-1", fence=7)
        assert types(story.do(begin)) == ["EFFECT_EXECUTING"]
        assert data(story.last) == {"executor": "smtp-1", "fence": 7}
        assert types(story.sent(EFFECT)) == ["EFFECT_COMPLETED"]

    def test_otherwise_it_rides_with_the_outcome(self) -> None:
        story = asked()
        done = commands.CompleteEffect(effect_id=EFFECT, executor="smtp-1", result=raw({"id": 1}), fence=7)
        assert types(story.do(done)) == ["EFFECT_EXECUTING", "EFFECT_COMPLETED"]
        executing, completed = story.run_events[-2:]
        assert data(executing) == {"executor": "smtp-1", "fence": 7}
        assert data(completed) == {"execution_result": {"id": 1}}
        assert completed.causation_id == executing.id

    def test_a_failure_that_may_be_retried(self) -> None:
        """§TRN-29"""
        story = asked()
        assert types(story.do(failing(fence=2))) == ["EFFECT_EXECUTING", "EFFECT_FAILED", "EFFECT_RETRYING"]
        failed, retrying = story.run_events[-2:]
        assert data(failed) == {
            "effect_type": "SEND_EMAIL",
            "error": {
                "category": "APPLICATION",
                "code": "SMTP_421",
                "message": "It went SMTP_421",
                "retryable": True,
            },
            "retry_count": 0,
        }
        assert data(retrying) == {"retry_count": 1, "next_retry_at": "2026-03-01T12:01:00Z"}

    @pytest.mark.parametrize(("max_retries", "tries"), [(0, 1), (1, 2), (3, 4)])
    def test_three_retries_are_four_tries(self, max_retries: int, tries: int) -> None:
        """§TRN-28, §OUT-22"""
        story = asked(max_retries=max_retries)
        made = 0
        while story.effect_row(EFFECT).status != "DEAD_LETTER":
            story.do(failing())
            made += 1
        assert made == tries
        assert [data(event)["retry_count"] for event in story.of_type("EFFECT_FAILED")] == list(range(tries))
        assert story.last.event_type == "EFFECT_DEAD_LETTERED"
        assert data(story.last)["error"]["code"] == "SMTP_421"

    def test_an_error_that_cannot_be_retried_is_a_dead_letter_at_once(self) -> None:
        """§OUT-15"""
        story = asked(max_retries=3)
        decision = story.do(failing(why=error("SMTP_550")))
        assert types(decision) == ["EFFECT_EXECUTING", "EFFECT_FAILED", "EFFECT_DEAD_LETTERED"]

    @pytest.mark.parametrize("finish", ["sent", "discarded"])
    def test_an_outcome_comes_once(self, finish: str) -> None:
        story = asked()
        if finish == "sent":
            story.sent(EFFECT)
        else:
            story.not_sent(EFFECT)
            story.do(commands.DiscardEffect(effect_id=EFFECT))
        status = story.effect_row(EFFECT).status
        outcomes: list[Command] = [
            commands.BeginEffect(effect_id=EFFECT, executor="x"),
            commands.CompleteEffect(effect_id=EFFECT, executor="x", result=raw(1)),
            failing(),
        ]
        for outcome in outcomes:
            with pytest.raises(StateTransitionError) as refused:
                story.do(outcome)
            assert (refused.value.aggregate, refused.value.aggregate_id) == ("effect", EFFECT)
            assert (refused.value.from_state, refused.value.to_state) == (status, "EXECUTING")

    def test_a_dead_letter_is_not_executed_before_it_is_requeued(self) -> None:
        story = asked()
        story.not_sent(EFFECT)
        with pytest.raises(StateTransitionError) as refused:
            story.sent(EFFECT)
        assert refused.value.from_state == "DEAD_LETTER"


class TestUnknownOutcome:
    """§OUT-26, §OUT-27"""

    def lost(self) -> Story:
        story = asked(delivery="at_most_once")
        story.do(commands.BeginEffect(effect_id=EFFECT, executor="smtp"))
        story.do(commands.LoseEffect(effect_id=EFFECT, executor="smtp"))
        return story

    def test_the_worker_died_between_sending_and_recording(self) -> None:
        story = self.lost()
        assert data(story.last) == {"executor": "smtp"}
        assert story.effect_row(EFFECT).status == "UNKNOWN"

    def test_an_effect_that_may_be_sent_again_is_never_unknown(self) -> None:
        story = asked()
        story.do(commands.BeginEffect(effect_id=EFFECT, executor="smtp"))
        with pytest.raises(CommandRefused, match="at_least_once: it is simply sent again"):
            story.do(commands.LoseEffect(effect_id=EFFECT, executor="smtp"))

    def test_one_that_was_not_begun_is_not_lost(self) -> None:
        story = asked(delivery="at_most_once")
        with pytest.raises(StateTransitionError) as refused:
            story.do(commands.LoseEffect(effect_id=EFFECT, executor="smtp"))
        assert (refused.value.from_state, refused.value.to_state) == ("PENDING", "UNKNOWN")

    @pytest.mark.parametrize(("sent", "status"), [(True, "COMPLETED"), (False, "PENDING")])
    def test_a_person_finds_out(self, sent: bool, status: str) -> None:
        story = self.lost()
        story.do(commands.ReconcileEffect(effect_id=EFFECT, sent=sent, evidence="asked bob"))
        assert data(story.last) == {"sent": sent, "evidence": "asked bob"}
        assert story.effect_row(EFFECT).status == status

    def test_the_system_does_not_send_it_again(self) -> None:
        with pytest.raises(StateTransitionError):
            self.lost().sent(EFFECT)

    def test_only_what_is_unknown_is_reconciled(self) -> None:
        with pytest.raises(CommandRefused, match="PENDING: only an unknown outcome"):
            asked().do(commands.ReconcileEffect(effect_id=EFFECT, sent=True))


class TestDeadLetter:
    """§OUT-31"""

    def dead(self) -> Story:
        story = asked()
        story.not_sent(EFFECT)
        return story

    def test_it_is_requeued_under_its_key(self) -> None:
        """§OUT-32"""
        story = self.dead()
        key = story.effect_row(EFFECT).idempotency_key
        assert types(story.do(commands.RequeueEffect(effect_id=EFFECT, reason="fixed"))) == [
            "EFFECT_REQUEUED"
        ]
        assert data(story.last) == {"reason": "fixed"}
        assert (story.effect_row(EFFECT).status, story.effect_row(EFFECT).idempotency_key) == ("PENDING", key)

    def test_it_is_discarded(self) -> None:
        story = self.dead()
        assert types(story.do(commands.DiscardEffect(effect_id=EFFECT))) == ["EFFECT_CANCELLED"]
        assert data(story.last) == {"reason": "DISCARDED"}
        assert story.effect_row(EFFECT).status == "CANCELLED"

    @pytest.mark.parametrize(
        "command",
        [commands.RequeueEffect(effect_id=EFFECT), commands.DiscardEffect(effect_id=EFFECT)],
        ids=["requeue", "discard"],
    )
    def test_only_a_dead_letter(self, command: Command) -> None:
        with pytest.raises(CommandRefused, match="PENDING: it is no dead letter"):
            asked().do(command)


class TestLateOutcome:
    """§OUT-13: refused as the outcome, kept as a fact."""

    @pytest.mark.parametrize(
        ("report", "kept"),
        [
            ({"result": raw("ok")}, {"execution_result": "ok"}),
            ({"result": raw(None)}, {"execution_result": None}),
            (
                {"error": error()},
                {"error": {"category": "APPLICATION", "code": "BOOM", "message": "It went BOOM"}},
            ),
        ],
    )
    def test_it_changes_no_row(self, report: dict[str, Any], kept: dict[str, Any]) -> None:
        story = asked()
        story.sent(EFFECT)
        before = story.effect_row(EFFECT)
        decision = story.do(commands.ReportLateOutcome(effect_id=EFFECT, executor="stale", **report))
        assert types(decision) == ["EFFECT_LATE_OUTCOME"]
        assert data(story.last) == {"executor": "stale", **kept}
        assert story.effect_row(EFFECT) is before
        assert decision.commit.writes[0].rows == ()


@pytest.mark.parametrize(
    "command",
    [
        commands.BeginEffect(effect_id=EFFECT, executor="x"),
        commands.CompleteEffect(effect_id=EFFECT, executor="x", result=raw(1)),
        failing(),
        commands.LoseEffect(effect_id=EFFECT, executor="x"),
        commands.ReconcileEffect(effect_id=EFFECT, sent=True),
        commands.RequeueEffect(effect_id=EFFECT),
        commands.DiscardEffect(effect_id=EFFECT),
        commands.ReportLateOutcome(effect_id=EFFECT, executor="x"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_an_effect_that_nobody_asked_for(command: Command) -> None:
    with pytest.raises(CommandRefused, match=f"no effect {EFFECT}"):
        Story.running().do(command)


class TestOutboxEntry:
    """§ENT-21, §TRN-9: the outbox is a view of effects."""

    def test_it_shows_the_effect(self) -> None:
        story = asked()
        story.sent(EFFECT, "ok")
        effect = story.effect_row(EFFECT)
        entry = outbox_entry(effect)
        assert (entry.id, entry.aggregate_type, entry.aggregate_id) == (EFFECT, "EFFECT", EFFECT)
        assert (entry.event_type, entry.payload) == (effect.effect_type, effect.effect_spec)
        assert (entry.created_at, entry.processed_at) == (effect.requested_at, effect.executed_at)
        assert (entry.result, entry.error_details) == (raw("ok"), None)
        assert (entry.tenant_id, entry.correlation_id) == (effect.tenant_id, effect.correlation_id)
        assert (entry.idempotency_key, entry.max_retries) == (effect.idempotency_key, effect.max_retries)

    def test_its_status_follows_the_effects(self) -> None:
        story = asked()
        assert outbox_entry(story.effect_row(EFFECT)).status == "PENDING"
        story.do(commands.BeginEffect(effect_id=EFFECT, executor="x"))
        assert outbox_entry(story.effect_row(EFFECT)).status == "PROCESSING"
        story.do(failing())
        entry = outbox_entry(story.effect_row(EFFECT))
        assert (entry.status, entry.retry_count) == ("FAILED", 1)
        assert entry.next_retry_at == NOON + timedelta(minutes=1)
