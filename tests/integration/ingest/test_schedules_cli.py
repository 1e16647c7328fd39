"""`runstone schedules` on a file: lists, one schedule, and its end; and what the doctor says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runstone.errors import CommandRefused, NotFound
from runstone.testing.conformance.scene import Scene
from runstone.testing.conformance.schedules import HOUR, due, fired, put
from tests.integration.desk import Desk


class Calendar(Desk):
    """A file with two schedules of one tenant, and one of another."""

    async def fill(self, scene: Scene) -> None:
        now = scene.clock.now()
        await put(scene, now, name="hourly", arguments={"text": "x" * 3000})
        commit, case = fired(scene, (await due(scene))[0], now + HOUR)
        await scene.store.commit(commit)
        self.run_id = case.run.stream_id
        await put(scene, now, name="on\x1b[31mce", cron=None, task="tidy")
        await put(scene.for_tenant(scene.new_id()), now)


@pytest.fixture
def desk(tmp_path: Path) -> Calendar:
    return Calendar(tmp_path / "desk.db")


def test_schedules_are_listed_by_name(desk: Calendar) -> None:
    first, second = (line.split("\t") for line in desk.lines("schedules", "list"))
    assert first == ["hourly", "nightly", "ACTIVE", "2024-03-01T00:59:59Z", "1", desk.run_id]
    assert second[1:3] == ["tidy", "ACTIVE"]
    assert "\x1b" not in second[0]
    for narrowed in (("--task", "tidy"), ("--limit", "1"), ("--after", "hourly")):
        assert len(desk.lines("schedules", "list", *narrowed)) == 1
    assert desk.lines("schedules", "list", "--status", "DONE") == []
    rows = [json.loads(line) for line in desk.lines("schedules", "list", "--json")]
    assert [row["arguments"] for row in rows] == [{"text": "x" * 3000}, None]


def test_a_schedule_is_shown(desk: Calendar) -> None:
    said = desk.lines("schedules", "show", "hourly")
    assert said[0] == "hourly, version 1: nightly by '0 * * * *' in UTC"
    assert said[1] == "ACTIVE, next 2024-03-01T00:59:59Z, fired 1 time"
    assert said[2].endswith(f"as run {desk.run_id}")
    assert json.loads("\n".join(said[4:])) == {"text": "x" * 3000}
    (once, *_) = desk.lines("schedules", "show", "on\x1b[31mce")
    assert once == "on\\x1b[31mce, version 1: tidy once, at 2024-02-29T23:59:59Z"
    (whole,) = desk.lines("schedules", "show", "hourly", "--json")
    assert json.loads(whole)["last_run_id"] == desk.run_id
    assert isinstance(desk.call("schedules", "show", "nothing").exception, NotFound)


def test_a_schedule_is_cancelled_once(desk: Calendar) -> None:
    assert desk.lines("schedules", "cancel", "hourly", "--reason", "moved") == ["hourly is cancelled"]
    assert desk.lines("schedules", "show", "hourly")[1] == "CANCELLED, next never, fired 1 time"
    assert isinstance(desk.call("schedules", "cancel", "hourly").exception, CommandRefused)
    assert isinstance(desk.call("schedules", "cancel", "nothing").exception, NotFound)


def test_the_doctor_names_what_nobody_fires(desk: Calendar) -> None:
    said = desk.call("doctor").output
    assert "1 schedule of task 'tidy' due, not fired" in said
    assert "2 schedules of task 'nightly' due, not fired" in said
