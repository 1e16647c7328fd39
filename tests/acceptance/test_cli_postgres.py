"""`runstone db` on a real PostgreSQL, and the same verbs on it as on a file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from runstone.stores.sql import migrations
from tests.integration.audit import scene
from tests.servers import programs

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
    status = succeed(tmp_path, empty_postgres_url, "db", "status")
    assert "schema  version 0\n" in status
    assert f"behind  {len(NAMES)} migrations: run `runstone db migrate`\n" in status
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
