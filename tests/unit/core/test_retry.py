"""How often and when to try again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstone.core.retry import DEFAULT_RETRIES, EFFECT_RETRIES, RetryPolicy, effect_retries


@pytest.mark.parametrize(
    ("effect_type", "retries", "base_ms"),
    [
        ("SEND_EMAIL", 3, 2000),
        ("API_CALL", 5, 1000),
        ("SOR_UPDATE", 1, 5000),
        ("NOTIFY_USER", 3, 1000),
        ("A_USERS_OWN", 3, 1000),
    ],
)
def test_the_defaults_by_type(effect_type: str, retries: int, base_ms: int) -> None:
    """§OUT-21"""
    policy = effect_retries(effect_type)
    assert (policy.max_retries, policy.base) == (retries, timedelta(milliseconds=base_ms))


def test_nothing_else_differs_from_the_default() -> None:
    assert set(EFFECT_RETRIES) == {"SEND_EMAIL", "API_CALL", "SOR_UPDATE"}
    assert effect_retries("anything") is DEFAULT_RETRIES


@pytest.mark.parametrize(("retry", "seconds"), [(1, 4), (2, 8), (3, 16)])
def test_the_bound_doubles_with_each_retry(retry: int, seconds: int) -> None:
    """§OUT-20: base × 2^n."""
    policy = RetryPolicy(base=timedelta(seconds=2))
    assert policy.delay(retry, 1.0) == timedelta(seconds=seconds)
    assert policy.delay(retry, 0.25) == timedelta(seconds=seconds) / 4
    assert policy.delay(retry, 0.0) == timedelta(0)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_no_delay_is_over_the_cap(retry: int, jitter: float) -> None:
    policy = RetryPolicy(cap=timedelta(minutes=2))
    assert timedelta(0) <= policy.delay(retry, jitter) <= timedelta(minutes=2)
    assert policy.delay(10_000, 1.0) == timedelta(minutes=2)


@pytest.mark.parametrize("base", [timedelta(days=1), timedelta.max])
def test_a_bound_beyond_all_time_is_the_cap(base: timedelta) -> None:
    assert RetryPolicy(base=base, cap=timedelta(hours=1)).delay(30, 1.0) == timedelta(hours=1)


def test_no_base_is_no_delay() -> None:
    assert RetryPolicy(base=timedelta(0)).delay(30, 1.0) == timedelta(0)
