"""Retries and durations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstone.engine.policy import ONCE, Retry, days, hours, minutes, seconds, spoken
from runstone.errors import RetryableError, TerminalError


def test_durations() -> None:
    assert [seconds(1.5), minutes(2), hours(3), days(4)] == [
        timedelta(milliseconds=1500),
        timedelta(seconds=120),
        timedelta(minutes=180),
        timedelta(hours=96),
    ]


@pytest.mark.parametrize(
    ("duration", "said"),
    [
        (seconds(0.5), "0.5 s"),
        (seconds(0), "0 s"),
        (seconds(0.0005), "0.0005 s"),
        (seconds(-60), "-60 s"),
        (seconds(90), "90 s"),
        (seconds(1_000_001), "1000001 s"),
        (minutes(1), "1 min"),
        (hours(36), "36 h"),
        (days(1), "1 day"),
        (days(30), "30 days"),
    ],
)
def test_durations_are_said_in_their_largest_whole_unit(duration: timedelta, said: str) -> None:
    assert spoken(duration) == said


def test_nothing_is_retried_unless_asked_for() -> None:
    assert ONCE.max_attempts == 1


@pytest.mark.parametrize(
    ("retry", "error", "wanted"),
    [
        (Retry(), ValueError(), True),
        (Retry(), TimeoutError(), True),
        (Retry(), TerminalError(), False),
        (Retry(on=[KeyError]), ValueError(), False),
        (Retry(on=[LookupError]), KeyError(), True),
        (Retry(never=[KeyError]), KeyError(), False),
        (Retry(on=[KeyError]), RetryableError(), True),
        (Retry(never=[RetryableError]), RetryableError(), True),
        (Retry(), KeyboardInterrupt(), False),
    ],
)
def test_what_is_retried(retry: Retry, error: BaseException, wanted: bool) -> None:
    assert retry.wants(error) is wanted


@pytest.mark.parametrize(
    ("attempt", "most"), [(1, 1.0), (2, 3.0), (3, 9.0), (4, 10.0), (5, 10.0), (10_000, 10.0)]
)
def test_backoff_grows_up_to_its_bound(attempt: int, most: float) -> None:
    retry = Retry(initial=seconds(1), factor=3, longest=seconds(10))
    assert retry.delay(attempt, 1.0, ValueError()) == seconds(most)
    assert retry.delay(attempt, 0.5, ValueError()) == seconds(most / 2)
    assert retry.delay(attempt, 0.0, ValueError()) == seconds(0)


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1e6), st.floats(0.1, 100))
def test_no_delay_is_below_nothing_or_above_the_longest(
    attempt: int, jitter: float, initial: float, factor: float
) -> None:
    retry = Retry(initial=seconds(initial), factor=factor, longest=minutes(1))
    assert timedelta(0) <= retry.delay(attempt, jitter, ValueError()) <= minutes(1)


def test_an_error_may_know_better() -> None:
    retry = Retry(initial=seconds(1), longest=seconds(2))
    assert retry.delay(1, 0.0, RetryableError(retry_after=hours(1))) == hours(1)
    assert retry.delay(1, 1.0, RetryableError()) == seconds(1)
    assert retry.delay(1, 1.0, RetryableError(retry_after=seconds(-1))) == seconds(0)
    assert days(36500) == retry.delay(1, 1.0, RetryableError(retry_after=timedelta.max))
