"""`runstone db retain` and `runstone doctor` as a user starts them, killed and at the same time too."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from runstone.stores.sql import migrations
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.retention import ended
from runstone.testing.conformance.scene import Scene
from tests.integration.audit import scene as audit_scene
from tests.servers import programs

PROGRAM: Final = [sys.executable, "-m", "runstone"]
ENOUGH: Final = 120.0


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of long ago that have ended, of two tenants, and others that have not."""
    path = tmp_path_factory.mktemp("retention") / "pristine.db"
    asyncio.run(audit_scene.build(path))
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    shutil.copy(pristine, tmp_path / "runstone.db")
    (tmp_path / "runstone.db").chmod(0o600)
    return tmp_path


def environment() -> dict[str, str]:
    ours = ("RUNSTONE_", "DATABASE_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return programs.run_text(arguments, cwd=folder, env=environment(), timeout=ENOUGH)


def succeed(folder: Path, *arguments: str) -> str:
    done = call(folder, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def fail(folder: Path, *arguments: str) -> str:
    done = call(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def ended_run(folder: Path) -> str:
    (line,) = succeed(folder, "runs", "--status", "completed").splitlines()
    return line.split("\t")[0]


def bundles(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.ndjson"))


def test_a_dry_run_counts(folder: Path) -> None:
    told = succeed(folder, "db", "retain", "--dry-run")
    assert told.startswith("Would archive and remove 2 correlations (4 streams, 48 events).\n")
    assert "1 correlation " in succeed(folder, "db", "retain", "--dry-run", "--tenant", "default")
    assert "1 correlation " in succeed(folder, "db", "retain", "--dry-run", "--limit", "1")
    assert "0 correlations " in succeed(folder, "db", "retain", "--dry-run", "--older-than", "99999d")
    assert bundles(folder) == []
    assert len(succeed(folder, "runs").splitlines()) == 4


def test_old_runs_go_to_the_archive_and_come_back(folder: Path) -> None:
    run = ended_run(folder)
    before = succeed(folder, "export", run)
    assert "name a folder with --archive" in fail(folder, "db", "retain")
    told = succeed(folder, "db", "retain", "--archive", "old")
    assert told == "Archived and removed 2 correlations, 48 events, in old.\n"
    assert len(bundles(folder / "old")) == 2
    assert succeed(folder, "db", "retain", "--archive", "old") == "Nothing was archived.\n"
    assert "4 tombstones: all is as it has to be" in succeed(folder, "verify", "--archive", "old")
    assert "2 tombstones: all is as it has to be" in succeed(folder, "verify", run)

    for verb in ("trace", "export", "events"):
        said = fail(folder, verb, run)
        assert f"Run {run} was archived on " in said
        assert ".ndjson" in said
    (bundle,) = (path for path in bundles(folder) if path.read_text() == before)
    assert "Imported" in succeed(folder, "import", str(bundle))
    assert succeed(folder, "export", run) == before
    assert "2 tombstones: all is as it has to be" in succeed(folder, "verify", "--all", "--archive", "old")


def test_the_settings_say_how_long_and_where(folder: Path) -> None:
    (folder / "runstone.toml").write_text('[retention]\nolder_than = "99999d"\narchive = "old"\n')
    assert succeed(folder, "db", "retain") == "Nothing was archived.\n"
    assert "2 correlations" in succeed(folder, "db", "retain", "--older-than", "90d")
    assert len(bundles(folder / "old")) == 2
    assert "'soon' is no time" in fail(folder, "db", "retain", "--older-than", "soon")


def test_a_lost_bundle_is_found(folder: Path) -> None:
    succeed(folder, "db", "retain", "--archive", "old")
    bundles(folder)[0].unlink()
    done = call(folder, "verify", "--archive", "old")
    assert done.returncode == 1
    assert "archive at the bundle" in done.stdout


def test_what_cannot_be_archived_is_told(folder: Path) -> None:
    run = ended_run(folder)
    with closing(sqlite3.connect(folder / "runstone.db", isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER orchestration_events_no_update")
        connection.execute("UPDATE orchestration_events SET actor = 'eve' WHERE stream_id = ?", (run,))
    done = call(folder, "db", "retain", "--archive", "old")
    assert done.returncode == 1
    assert "was left as it is. It cannot be archived, see `runstone verify`" in done.stdout
    assert "Archived and removed 1 correlation, " in done.stdout


DYING: Final = """
import os, signal, sys
import {module} as module
from runstone.cli.main import main

holder = getattr(module, "{holder}") if "{holder}" else module
step = getattr(holder, "{name}")
def die(*arguments, **named):
    if "{when}" == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    outcome = step(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
    return outcome
setattr(holder, "{name}", die)
main(["db", "retain", "--archive", "old"])
"""
"""The program, killed with no chance to clean up before or after a step of its own."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("module", "holder", "name"),
    [
        ("os", "", "fsync"),
        ("os", "", "replace"),
        ("runstone.audit.archive", "Archive", "read"),
        ("runstone.stores.sqlite.retention", "", "forget"),
    ],
)
def test_killed_anywhere_it_can_be_started_again(
    folder: Path, module: str, holder: str, name: str, when: str
) -> None:
    script = DYING.format(module=module, holder=holder, name=name, when=when)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "all is as it has to be" in succeed(folder, "verify", "--all", "--archive", "old")
    assert len(succeed(folder, "runs").splitlines()) == 4, "nothing was removed in part"
    assert "2 correlations" in succeed(folder, "db", "retain", "--archive", "old")
    assert "4 tombstones: all is as it has to be" in succeed(folder, "verify", "--archive", "old")
    assert len(bundles(folder)) == 2


def test_two_at_once_do_no_harm(tmp_path: Path) -> None:
    async def build() -> None:
        clock = VirtualClock()
        store = await SqliteStore.open(tmp_path / "runstone.db", clock=clock)

        async def open_store(_: object) -> SqliteStore:
            return store

        scene = Scene(open_store, store, clock)
        for _ in range(40):
            await ended(scene)
        await store.close()

    asyncio.run(build())
    command = [*PROGRAM, "db", "retain", "--archive", "old"]
    both = [
        subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=ENOUGH)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(bundles(tmp_path)) == 40
    assert "80 tombstones: all is as it has to be" in succeed(tmp_path, "verify", "--all", "--archive", "old")


# The doctor


def test_the_doctor_names_what_is_wrong(folder: Path) -> None:
    """There are runs of long ago that nobody took."""
    done = call(folder, "doctor")
    assert done.returncode == 1
    assert "outbox: 1 effects due, not sent" in done.stdout
    assert done.stdout.endswith(f"with {folder / 'runstone.db'}.\n")
    told = json.loads(call(folder, "doctor", "--json").stdout)
    assert told["ok"] is False
    assert {"queue", "outbox"} <= {problem["check"] for problem in told["problems"]}
    assert all(problem["remedy"] for problem in told["problems"])


def test_the_doctor_finds_nothing_wrong_with_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "runstone.toml").write_text('store = "new.db"\n')
    assert "There is no store" in fail(tmp_path, "doctor")
    succeed(tmp_path, "db", "migrate")
    assert succeed(tmp_path, "doctor") == f"Nothing is wrong with {tmp_path / 'new.db'}.\n"
    assert json.loads(succeed(tmp_path, "doctor", "--json"))["problems"] == []


def test_the_doctor_changes_nothing(folder: Path) -> None:
    """A file that is behind, or keeps no log, would be mended by whoever opens it."""
    file = folder / "runstone.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA user_version = 2")
        connection.execute("DELETE FROM migrations WHERE version > 2")
    before = file.read_bytes()
    done = call(folder, "doctor")
    assert done.returncode == 1
    assert "journal: " in done.stdout
    behind = len(migrations("sqlite")) - 2
    assert f"schema: The schema is {behind} migrations behind" in done.stdout
    assert file.read_bytes() == before


def test_the_doctor_on_a_file_of_another_program(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "runstone.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE theirs (id)")
    done = call(tmp_path, "doctor")
    assert done.returncode == 1
    assert "is a SQLite file of another program" in done.stdout


def test_the_doctor_on_a_server(tmp_path: Path, empty_postgres_url: str) -> None:
    def on_server(*arguments: str) -> subprocess.CompletedProcess[str]:
        return call(tmp_path, *arguments, "--store", empty_postgres_url)

    behind = on_server("doctor")
    assert behind.returncode == 1
    assert "migrations behind\n  Run `runstone db migrate`" in behind.stdout
    assert on_server("db", "migrate").returncode == 0
    well = on_server("doctor")
    assert (well.returncode, well.stdout.startswith("Nothing is wrong with postgresql://")) == (0, True)
    gone = call(tmp_path, "doctor", "--store", "postgresql://127.0.0.1:1/nothing")
    assert gone.returncode == 1
    assert "server: " in gone.stdout
    assert gone.stdout.endswith("1 problem with postgresql://127.0.0.1:1/nothing.\n")
