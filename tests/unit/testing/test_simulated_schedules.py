"""Schedules in the simulator: what handlers ask for, and what comes of it as time goes by."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.engine import context
from runstone.engine.tasks import HandlerTasks
from runstone.errors import InvalidPayload
from runstone.testing import Simulator, assert_replays, virtual_time

started: list[str] = []


def build() -> rs.App:
    app = rs.App("desk", version="1")

    @app.on()
    async def ask(run: rs.Run, given: dict[str, Any]) -> Any:
        spec = {"task": "nightly", "cron": "0 0 * * *", **given}
        try:
            done = await run.effect(rs.ScheduleTask(**spec), wait=True)
        except InvalidPayload as error:
            return error.pointer
        await run.sleep(rs.days(1))
        return done["version"]

    @app.on(rs.ScheduledTask)
    async def nightly(run: rs.Run, task: rs.ScheduledTask) -> None:
        started.append(f"{task.arguments} {task.scheduled_for:%d %H:%M}")

    return app


@pytest.fixture(autouse=True)
def fresh() -> None:
    started.clear()


@virtual_time
async def test_whatever_is_due_meanwhile_is_started_in_order() -> None:
    app = build()
    async with Simulator(app) as sim:
        noon = sim.clock.now().replace(hour=12) + timedelta(days=1)
        for given in (
            {"name": "late", "cron": "30 13 * * *", "arguments": {"n": 2}},
            {"name": "early", "cron": "0 6 * * *", "arguments": {"n": 1}},
            {"name": "once", "cron": None, "run_at": noon, "arguments": {"n": 3}},
        ):
            await sim.start(app.handlers["ask"], given)
        await sim.advance(days=3)
    assert [line[: line.index("}") + 1] for line in started] == [
        *("{'n': 1}", "{'n': 3}", "{'n': 2}"),
        *("{'n': 1}", "{'n': 2}"),
        *("{'n': 1}", "{'n': 2}"),
    ]
    times = [line[line.index("}") + 2 :] for line in started]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"task": "nobody"}, "/task"),
        ({"task": "ask"}, "/arguments"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"timezone": "Mars/Olympus"}, "/timezone"),
    ],
)
@virtual_time
async def test_what_could_not_be_started_is_refused_where_it_is_asked_for(
    given: dict[str, Any], place: str
) -> None:
    """§OUT-61, §OUT-62"""
    app = build()
    async with Simulator(app) as sim:
        assert await (await sim.start(app.handlers["ask"], {"name": "x", **given})).result() == place
        assert await app.find_schedule("x") is None


def test_what_was_asked_for_once_is_not_refused_when_it_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @virtual_time
    async def live() -> None:
        app = build()
        async with Simulator(app) as sim:
            handle = await sim.start(app.handlers["ask"], {"name": "n"})
            monkeypatch.setattr(context, "check_cron", gone)
            monkeypatch.setattr(HandlerTasks, "check", gone)
            await sim.crash()
            await sim.advance(days=2)
            assert await handle.result() == 1
            sim.record(tmp_path)

    live()
    runs = 1 + len(started)
    assert assert_replays(build(), tmp_path) == runs


def gone(*_: Any) -> None:
    raise InvalidPayload("/timezone", "not any more")


@virtual_time
async def test_an_app_that_schedules_tasks_itself_knows_which_there_are() -> None:
    app = build()

    @app.executor(rs.ScheduleTask)
    async def elsewhere(spec: rs.ScheduleTask) -> None: ...

    async with Simulator(app) as sim:
        handle = await sim.start(app.handlers["ask"], {"task": "of theirs"})
        (effect,) = sim.effects
        await sim.deliver(effect, {"version": 7})
        await sim.advance(days=2)
        assert await handle.result() == 7
