"""The circuit: a host that only fails is left alone, and tried again one call at a time (§OUT-40)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runstone.outbox import circuit
from runstone.outbox.circuit import Circuits

NOW = datetime(2026, 3, 1, tzinfo=UTC)
REST = timedelta(seconds=10)


def circuits(failures: int = 3) -> Circuits:
    return Circuits(jitter=lambda: 1.0, failures=failures, rest=REST, longest=timedelta(seconds=30))


def opened() -> Circuits:
    known = circuits()
    for _ in range(3):
        known.failed("host", NOW)
    return known


def test_it_opens_after_some_failures_in_a_row() -> None:
    known = circuits()
    for _ in range(2):
        known.failed("host", NOW)
        assert known.admit("host", NOW) is None
    known.failed("host", NOW)
    assert known.admit("host", NOW) == NOW + REST
    assert known.admit("other", NOW) is None, "each host has its own"
    assert known.open_hosts == ["host"]


def test_a_success_in_between_starts_the_count_again() -> None:
    known = circuits()
    for _ in range(5):
        known.failed("host", NOW)
        known.failed("host", NOW)
        known.succeeded("host")
    assert known.admit("host", NOW) is None


def test_one_probe_goes_through_when_its_rest_is_over() -> None:
    known = opened()
    later = NOW + REST
    assert known.admit("host", later) is None
    assert known.admit("host", later) == later + REST, "the others wait for the probe"
    known.succeeded("host")
    assert known.admit("host", later) is None
    assert known.open_hosts == []


def test_a_failed_probe_opens_it_for_longer_up_to_a_bound() -> None:
    known = opened()
    now = NOW
    rests = []
    for _ in range(4):
        now = known.admit("host", now) or now
        assert known.admit("host", now) is None
        known.failed("host", now)
        until = known.admit("host", now)
        assert until is not None
        rests.append((until - now).total_seconds())
    assert rests == [20, 30, 30, 30]


def test_a_probe_that_says_nothing_lets_another_go() -> None:
    known = opened()
    later = NOW + REST
    assert known.admit("host", later) is None
    known.gave_up("host")
    known.gave_up("nobody")
    assert known.admit("host", later) is None


def test_what_was_under_way_when_it_opened_changes_nothing() -> None:
    known = opened()
    known.failed("host", NOW + timedelta(seconds=5))
    assert known.admit("host", NOW) == NOW + REST


def test_rests_have_jitter() -> None:
    known = Circuits(jitter=lambda: 0.0, failures=1, rest=REST)
    known.failed("host", NOW)
    assert known.admit("host", NOW) == NOW + REST / 2


def test_hosts_are_forgotten_when_there_are_too_many() -> None:
    known = circuits(1)
    for number in range(circuit.HOSTS_KEPT + 1):
        known.failed(f"host{number}", NOW)
    assert known.admit("host0", NOW) is None
    assert known.admit("host1", NOW) is not None
