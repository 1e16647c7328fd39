"""What an executor's word means for the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runstone.core import commands
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.core.retry import RetryPolicy
from runstone.errors import InvalidPayload, RetryableError, TerminalError
from runstone.outbox.outcomes import Report, raised, report, retry_delay
from runstone.ports.executor import Failed, Outcome, Succeeded
from tests.unit.core.build import NOON, Story, plain, raw

POLICY = RetryPolicy(3, timedelta(seconds=1), timedelta(seconds=60))


def effect(**given: Any) -> Effect:
    story = Story.running()
    return story.effect_row(story.effect(**given))


def failure(*, retryable: bool = True, **given: Any) -> Failed:
    error = ErrorInfo(category="EXTERNAL", code="DOWN", message="down", retryable=retryable)
    return Failed(error, **given)


def reported(outcome: Outcome, row: Effect | None = None, jitter: float = 1.0) -> Report:
    return report(row or effect(), outcome, executor="d1", fence=7, policy=POLICY, now=NOON, jitter=jitter)


def test_a_success_keeps_its_result() -> None:
    row = effect()
    command = reported(Succeeded({"id": 5}), row).command(row, late=False)
    assert command == commands.CompleteEffect(effect_id=row.id, executor="d1", result=raw({"id": 5}), fence=7)


@pytest.mark.parametrize("result", [float("nan"), object(), "a\0b"], ids=["nan", "object", "nul"])
def test_a_success_whose_result_cannot_be_kept_is_a_success(result: object) -> None:
    row = effect()
    command = reported(Succeeded(result), row).command(row, late=False)
    assert isinstance(command, commands.CompleteEffect)
    assert "unreadable" in plain(command.result)


def test_a_failure_says_when_to_try_again() -> None:
    """§OUT-20"""
    row = effect()
    command = reported(failure(), row, jitter=0.5).command(row, late=False)
    assert isinstance(command, commands.FailEffect)
    assert command.next_retry_at == NOON + timedelta(seconds=1), "half of base times two"


@pytest.mark.parametrize(
    ("retry", "jitter", "retry_after", "seconds"),
    [
        (1, 1.0, None, 2),
        (2, 1.0, None, 4),
        (9, 1.0, None, 60),
        (1, 0.0, None, 0),
        (1, 0.5, 30, 30),
        (3, 1.0, 2, 8),
        (1, 1.0, timedelta.max.total_seconds() // 2, timedelta(days=365).total_seconds()),
    ],
)
def test_full_jitter_and_never_before_the_other_side_wants(
    retry: int, jitter: float, retry_after: float | None, seconds: float
) -> None:
    """§OUT-16, §OUT-20"""
    after = None if retry_after is None else timedelta(seconds=retry_after)
    assert retry_delay(POLICY, retry, jitter, after) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("outcome", "command"),
    [
        (failure(nothing_sent=True), commands.FailEffect),
        (failure(), commands.LoseEffect),
        (failure(retryable=False), commands.FailEffect),
    ],
    ids=["nothing was sent", "nobody knows", "refused"],
)
def test_at_most_once(outcome: Failed, command: type[commands.Command]) -> None:
    """§OUT-23, §OUT-46"""
    story = Story.running()
    effect_id = story.effect(delivery="at_most_once")
    story.do(commands.BeginEffect(effect_id=effect_id, executor="d1"))
    row = story.effect_row(effect_id)
    assert type(reported(outcome, row).command(row, late=False)) is command


@pytest.mark.parametrize("outcome", [Succeeded(1), failure()], ids=["success", "failure"])
def test_a_late_one_is_a_fact_and_no_outcome(outcome: Outcome) -> None:
    """§OUT-13"""
    row = effect()
    late = reported(outcome, row).command(row, late=True)
    assert isinstance(late, commands.ReportLateOutcome)
    assert (late.error is None) == isinstance(outcome, Succeeded)


def test_so_is_one_of_an_effect_that_has_ended() -> None:
    story = Story.running()
    row = story.effect_row(story.effect())
    told = reported(Succeeded(), row)
    story.do(commands.CancelRun(exit_reason="ENOUGH"))
    late = told.command(story.effect_row(row.id), late=False)
    assert isinstance(late, commands.ReportLateOutcome)
    assert plain(late.result) is None  # type: ignore[arg-type]


def test_that_somebody_else_was_lost_is_no_late_news() -> None:
    row = effect(delivery="at_most_once")
    lost = Report(effect_id=row.id, executor="d2", fence=2, unknown=True)
    assert lost.command(row, late=True) is None


@pytest.mark.parametrize(
    ("error", "category", "code", "retryable"),
    [
        (TimeoutError(), "TIMEOUT", "EFFECT_TIMEOUT", True),
        (ConnectionError("gone"), "APPLICATION", "ConnectionError", True),
        (TerminalError("never"), "APPLICATION", "TerminalError", False),
        (InvalidPayload("/a", "bad"), "VALIDATION", "InvalidPayload", False),
    ],
)
def test_what_an_exception_means(error: Exception, category: str, code: str, retryable: bool) -> None:
    failed = raised(error)
    assert (failed.error.category, failed.error.code, failed.retryable) == (category, code, retryable)
    assert not failed.nothing_sent
    assert failed.error.message


def test_an_exception_may_say_when_to_come_back() -> None:
    assert raised(RetryableError(retry_after=timedelta(seconds=9))).retry_after == timedelta(seconds=9)


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (Failed(ErrorInfo(category="EXTERNAL", code="DO\0WN", message="a\0b\ud800")), "DOWN", "ab?"),
        (Failed(ErrorInfo(category="NOBODYS", code="DOWN", message="")), "ValidationError", "'NOBODYS'"),  # type: ignore[arg-type]
        (Failed(ErrorInfo(category="EXTERNAL", code=5, message="")), "AttributeError", "replace"),  # type: ignore[arg-type]
        (Failed(None), "TypeError", "Failed takes an ErrorInfo"),  # type: ignore[arg-type]
        (Failed("it went wrong"), "TypeError", "'it went wrong' is none"),  # type: ignore[arg-type]
        (failure(retry_after=5), "TypeError", "say rs.seconds(5)"),
    ],
    ids=["text", "category", "code", "none", "string", "retry_after"],
)
def test_a_failure_that_is_told_badly_is_a_failure(given: Failed, code: str, message: str) -> None:
    """It could not be recorded as it is: its effect would be sent again and again, and never be counted."""
    row = effect()
    command = reported(given, row).command(row, late=False)
    assert isinstance(command, commands.FailEffect)
    assert command.error.code == code
    assert message in command.error.message
    assert raw(command.error)


def test_an_exception_that_cannot_be_shown() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "cannot be shown" in raised(Odd()).error.message
