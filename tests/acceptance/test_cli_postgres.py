"""`runstone db` on a real PostgreSQL, and the same verbs on it as on a file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runstone.stores.sql import migrations
from tests.integration.audit import scene
from tests.servers import programs
from tests.servers.fixtures import Logins
from tests.servers.postgres import Server

PROGRAM = [sys.executable, "-m", "runstone"]
ENOUGH = 60.0
NAMES = [migration.name for migration in migrations("postgres")]


def call(folder: Path, url: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "RUNSTONE_STORE"}
    return programs.run_text(arguments, cwd=folder, env=kept | {"DATABASE_URL": url} | more, timeout=ENOUGH)


def succeed(folder: Path, url: str, *arguments: str) -> str:
    done = call(folder, url, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_database_is_migrated_once(tmp_path: Path, empty_postgres_url: str) -> None:
    would = [f"would run {name}" for name in NAMES]
    assert succeed(tmp_path, empty_postgres_url, "db", "migrate", "--dry-run").splitlines() == would
    status = call(tmp_path, empty_postgres_url, "db", "status")
    assert (status.returncode, status.stderr) == (1, ""), "something was found"
    assert "schema  version 0\n" in status.stdout
    assert f"behind  {len(NAMES)} migrations: run `runstone db migrate`\n" in status.stdout
    done = call(tmp_path, empty_postgres_url, "runs")
    assert done.returncode == 2
    assert "run `runstone db migrate`" in done.stderr

    ran = [f"ran {name}" for name in NAMES]
    assert succeed(tmp_path, empty_postgres_url, "db", "migrate").splitlines() == ran
    assert succeed(tmp_path, empty_postgres_url, "db", "migrate") == "The schema is up to date.\n"
    told = dict(
        line.split(maxsplit=1) for line in succeed(tmp_path, empty_postgres_url, "db", "status").splitlines()
    )
    assert told["store"].startswith("postgresql://127.0.0.1:")
    assert told["server"].startswith("PostgreSQL ")
    assert told["schema"] == f"version {len(NAMES)}"
    assert (told["origin"], told["events"], told["runs"]) == ("DATABASE_URL", "0", "0")
    assert list(tmp_path.iterdir()) == []


def test_the_sql_can_be_read_without_a_database(tmp_path: Path) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    told = succeed(tmp_path, nowhere, "db", "migrate", "--sql", "--from", "0")
    for migration in migrations("postgres"):
        assert migration.script in told
        assert migration.checksum in told
    later = succeed(tmp_path, nowhere, "db", "migrate", "--sql", "--from", "2")
    assert "CREATE TABLE runstone.runs" not in later
    assert migrations("postgres")[2].script in later
    assert call(tmp_path, nowhere, "db", "migrate", "--from", "2").returncode == 2


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    for arguments in (["db", "migrate"], ["db", "status"], ["runs"]):
        done = call(tmp_path, "postgresql://ada:secret@127.0.0.1:1/nowhere", *arguments)
        assert done.returncode == 2
        assert "127.0.0.1:1/nowhere" in done.stderr
        assert "secret" not in done.stderr
        assert "Traceback" not in done.stderr


VERBS = (
    ("runs",),
    ("verify", "--all"),
    ("doctor",),
    ("events", "tail"),
    ("outbox", "requeue", "--all"),
    ("db", "retain", "--archive", "archive"),
    ("db", "rebuild", "--all"),
    ("worker", f"{Path(__file__).with_name('stuck.py')}:app"),
)


@pytest.mark.parametrize("role", ["runstone_migrator", "runstone_api"])
def test_nobody_is_told_that_all_is_well_who_may_not_see_it(
    role: str, tmp_path: Path, postgres_url: str, postgres_logins: Logins
) -> None:
    """§TEN-28: row-level security would show an empty store."""
    url, name = postgres_logins.url(postgres_url, f"IN ROLE {role}"), postgres_logins.name(f"IN ROLE {role}")
    said = f'{name} is no member of runstone_engine and would see nothing: GRANT runstone_engine TO "{name}"'
    for verb in VERBS:
        done = call(tmp_path, url, *verb, STUCK_GATE=str(tmp_path / "gate"))
        if verb == ("doctor",):  # to say so is what it is for
            assert (done.returncode, done.stderr) == (1, "")
            assert said in done.stdout
        else:
            assert (done.returncode, done.stdout) == (2, ""), verb
            assert said in done.stderr
    status = succeed(tmp_path, url, "db", "status")
    assert f"schema  version {len(NAMES)}\n" in status
    assert f"events  not counted: {said}" in status
    assert succeed(tmp_path, url, "db", "migrate", "--dry-run") == "The schema is up to date.\n"
    if role == "runstone_migrator":
        assert succeed(tmp_path, url, "db", "migrate") == "The schema is up to date.\n"


def test_who_may_not_migrate_is_told_how_far_it_went(tmp_path: Path, postgres: Server) -> None:
    """Whoever lacks a right only for a later migration has run those before it."""
    name = f"runstone_limited_{os.getpid()}"
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    try:
        postgres.execute(f"CREATE DATABASE {name} OWNER {name}")
        done = call(tmp_path, postgres.url(name, user=f"{name}:{name}"), "db", "migrate")
        assert (done.returncode, done.stdout) == (2, "ran 0001_tables\nran 0002_guards\n")
        assert f"PostgreSQL does not let {name} migrate" in done.stderr
    finally:
        postgres.drop(name)
        postgres.execute(f"DROP ROLE {name}")


def test_a_database_that_cannot_hold_every_text_is_not_migrated(tmp_path: Path, postgres: Server) -> None:
    name = f"runstone_latin_{os.getpid()}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        for arguments in ((), ("--dry-run",)):
            done = call(tmp_path, postgres.url(name), "db", "migrate", *arguments)
            assert (done.returncode, done.stdout) == (2, "")
            assert "has the encoding LATIN1: create the database with UTF8" in done.stderr
    finally:
        postgres.drop(name)


@pytest.mark.parametrize("password", ["se/cret", "se#cret", "se?cret", "se@cret", "17/cret"])
def test_a_password_that_ends_too_early_is_not_shown(password: str, tmp_path: Path) -> None:
    for arguments in (["db", "migrate"], ["db", "status"], ["runs"]):
        done = call(tmp_path, f"postgresql://ada:{password}@127.0.0.1:1/nowhere", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "percent-encode / # ? @ : in the password" in done.stderr
        assert not any(part in done.stderr for part in ("cret", "Traceback"))


def test_the_first_host_may_be_dead(tmp_path: Path, postgres_url: str) -> None:
    url = postgres_url.replace("@", "@127.0.0.1:1,", 1)
    status = succeed(tmp_path, url, "db", "status")
    assert status.startswith("store   postgresql://127.0.0.1:1,127.0.0.1:")
    assert "events  0\n" in status


def test_without_a_driver_one_is_told_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "asyncpg").mkdir(parents=True)
    (hidden / "asyncpg" / "__init__.py").write_text("raise ModuleNotFoundError(name='asyncpg')\n", "utf-8")
    environment = os.environ | {"DATABASE_URL": "postgresql://127.0.0.1:1/db", "PYTHONPATH": str(hidden)}
    for arguments in (["db", "migrate"], ["db", "status"], ["runs"]):
        done = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=ENOUGH,
            check=False,
        )
        assert done.returncode == 2
        assert "pip install 'runstone[postgres]'" in done.stderr


def test_a_file_can_be_migrated_too(tmp_path: Path) -> None:
    path = f"sqlite:///{tmp_path}/here.db"
    names = [migration.name for migration in migrations("sqlite")]
    assert succeed(tmp_path, path, "db", "migrate", "--dry-run").splitlines() == [
        f"would run {n}" for n in names
    ]
    assert not (tmp_path / "here.db").exists()
    assert migrations("sqlite")[0].script in succeed(tmp_path, path, "db", "migrate", "--sql")
    assert succeed(tmp_path, path, "db", "migrate").splitlines() == [f"ran {name}" for name in names]
    assert succeed(tmp_path, path, "db", "migrate") == "The schema is up to date.\n"
    assert succeed(tmp_path, path, "db", "migrate", "--dry-run") == "The schema is up to date.\n"
    assert "events  0\n" in succeed(tmp_path, path, "db", "status")


def test_a_run_moves_from_a_file_to_a_database(tmp_path: Path, postgres_url: str) -> None:
    asyncio.run(scene.build(tmp_path / "runstone.db"))
    file = f"sqlite:///{tmp_path}/runstone.db"
    run = succeed(tmp_path, file, "runs", "--status", "completed").split("\t")[0]
    succeed(tmp_path, file, "export", run, "--output", "run.ndjson")

    succeed(tmp_path, postgres_url, "import", "run.ndjson")
    assert succeed(tmp_path, postgres_url, "runs").split("\t")[0] == run
    verified = succeed(tmp_path, postgres_url, "verify")
    assert verified.endswith("all is as it has to be.\n")
    succeed(tmp_path, postgres_url, "export", run, "--output", "again.ndjson")
    assert (tmp_path / "again.ndjson").read_bytes() == (tmp_path / "run.ndjson").read_bytes()
    assert succeed(tmp_path, postgres_url, "db", "rebuild", "--all").startswith("Rebuilt ")
    assert succeed(tmp_path, postgres_url, "verify") == verified
