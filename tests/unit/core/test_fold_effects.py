"""Effects in the fold: every state against every event, and what each event leaves in the row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from runstone.core import commands, payloads
from runstone.core.effect import Effect
from runstone.core.fold import fold_run
from runstone.core.payloads import Payload
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import NOON, Story, an_id, error, plain, raw
from tests.unit.core.stories import STORIES

EFFECT = an_id(800)


def pending() -> Story:
    story = Story.running()
    story.effect(effect_id=EFFECT, delivery="at_most_once", max_retries=1)
    return story


def executing() -> Story:
    story = pending()
    story.do(commands.BeginEffect(effect_id=EFFECT, executor="smtp"))
    return story


def failed() -> Story:
    story = pending()
    story.not_sent(EFFECT, retryable=True)
    return story


def dead_letter() -> Story:
    story = pending()
    story.not_sent(EFFECT)
    return story


def unknown() -> Story:
    story = executing()
    story.do(commands.LoseEffect(effect_id=EFFECT, executor="smtp"))
    return story


def completed() -> Story:
    story = pending()
    story.sent(EFFECT)
    return story


def cancelled() -> Story:
    story = dead_letter()
    story.do(commands.DiscardEffect(effect_id=EFFECT))
    return story


STATES: dict[str, Callable[[], Story]] = {
    "PENDING": pending,
    "EXECUTING": executing,
    "FAILED": failed,
    "DEAD_LETTER": dead_letter,
    "UNKNOWN": unknown,
    "COMPLETED": completed,
    "CANCELLED": cancelled,
}

EVENTS: dict[str, tuple[Payload, str, set[str]]] = {
    "executing": (payloads.EffectExecuting(executor="x"), "EXECUTING", {"PENDING", "FAILED"}),
    "completed": (payloads.EffectCompleted(execution_result=raw("ok")), "COMPLETED", {"EXECUTING"}),
    "failed": (
        payloads.EffectFailed(effect_type="SEND_EMAIL", error=error(), retry_count=0),
        "FAILED",
        {"EXECUTING"},
    ),
    "retrying": (payloads.EffectRetrying(retry_count=1, next_retry_at=NOON), "FAILED", {"FAILED"}),
    "dead_lettered": (payloads.EffectDeadLettered(error=error()), "DEAD_LETTER", {"FAILED"}),
    "requeued": (payloads.EffectRequeued(), "PENDING", {"DEAD_LETTER"}),
    "cancelled": (payloads.EffectCancelled(reason="X"), "CANCELLED", {"PENDING", "DEAD_LETTER"}),
    "outcome_unknown": (payloads.EffectOutcomeUnknown(executor="x"), "UNKNOWN", {"EXECUTING"}),
    "reconciled_sent": (payloads.EffectReconciled(sent=True), "COMPLETED", {"UNKNOWN"}),
    "reconciled_not_sent": (payloads.EffectReconciled(sent=False), "PENDING", {"UNKNOWN"}),
}
"""By event: what it makes of an effect, and of which it can (§TRN-8)."""


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_state_against_every_event(state: str, event: str) -> None:
    """§TRN-31, and only a person resolves an unknown outcome (§OUT-27)."""
    story = STATES[state]()
    assert story.effect_row(EFFECT).status == state
    payload, target, legal = EVENTS[event]
    forged = story.forge(payload, EFFECT)
    if state in legal:
        assert fold_run(story.state, [forged]).effects[EFFECT].status == target
        return
    with pytest.raises(StateTransitionError) as refused:
        fold_run(story.state, [forged])
    assert (refused.value.aggregate, refused.value.aggregate_id) == ("effect", EFFECT)
    assert (refused.value.from_state, refused.value.to_state) == (state, target)


@pytest.mark.parametrize("event", EVENTS)
def test_an_effect_that_nobody_asked_for(event: str) -> None:
    story = Story.running()
    payload, target, _ = EVENTS[event]
    with pytest.raises(StateTransitionError) as refused:
        fold_run(story.state, [story.forge(payload, EFFECT)])
    assert (refused.value.from_state, refused.value.to_state) == (None, target)


@pytest.mark.parametrize("state", STATES)
def test_a_late_outcome_is_a_fact_that_changes_nothing(state: str) -> None:
    """§TRN-4, §OUT-13"""
    story = STATES[state]()
    late = story.forge(payloads.EffectLateOutcome(executor="stale", error=error()), EFFECT)
    after = fold_run(story.state, [late])
    assert after.effects == story.state.effects
    assert after.last_seq == story.state.last_seq + 1


def test_a_late_outcome_of_an_effect_that_nobody_asked_for() -> None:
    story = Story.running()
    with pytest.raises(StateTransitionError):
        fold_run(story.state, [story.forge(payloads.EffectLateOutcome(executor="stale"), EFFECT)])


def request(step_id: str) -> payloads.EffectRequested:
    return payloads.EffectRequested(step_id=step_id, effect_type="X", effect_spec=raw({}), effect_key="k")


def test_an_effect_is_asked_for_once() -> None:
    story = pending()
    with pytest.raises(StateTransitionError) as refused:
        fold_run(story.state, [story.forge(request(story.latest("mail").id), EFFECT)])
    assert refused.value.to_state == "PENDING"


def test_an_effect_belongs_to_a_step() -> None:
    story = Story.running()
    with pytest.raises(CommandRefused, match="outside of a step"):
        fold_run(story.state, [story.forge(request(an_id(700)), EFFECT)])


def test_the_row_of_a_new_effect() -> None:
    """§ENT-20"""
    story = Story.running()
    story.effect(effect_id=EFFECT, effect_key="mine", spec={"to": "bob"}, critical=False, max_retries=7)
    requested = story.of_type("EFFECT_REQUESTED")[0]
    row = story.effect_row(EFFECT)
    assert row == Effect(
        id=EFFECT,
        tenant_id=story.run.tenant_id,
        run_id=story.run_id,
        step_id=story.latest("mail").id,
        effect_type="SEND_EMAIL",
        effect_spec=raw({"to": "bob", "idempotency_key": "mine"}),
        idempotency_key="mine",
        requested_at=requested.occurred_at,
        executed_at=None,
        status="PENDING",
        execution_result=None,
        error_details=None,
        retry_count=0,
        max_retries=7,
        next_retry_at=None,
        critical=False,
        delivery="at_least_once",
        correlation_id=story.run.correlation_id,
        metadata=None,
    )


def test_success_leaves_result_and_time_and_no_error() -> None:
    story = failed()
    assert story.effect_row(EFFECT).error_details is not None
    story.sent(EFFECT, {"id": 5})
    row = story.effect_row(EFFECT)
    assert (plain(row.execution_result), row.executed_at, row.error_details) == ({"id": 5}, story.now, None)
    assert row.next_retry_at is None


def test_a_failure_leaves_its_error_and_when_to_try_again() -> None:
    story = pending()
    due = story.now + timedelta(minutes=1)
    story.not_sent(EFFECT, retryable=True)
    row = story.effect_row(EFFECT)
    assert (row.retry_count, row.next_retry_at) == (1, due)
    assert plain(row.error_details)["code"] == "SMTP_550"


def test_a_dead_letter_has_no_retry_ahead() -> None:
    row = dead_letter().effect_row(EFFECT)
    assert (row.retry_count, row.next_retry_at) == (0, None)
    assert plain(row.error_details)["code"] == "SMTP_550"


def test_a_requeued_effect_starts_again() -> None:
    """§TRN-30"""
    story = failed()
    story.not_sent(EFFECT, retryable=True)
    assert (story.effect_row(EFFECT).status, story.effect_row(EFFECT).retry_count) == ("DEAD_LETTER", 1)
    key = story.effect_row(EFFECT).idempotency_key
    story.do(commands.RequeueEffect(effect_id=EFFECT))
    row = story.effect_row(EFFECT)
    assert (row.status, row.retry_count, row.next_retry_at, row.error_details) == ("PENDING", 0, None, None)
    assert row.idempotency_key == key
    assert len(story.of_type("EFFECT_FAILED")) == 2


def test_an_effect_found_to_have_been_sent_has_the_time_of_that_finding() -> None:
    story = unknown()
    story.do(commands.ReconcileEffect(effect_id=EFFECT, sent=True))
    assert story.effect_row(EFFECT).executed_at == story.now


@pytest.mark.parametrize(
    ("state", "is_open"),
    [
        ("PENDING", True),
        ("EXECUTING", True),
        ("FAILED", True),
        ("UNKNOWN", True),
        ("DEAD_LETTER", False),
        ("COMPLETED", False),
        ("CANCELLED", False),
    ],
)
def test_what_a_run_has_to_wait_for(state: str, is_open: bool) -> None:
    """§TRN-14"""
    assert STATES[state]().effect_row(EFFECT).is_open is is_open


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_which_effects_are_open_is_known_after_every_event(tell: Callable[[], Story]) -> None:
    story = tell()
    for count in range(len(story.run_events) + 1):
        state = fold_run(story.beginning.run, story.run_events[:count])
        assert set(state.open_effects) == {effect.id for effect in state.effects.values() if effect.is_open}
