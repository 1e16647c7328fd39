"""`runstone schedules` on a file: lists, one schedule, and its end; and what the doctor says of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runstone.cli.main import NAME, cli
from runstone.errors import CommandRefused, NotFound
from runstone.stores.sqlite import SqliteStore
from runstone.testing.conformance.scene import Scene
from runstone.testing.conformance.schedules import HOUR, due, fired, put


class Desk:
    """A file with two schedules of one tenant, and one of another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tenant_id = ""
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        async def open_store(clock: Any) -> Any:
            return await SqliteStore.open(self.path, clock=clock)

        scene = Scene(open_store, None)  # type: ignore[arg-type]
        scene.store = await open_store(scene.clock)
        self.tenant_id = scene.tenant_id
        now = scene.clock.now()
        await put(scene, now, name="hourly", arguments={"text": "x" * 3000})
        commit, case = fired(scene, (await due(scene))[0], now + HOUR)
        await scene.store.commit(commit)
        self.run_id = case.run.stream_id
        await put(scene, now, name="on\x1b[31mce", cron=None, task="tidy")
        await put(scene.for_tenant(scene.new_id()), now)
        await scene.store.close()

    def call(self, *arguments: str) -> Result:
        given = ["schedules", *arguments, "--store", str(self.path), "--tenant", self.tenant_id]
        return CliRunner().invoke(cli, given, prog_name=NAME)

    def lines(self, *arguments: str) -> list[str]:
        done = self.call(*arguments)
        assert done.exit_code == 0, done.output
        return done.output.splitlines()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk.db")


def test_schedules_are_listed_by_name(desk: Desk) -> None:
    first, second = (line.split("\t") for line in desk.lines("list"))
    assert first == ["hourly", "nightly", "ACTIVE", "2024-03-01T00:59:59Z", "1", desk.run_id]
    assert second[1:3] == ["tidy", "ACTIVE"]
    assert "\x1b" not in second[0]
    for narrowed in (("--task", "tidy"), ("--limit", "1"), ("--after", "hourly")):
        assert len(desk.lines("list", *narrowed)) == 1
    assert desk.lines("list", "--status", "DONE") == []
    rows = [json.loads(line) for line in desk.lines("list", "--json")]
    assert [row["arguments"] for row in rows] == [{"text": "x" * 3000}, None]


def test_a_schedule_is_shown(desk: Desk) -> None:
    said = desk.lines("show", "hourly")
    assert said[0] == "hourly, version 1: nightly by '0 * * * *' in UTC"
    assert said[1] == "ACTIVE, next 2024-03-01T00:59:59Z, fired 1 time"
    assert said[2].endswith(f"as run {desk.run_id}")
    assert json.loads("\n".join(said[4:])) == {"text": "x" * 3000}
    assert "once, at 2024-02-29T23:59:59Z" in desk.lines("show", "on\x1b[31mce")[0]
    (whole,) = desk.lines("show", "hourly", "--json")
    assert json.loads(whole)["last_run_id"] == desk.run_id
    assert isinstance(desk.call("show", "nothing").exception, NotFound)


def test_a_schedule_is_cancelled_once(desk: Desk) -> None:
    assert desk.lines("cancel", "hourly", "--reason", "moved") == ["hourly is cancelled"]
    assert desk.lines("show", "hourly")[1] == "CANCELLED, next never, fired 1 time"
    assert isinstance(desk.call("cancel", "hourly").exception, CommandRefused)
    assert isinstance(desk.call("cancel", "nothing").exception, NotFound)


def test_the_doctor_names_what_nobody_fires(desk: Desk) -> None:
    said = CliRunner().invoke(cli, ["doctor", "--store", str(desk.path)], prog_name=NAME).output
    assert "1 schedule of task 'tidy' due, not fired" in said
    assert "2 schedules of task 'nightly' due, not fired" in said
