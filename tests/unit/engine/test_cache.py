"""The cache of tool results."""

from __future__ import annotations

from msgspec import Raw

from runstone.engine.cache import ResultCache
from runstone.engine.policy import minutes, seconds
from runstone.testing.clock import VirtualClock

ARGUMENTS = Raw(b'{"a":1}')


def test_results_hold_as_long_as_they_were_said_to() -> None:
    clock = VirtualClock()
    cache = ResultCache(clock)
    assert cache.find("t", "tool", ARGUMENTS) is None
    cache.keep("t", "tool", ARGUMENTS, Raw(b"1"), minutes(5))
    clock.advance(minutes(5) - seconds(0.001))
    assert cache.find("t", "tool", ARGUMENTS) == Raw(b"1")
    clock.advance(seconds(0.001))
    assert cache.find("t", "tool", ARGUMENTS) is None


def test_tenants_tools_and_arguments_are_kept_apart() -> None:
    cache = ResultCache(VirtualClock())
    cache.keep("t", "tool", ARGUMENTS, Raw(b"1"), minutes(5))
    assert cache.find("other", "tool", ARGUMENTS) is None
    assert cache.find("t", "other", ARGUMENTS) is None
    assert cache.find("t", "tool", Raw(b'{"a":2}')) is None


def test_what_was_not_asked_for_the_longest_goes_first() -> None:
    cache = ResultCache(VirtualClock(), most=2)
    cache.keep("t", "one", ARGUMENTS, Raw(b"1"), minutes(5))
    cache.keep("t", "two", ARGUMENTS, Raw(b"2"), minutes(5))
    assert cache.find("t", "one", ARGUMENTS) == Raw(b"1")
    cache.keep("t", "three", ARGUMENTS, Raw(b"3"), minutes(5))
    assert [cache.find("t", name, ARGUMENTS) is not None for name in ("one", "two", "three")] == [
        True,
        False,
        True,
    ]
