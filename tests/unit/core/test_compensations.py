"""Compensations: effects that go out only when their run fails or is cancelled (§OUT-43, §OUT-44)."""

from __future__ import annotations

import pytest

from runstone.core import commands, payloads
from runstone.core.fold import fold_run
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import Story, an_id, data, error, plain, raw, types


def registered(*names: str) -> tuple[Story, list[str]]:
    story = Story.running()
    ids = [story.effect(name, spec={"to": name}, compensation=True) for name in names]
    return story, ids


def pending(story: Story) -> list[str]:
    return [plain(row.effect_spec)["to"] for row in story.state.effects.values() if row.status == "PENDING"]


def test_registering_asks_for_nothing() -> None:
    story, (held,) = registered("hotel")
    assert story.state.effects == {}
    assert list(story.state.compensations) == [held]
    kept = story.state.compensations[held]
    event = story.of_type("COMPENSATION_REGISTERED")[0]
    assert (kept.event_id, kept.step_key, kept.effect_type) == (event.id, "hotel", "SEND_EMAIL")
    assert data(event)["effect_key"] == plain(kept.effect_spec)["idempotency_key"] == kept.idempotency_key


def test_a_run_that_completes_takes_nothing_back() -> None:
    story, _ = registered("hotel", "flight")
    decision = story.returned()
    assert types(decision) == ["RUN_HANDLER_RETURNED", "RUN_COMPLETED", "SIGNAL_PROCESSED"]
    assert story.state.effects == {}


def test_a_failed_run_asks_for_the_latest_in_the_same_commit() -> None:
    story, (_, flight) = registered("hotel", "flight")
    decision = story.do(commands.FailRun(error=error()))
    assert types(decision) == ["RUN_FAILED", "SIGNAL_PROCESSING_FAILED", "EFFECT_REQUESTED"]
    row = story.effect_row(flight)
    assert (row.status, row.critical, pending(story)) == ("PENDING", False, ["flight"])
    assert row.idempotency_key == plain(row.effect_spec)["idempotency_key"]
    assert story.state.compensating == flight


def test_the_next_is_asked_for_with_the_outcome_of_the_one_before() -> None:
    story, (hotel, flight, car) = registered("hotel", "flight", "car")
    story.do(commands.FailRun(error=error()))
    story.not_sent(car, retryable=True)
    assert len(story.state.effects) == 1, "a retry is to come: it is not over"
    decision = story.sent(car)
    assert types(decision) == ["EFFECT_EXECUTING", "EFFECT_COMPLETED", "EFFECT_REQUESTED"]
    assert pending(story) == ["flight"]
    story.not_sent(flight)
    assert pending(story) == ["hotel"], "one that cannot be sent does not hold up the others"
    story.sent(hotel)
    assert story.state.compensations == {}
    assert types(story.do(commands.RequeueEffect(effect_id=flight))) == ["EFFECT_REQUEUED"]


def test_an_unknown_outcome_does_not_hold_up_the_others() -> None:
    story = Story.running()
    story.effect("hotel", spec={"to": "hotel"}, compensation=True)
    flight = story.effect("flight", spec={"to": "flight"}, compensation=True, delivery="at_most_once")
    story.do(commands.FailRun(error=error()))
    story.do(commands.BeginEffect(effect_id=flight, executor="smtp"))
    assert pending(story) == []
    story.do(commands.LoseEffect(effect_id=flight, executor="smtp"))
    assert pending(story) == ["hotel"]


def test_a_cancelled_run_withdraws_its_effects_and_takes_back() -> None:
    """§OUT-48"""
    story, (hotel,) = registered("hotel")
    mail = story.effect("mail", spec={"to": "bob"})
    decision = story.do(commands.CancelRun(exit_reason="CHANGED_MIND"))
    assert types(decision) == [
        "EFFECT_CANCELLED",
        "RUN_CANCELLED",
        "SIGNAL_PROCESSING_FAILED",
        "EFFECT_REQUESTED",
    ]
    assert (story.effect_row(mail).status, story.effect_row(hotel).status) == ("CANCELLED", "PENDING")


def test_a_dead_letter_that_fails_the_run_does_so_too() -> None:
    story, (hotel,) = registered("hotel")
    mail = story.effect("mail", spec={"to": "bob"}, metadata=raw({"a": 1}))
    story.returned()
    decision = story.not_sent(mail)
    assert types(decision)[-3:] == ["RUN_FAILED", "SIGNAL_PROCESSING_FAILED", "EFFECT_REQUESTED"]
    assert story.effect_row(hotel).status == "PENDING"


def test_it_keeps_what_it_was_registered_with() -> None:
    story = Story.running()
    held = story.effect(
        "hotel", compensation=True, max_retries=7, metadata=raw({"why": "saga"}), delivery="at_most_once"
    )
    story.do(commands.FailRun(error=error()))
    row = story.effect_row(held)
    assert (row.max_retries, row.delivery, plain(row.metadata)) == (7, "at_most_once", {"why": "saga"})
    assert row.step_id == story.latest("hotel").id


def test_no_event_registers_it_twice_or_outside_of_a_step() -> None:
    story, (held,) = registered("hotel")
    step_id = story.latest("hotel").id
    with pytest.raises(StateTransitionError):
        fold_run(story.state, [story.forge(_registering(step_id), held)])
    with pytest.raises(CommandRefused, match="outside of a step"):
        fold_run(story.state, [story.forge(_registering(an_id(999)), an_id(998))])


def _registering(step_id: str) -> payloads.CompensationRegistered:
    return payloads.CompensationRegistered(
        step_id=step_id, effect_type="X", effect_spec=raw({}), effect_key="k"
    )
