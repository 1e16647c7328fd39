"""Cron's rules by a zone's clock: no time twice, none left out, and what is wrong is said with its place."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from runstone.errors import InvalidPayload, SettingsInvalid
from runstone.ports.calendar import check_cron, latest_due, next_due

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "after", "due"),
    [
        ("30 6 * * MON-FRI", "UTC", "2026-03-06T06:29:59", "2026-03-06T06:30"),
        ("30 6 * * MON-FRI", "UTC", "2026-03-06T06:30", "2026-03-09T06:30"),
        ("30 6 * * *", BERLIN, "2026-01-01T00:00", "2026-01-01T05:30"),
        ("30 6 * * *", BERLIN, "2026-07-01T00:00", "2026-07-01T04:30"),
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", "2026-03-29T01:00"),  # there is no half past two
        ("30 2 * * *", BERLIN, "2026-03-29T01:00", "2026-03-30T00:30"),
        ("45 2 * * *", BERLIN, "2026-10-24T12:00", "2026-10-25T00:45"),  # it comes twice, and counts once
        ("45 2 * * *", BERLIN, "2026-10-25T00:45", "2026-10-26T01:45"),
        ("45 2 * * *", BERLIN, "2026-10-25T01:10", "2026-10-26T01:45"),
        ("*/10 * * * * *", "UTC", "2026-03-06T06:29:59.5", "2026-03-06T06:30"),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", "2028-02-29T00:00"),
    ],
)
def test_the_next_time(cron: str, zone: str, after: str, due: str) -> None:
    assert next_due(cron, zone, at(after)) == at(due)


@pytest.mark.parametrize("month", ["03", "10"])
@pytest.mark.parametrize(
    "cron", ["45 2 * * *", "*/20 * * * *", "0 */6 * * *", "15 1-4 * * *", "30 2 * * SUN", "15 */5 2 * * *"]
)
def test_the_latest_time_is_one_of_those_that_follow_each_other(cron: str, month: str) -> None:
    """While the clocks are changed, too."""
    times = [at(f"2026-{month}-24T00:00")]
    while times[-1] < at(f"2026-{month}-31T00:00"):
        times.append(next_due(cron, BERLIN, times[-1]))
        assert times[-1] > times[-2]
        assert times[-1].tzinfo is UTC
    for time, following in pairwise(times[1:]):
        for late in (timedelta(0), timedelta(microseconds=1), following - time - timedelta(seconds=1)):
            assert latest_due(cron, BERLIN, times[1], time + late) == time


@pytest.mark.parametrize("now", ["2026-10-25T00:59:59", "2026-10-25T01:30", "2026-10-25T02:00:01"])
def test_each_second_of_an_hour_that_comes_twice_counts(now: str) -> None:
    for since in (timedelta(seconds=3), timedelta(hours=2), timedelta(days=300)):
        assert latest_due("* * * * * *", BERLIN, at(now) - since, at(now)) == at(now)


def test_of_what_was_missed_the_latest_counts() -> None:
    long_ago, now = at("2016-01-01T00:00"), at("2026-03-06T06:30:30")
    assert latest_due("* * * * *", "UTC", long_ago, now) == at("2026-03-06T06:30")
    assert latest_due("0 0 1 1 *", "UTC", long_ago, now) == at("2026-01-01T00:00")
    assert latest_due("0 0 1 1 *", "UTC", now, now) == now, "never one before that it was due at"


@pytest.mark.parametrize(
    ("cron", "zone", "place"),
    [
        ("* * * *", "UTC", "/cron"),
        ("* * * * * * *", "UTC", "/cron"),
        ("60 * * * *", "UTC", "/cron"),
        ("every day", "UTC", "/cron"),
        ("0 0 30 2 *", "UTC", "/cron"),
        ("* * * * *", "Mars/Olympus", "/timezone"),
        ("* * * * *", "../../etc/passwd", "/timezone"),
        ("* * * * *", "", "/timezone"),
        ("* * * * *", "a" * 300, "/timezone"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(cron: str, zone: str, place: str) -> None:
    with pytest.raises(InvalidPayload) as refused:
        check_cron(cron, zone)
    assert refused.value.pointer == place


def test_a_time_that_never_comes_is_none() -> None:
    """The calendar ends, and no year has such a day."""
    check_cron("0 0 29 2 *", BERLIN)
    with pytest.raises(InvalidPayload, match="does not come"):
        next_due("0 0 1 1 *", "UTC", datetime(9999, 6, 1, tzinfo=UTC))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(SettingsInvalid, match=r"runstone\[effects\]"):
        check_cron("* * * * *", "UTC")
