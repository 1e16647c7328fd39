"""The doctor on a file: every check is shown a file with which just that is wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runstone.audit import doctor
from runstone.ports.clock import SystemClock
from runstone.ports.health import Problem
from runstone.stores.sqlite import SqliteStore, health
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.scene import Scene
from tests.integration.stores.sqlite.test_permissions import bound_by_permissions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store that was opened once."""

    async def build() -> None:
        await (await SqliteStore.open(tmp_path / "s.db")).close()

    asyncio.run(build())
    (tmp_path / "s.db").chmod(0o600)
    return tmp_path / "s.db"


async def examined(file: Path) -> list[Problem]:
    async with await SqliteStore.open(file) as store:
        return await doctor.examine(store, SystemClock())


def checks(problems: list[Problem]) -> set[str]:
    assert all(problem.what and problem.remedy for problem in problems)
    return {problem.check for problem in problems}


async def test_nothing_is_wrong_with_a_good_file(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "s.db") as store:
        assert await doctor.examine(store, SystemClock()) == []
    async with await SqliteStore.open(":memory:") as store:
        assert await doctor.examine(store, SystemClock()) == []


async def test_old_work_is_found(tmp_path: Path) -> None:
    """With a clock of the past, whatever is due now has been for long."""
    clock = VirtualClock()

    async def open_store(_: object) -> SqliteStore:
        return await SqliteStore.open(tmp_path / "s.db", clock=clock)

    scene = Scene(open_store, await open_store(clock), clock)
    await scene.queued()
    await scene.queued()
    await scene.claim("w1", limit=1)
    await scene.store.close()
    assert checks(await examined(tmp_path / "s.db")) == {"workers", "queue"}


async def test_a_clock_that_was_ahead(tmp_path: Path) -> None:
    clock = VirtualClock(SystemClock().now() + timedelta(days=2))

    async def open_store(_: object) -> SqliteStore:
        return await SqliteStore.open(tmp_path / "s.db", clock=clock)

    scene = Scene(open_store, await open_store(clock), clock)
    await scene.queued()
    await scene.store.close()
    assert checks(await examined(tmp_path / "s.db")) == {"clock"}


async def test_damage(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER orchestration_events_no_delete")
        connection.execute("DROP INDEX signals_by_age")
    found = await examined(file)
    assert {problem.what for problem in found} == {
        "index signals_by_age is missing",
        "trigger orchestration_events_no_delete is missing",
    }
    assert all("db migrate --sql" in problem.remedy for problem in found)


def test_a_file_that_keeps_no_log(file: Path) -> None:
    assert list(health.journal(file)) == []
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    assert checks(health.file_problems(str(file))) == {"journal"}


def test_a_log_that_grew(file: Path) -> None:
    reader = sqlite3.connect(file, isolation_level=None)
    writer = sqlite3.connect(file, isolation_level=None)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM workers").fetchall()
        for number in range(50):
            writer.execute("INSERT INTO workers VALUES (?, 0)", (f"{number}" * 500,))
        (problem,) = health.log_length(file, longest=100_000)
        assert "-wal has" in problem.what
        assert list(health.log_length(file)) == []
    finally:
        reader.close()
        writer.close()
    assert list(health.log_length(file, longest=100_000)) == []


def test_a_network_file_system(file: Path, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/home {file.parent.resolve()} nfs4 rw 0 0\n")
    (problem,) = health.network(file, mounts)
    assert "nfs4" in problem.what
    mounts.write_text(f"server:/ / nfs rw 0 0\n/dev/sda1 {file.parent.resolve()} ext4 rw 0 0\n")
    assert list(health.network(file, mounts)) == []
    assert list(health.network(file, tmp_path / "nothing")) == []


def test_files_that_everybody_may_write(file: Path) -> None:
    assert list(health.permissions(file)) == []
    file.chmod(0o666)
    (problem,) = health.permissions(file)
    assert "everybody" in problem.what
    assert str(file) in problem.remedy


def test_files_that_cannot_be_written(file: Path) -> None:
    with TemporaryDirectory() as made:  # one that anybody may enter, as the folders of tests are not
        folder = Path(made)
        folder.chmod(0o777)
        copy = Path(shutil.copy(file, folder / "s.db"))
        copy.chmod(0o444)
        with bound_by_permissions():
            (problem,) = health.permissions(copy)
        assert "cannot be read and written" in problem.what
        copy.unlink()
        folder.chmod(0o755 if os.geteuid() == 0 else 0o555)
        with bound_by_permissions():
            (problem,) = health.permissions(copy)
        assert "make files" in problem.what
        folder.chmod(0o777)


def test_a_disk_that_is_full(file: Path) -> None:
    assert list(health.free_space(file, least=0)) == []
    (problem,) = health.free_space(file, least=shutil.disk_usage(file).total + 1)
    assert "bytes left" in problem.what
