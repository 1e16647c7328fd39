"""The doctor's checks of the work in a store: each says what is wrong and what to do, or is quiet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runstone.audit import doctor
from runstone.ports.health import Backlog, LostWorker, Problem, Stuck, Unfired, Vitals

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def vitals(**found: object) -> Vitals:
    return Vitals(**({"now": NOW, "latest": None} | found))  # type: ignore[arg-type]


def only(problems: list[Problem]) -> Problem:
    (problem,) = problems
    assert problem.remedy
    return problem


def test_a_store_in_which_all_is_well() -> None:
    assert doctor.check_work(vitals()) == []
    assert list(doctor.check_clock(vitals(latest=NOW), NOW, NOW)) == []
    assert doctor.damage([]) == []


def test_workers_that_are_gone() -> None:
    lost = (
        LostWorker(worker_id="host:7", lease_until=NOW - SECOND, runs=3),
        LostWorker(worker_id="host:8", lease_until=None, runs=1),
    )
    first, second = doctor.check_work(vitals(lost_workers=lost))
    assert "host:7 ended at 2030-01-01 11:59:59, and it still owns 3 runs" in first.what
    assert "host:8 is gone, and it still owns 1 run" in second.what


@pytest.mark.parametrize(
    ("name", "check", "lag"),
    [("due_runs", "queue", doctor.QUEUE_LAG), ("due_effects", "outbox", doctor.OUTBOX_LAG)],
)
def test_work_that_nobody_takes(name: str, check: str, lag: timedelta) -> None:
    due = Backlog(count=2, since=NOW - lag, example="x-1")
    assert doctor.check_work(vitals(**{name: due})) == []
    late = Backlog(count=2, since=NOW - lag - SECOND, example="x-1")
    problem = only(doctor.check_work(vitals(**{name: late})))
    assert problem.check == check
    assert "x-1" in problem.what
    assert str(lag + SECOND) in problem.what


def test_schedules_that_nobody_fires() -> None:
    due = Unfired(task="nightly", count=1, since=NOW - doctor.SCHEDULE_LAG, example="report")
    assert doctor.check_work(vitals(unfired=(due,))) == []
    late = Unfired(task="weekly", count=3, since=NOW - doctor.SCHEDULE_LAG - SECOND, example="sums")
    problem = only(doctor.check_work(vitals(unfired=(due, late))))
    assert problem.check == "schedules"
    assert "3 schedules of task 'weekly' due, not fired, for 0:01:01 or less: sums" in problem.what


def test_effects_that_wait_for_a_person() -> None:
    assert "3 effects" in only(doctor.check_work(vitals(dead_letters=3))).what
    assert "2 effects" in only(doctor.check_work(vitals(unknown_effects=2))).what


@pytest.mark.parametrize("reason", ["NON_DETERMINISTIC", "QUARANTINED"])
def test_runs_that_nobody_paused(reason: str) -> None:
    paused = (Stuck(reason=reason, count=2, example="r-1"), Stuck(reason="OPERATOR", count=9, example="r-2"))
    problem = only(doctor.check_work(vitals(paused=paused)))
    assert problem.what == f"2 runs paused as {reason}, such as r-1"
    assert "resume" in problem.remedy


@pytest.mark.parametrize("off", [timedelta(seconds=60), timedelta(seconds=-60)])
def test_clocks_that_disagree(off: timedelta) -> None:
    problem = only(list(doctor.check_clock(vitals(now=NOW + off), NOW, NOW + SECOND)))
    assert problem.check == "clock"
    assert "s apart" in problem.what


def test_a_slow_answer_is_no_clock_that_is_off() -> None:
    assert list(doctor.check_clock(vitals(now=NOW), NOW - timedelta(minutes=1), NOW + SECOND)) == []


def test_an_event_from_the_future() -> None:
    problem = only(list(doctor.check_clock(vitals(latest=NOW + timedelta(hours=1)), NOW, NOW)))
    assert "2030-01-01 13:00:00, in the future" in problem.what


def test_damage_is_told_as_it_is() -> None:
    problem = only(doctor.damage(["page 7 is never used"]))
    assert (problem.check, problem.what) == ("store", "page 7 is never used")
