"""The doctor's checks of the work in a store: each says what is wrong and what to do, or is quiet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runstone.audit import doctor
from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import StoreCorrupt, StoreReadOnly
from runstone.ports.clock import SystemClock
from runstone.ports.health import Backlog, DueRuns, LostWorker, Problem, Stuck, Unfired, Vitals
from runstone.testing.memory import MemoryStore
from runstone.testing.memory_data import MemoryData

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


def test_runs_that_nobody_takes() -> None:
    """By handler and version: that is what a worker for them has to have."""
    lag = doctor.QUEUE_LAG
    due = DueRuns(handler="bill", version="2", count=2, since=NOW - lag, example="r-1")
    assert doctor.check_work(vitals(due_runs=(due,))) == []
    late = DueRuns(handler="ship", version="1", count=2, since=NOW - lag - SECOND, example="r-2")
    problem = only(doctor.check_work(vitals(due_runs=(due, late))))
    assert problem.check == "queue"
    assert problem.what == "2 runs of 'ship' (version 1) due, not taken, for 0:01:01 or less: r-2"
    alone = DueRuns(handler="ship", version="", count=1, since=NOW - lag - SECOND, example="r-2")
    both = doctor.check_work(vitals(due_runs=(alone, late)))
    assert [one.what.partition(" due")[0] for one in both] == [
        "1 run of 'ship' (no version)",
        "2 runs of 'ship' (version 1)",
    ]


def test_effects_that_nobody_sends() -> None:
    lag = doctor.OUTBOX_LAG
    due = Backlog(count=2, since=NOW - lag, example="x-1")
    assert doctor.check_work(vitals(due_effects=due)) == []
    late = Backlog(count=2, since=NOW - lag - SECOND, example="x-1")
    problem = only(doctor.check_work(vitals(due_effects=late)))
    assert problem.check == "outbox"
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
    dead = only(doctor.check_work(vitals(dead_letters={DEFAULT_TENANT: 3})))
    assert dead.what == "3 effects could not be sent, and wait for a person"
    assert "`runstone outbox list --status DEAD_LETTER`" in dead.remedy
    unknown = only(doctor.check_work(vitals(unknown_effects={DEFAULT_TENANT: 2})))
    assert unknown.what == "Of 2 effects nobody knows whether they were sent"
    assert "`runstone outbox list --status UNKNOWN`" in unknown.remedy


def test_what_belongs_to_another_tenant_is_shown_with_its_id() -> None:
    """The verbs show the default tenant unless told otherwise: nothing would be there to see."""
    late = NOW - timedelta(hours=1)
    of: dict[str, Any] = {"count": 1, "example": "x-1", "tenant_id": "t-2"}
    found = doctor.check_work(
        vitals(
            dead_letters={"t-2": 1},
            unknown_effects={"t-2": 1},
            due_effects=Backlog(since=late, **of),
            paused=(Stuck(reason="QUARANTINED", **of),),
            unfired=(Unfired(task="nightly", since=late, **of),),
        )
    )
    assert len(found) == 5
    assert all("of tenant t-2" in problem.what for problem in found)
    assert all(" --tenant t-2" in problem.remedy for problem in found)
    queue = only(
        doctor.check_work(vitals(due_runs=(DueRuns(handler="ship", version="1", since=late, **of),)))
    )
    assert queue.what.endswith("x-1 of tenant t-2")


def test_few_of_many_tenants_are_named() -> None:
    """Those that have most, and one of the others."""
    found = doctor.check_work(vitals(dead_letters={f"t-{number}": number for number in range(1, 9)}))
    assert [problem.what.partition(" could")[0] for problem in found] == [
        *(f"{number} effects of tenant t-{number}" for number in (8, 7, 6, 5, 4)),
        "6 effects of tenants such as t-3",
    ]
    assert "--tenant t-3" in found[-1].remedy


@pytest.mark.parametrize("reason", ["NON_DETERMINISTIC", "QUARANTINED"])
def test_runs_that_nobody_paused(reason: str) -> None:
    paused = (Stuck(reason=reason, count=2, example="r-1"), Stuck(reason="OPERATOR", count=9, example="r-2"))
    problem = only(doctor.check_work(vitals(paused=paused)))
    assert problem.what == f"2 runs paused as {reason}, such as r-1"
    assert "`runstone control resume r-1`" in problem.remedy


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


def test_what_is_in_the_way_is_no_damage() -> None:
    """A backup would be restored for a grant that is missing."""
    denied = doctor.in_the_way(StoreReadOnly("permission denied for table runs"))
    assert denied.what == "permission denied for table runs"
    assert "backup" not in denied.remedy
    assert "backup" in doctor.in_the_way(StoreCorrupt("page 7 is torn")).remedy


async def test_one_look_that_fails_does_not_keep_it_from_the_others() -> None:
    class Store(MemoryStore):
        async def vitals(self) -> Vitals:
            raise StoreReadOnly("permission denied for table effects")

        async def symptoms(self) -> list[Problem]:
            return [Problem(check="guards", what="a grant is missing", remedy="GRANT it")]

        async def self_check(self) -> list[str]:
            return ["a grant is missing", "page 7 is torn"]

    clock = SystemClock()
    found = await doctor.examine(Store(MemoryData(), clock=clock), clock)
    assert [problem.what for problem in found] == [
        "permission denied for table effects",
        "a grant is missing",
        "page 7 is torn",
    ]
    assert found[1].remedy == "GRANT it"


def test_damage_is_told_as_it_is() -> None:
    problem = only(doctor.damage(["page 7 is never used"]))
    assert (problem.check, problem.what) == ("store", "page 7 is never used")
