"""A clock that follows the server's (§ORD-24)."""

from __future__ import annotations

from datetime import timedelta

from runstone.stores.postgres.clock import DatabaseClock
from runstone.testing.clock import START, VirtualClock


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_it_tells_the_servers_time() -> None:
    local = VirtualClock()
    clock = DatabaseClock(local)
    assert clock.now() == START
    clock.compare(START, START + seconds(60.5), START + seconds(1))
    assert clock.offset == seconds(60)
    local.advance(5)
    assert clock.now() == START + seconds(65)


def test_what_the_way_can_explain_is_no_difference() -> None:
    clock = DatabaseClock(VirtualClock())
    clock.compare(START, START + seconds(1.9), START + seconds(2))
    assert clock.offset == seconds(0)
    clock.compare(START, START + seconds(2.1), START + seconds(2))
    assert clock.offset == seconds(1.1)


def test_it_goes_back_when_the_server_is_behind() -> None:
    clock = DatabaseClock(VirtualClock())
    clock.compare(START, START - seconds(30), START)
    assert clock.now() == START - seconds(30)
