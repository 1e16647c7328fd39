"""Handlers as what can be scheduled: which there are, what fits, and the run each is started as."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import runstone as rs
from runstone.core import codec
from runstone.core.commands import CreateRun
from runstone.engine.tasks import HandlerTasks
from runstone.errors import InvalidPayload

app = rs.App("desk", version="3")


class Report(msgspec.Struct):
    day: str
    pages: int = 1


@app.on(key=lambda report: report.day, concurrency=2)
async def report(run: rs.Run, what: Report) -> None: ...


@app.on(key=lambda what: what["thread"], concurrency=1)
async def threaded(run: rs.Run, what: dict[str, Any]) -> None: ...


@app.on(approval=True)
async def sweep(run: rs.Run) -> None: ...


@app.on()
async def maybe(run: rs.Run, what: dict[str, Any] | None = None) -> None: ...


@app.on(rs.ScheduledTask, key=lambda task: task.task, concurrency=1)
async def timed(run: rs.Run, task: rs.ScheduledTask) -> None: ...


TASKS = HandlerTasks(app.handlers, app.version)
SIGNAL = codec.canonical({"schedule_id": "s", "task": "timed", "scheduled_for": "2026-03-01T12:00:00Z"})


def test_their_names() -> None:
    assert list(TASKS.names) == ["maybe", "report", "sweep", "threaded", "timed"]


@pytest.mark.parametrize(
    ("task", "arguments", "place", "said"),
    [
        ("report", {"day": "mon"}, None, ""),
        ("report", {"day": 1}, "/arguments", "report cannot be started with"),
        ("report", None, "/arguments", "report cannot be started with None"),
        ("sweep", None, None, ""),
        ("sweep", {}, "/arguments", "sweep takes no value"),
        ("maybe", None, None, ""),
        ("maybe", {"a": 1}, None, ""),
        ("timed", {"anything": 1}, None, ""),
        ("threaded", {"thread": 1}, None, ""),
        ("threaded", {}, "/arguments", "the key of threaded cannot be told from them: KeyError"),
        ("nobody", None, "/task", "those of this app: maybe, report, sweep, threaded, timed"),
    ],
)
def test_what_cannot_be_started_is_refused_with_its_place(
    task: str, arguments: Any, place: str | None, said: str
) -> None:
    """§OUT-62"""
    asked = rs.ScheduleTask(task=task, cron="0 * * * *", arguments=arguments)
    if place is None:
        TASKS.check(asked)
        return
    with pytest.raises(InvalidPayload, match=said) as refused:
        TASKS.check(asked)
    assert refused.value.pointer == place


def test_the_run_is_the_one_that_app_start_would_create() -> None:
    created = TASKS.create("report", SIGNAL, codec.canonical({"day": "mon"}))
    assert created == CreateRun(
        plan_id="report",
        orchestrator_version="3",
        run_type="SCHEDULED_TASK",
        lane="report/mon",
        lane_limit=2,
    )
    assert TASKS.create("sweep", SIGNAL, codec.NULL).approval_required


def test_who_is_on_schedules_has_the_whole_signal() -> None:
    assert TASKS.create("timed", SIGNAL, codec.NULL).lane == "timed/timed"


def test_what_no_longer_fits_has_a_run_that_fails() -> None:
    """§OUT-65; nobody knows whose turn it is, so such runs take turns with each other."""
    for task, arguments in (("report", {"day": 1}), ("threaded", {"no": "thread"})):
        created = TASKS.create(task, SIGNAL, codec.canonical(arguments))
        assert (created.plan_id, created.lane) == (task, f"{task}/{task}")
