"""The real program, started as a user starts it: what it says, where, and the code it exits with."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from runstone import __version__
from runstone.core.commands import CancelRun
from runstone.core.commit import Context
from runstone.core.contract import CONTRACT_VERSION
from runstone.core.run import Run
from runstone.ports.cases import carry_out
from runstone.ports.clock import SystemClock, new_id
from runstone.stores.sqlite import SqliteStore
from tests.integration.audit import scene
from tests.integration.audit.columns import Behind
from tests.servers import programs

PROGRAM = [sys.executable, "-m", "runstone"]
ENOUGH = 60.0
"""Seconds after which a program hangs."""

VERBS = ["completion", "db", "events", "export", "import", "runs", "trace", "verify"]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "pristine.db"
    asyncio.run(scene.build(path))
    return path


@pytest.fixture(scope="session")
def runs(pristine: Path) -> dict[str, Run]:
    """The runs of the store, one of each status."""

    async def read() -> dict[str, Run]:
        async with await SqliteStore.open(pristine, inline=True) as store:
            return {run.status: run for run in await store.list_runs(scene.TENANT)}

    return asyncio.run(read())


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A folder with a store in it, where the program finds it by default."""
    shutil.copy(pristine, tmp_path / "runstone.db")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    ours = {
        name: value for name, value in os.environ.items() if name not in ("RUNSTONE_STORE", "DATABASE_URL")
    }
    return ours | {"TERM": "xterm", "COLUMNS": "200"} | more


def call(
    folder: Path, *arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return programs.run(
        arguments, cwd=folder, env=environment(**env or {}), input=stdin or b"", timeout=ENOUGH
    )


def succeed(folder: Path, *arguments: str, stdin: bytes | None = None) -> str:
    done = call(folder, *arguments, stdin=stdin)
    assert done.stderr == b""
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


def fail(
    folder: Path, *arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
) -> str:
    """What the program says in the one line it has for an error."""
    done = call(folder, *arguments, stdin=stdin, env=env)
    assert done.returncode == 2, done.stdout
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("runstone: ")
    return line.removeprefix("runstone: ")


# The program itself


def test_versions_of_package_and_contract(folder: Path) -> None:
    wanted = f"runstone {__version__} (contract {CONTRACT_VERSION})\n"
    assert succeed(folder, "--version") == wanted
    script = Path(sys.executable).with_name("runstone")
    assert subprocess.run([script, "--version"], capture_output=True, check=True, text=True).stdout == wanted


def test_help_names_every_verb(folder: Path) -> None:
    told = succeed(folder, "--help")
    assert [verb for verb in VERBS if f"\n  {verb} " not in told] == []
    assert succeed(folder) == told
    assert succeed(folder, "db", "rebuild", "-h").startswith("Usage: runstone db rebuild [OPTIONS] [RUN]\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'. See `runstone --help`."),
        (["events"], "Missing argument 'RUN'. See `runstone events --help`."),
        (["verify", "x", "--all"], "Name a run or say --all, not both. See `runstone verify --help`."),
        (["db", "rebuild"], "Name a run, or say --all. See `runstone db rebuild --help`."),
        (["runs", "--tenant", "me"], "'me' is neither the id of a tenant nor 'default'."),
        (["events", "nobody"], "There is no run with the id or key 'nobody': see `runstone runs`"),
        (["events", "01234"], "'01234' is too short to find a run by: give 6 characters of its id or more"),
        (["events", "0123456"], "There is no run whose id begins with '0123456'"),
        (["events", "018df7"], "Several runs begin with '018df7': 018df7"),
        (["import", "nowhere.ndjson"], "No such file or directory: 'nowhere.ndjson'"),
        (["export", "x", "-o", "no/x.ndjson"], "There is no folder no for no/x.ndjson: make it first."),
        (["export", "x", "-o", ".", "--force"], ". is a folder: name a file in it."),
        (
            ["runs", "--store", "mysql://ada:secret@host/db"],
            "is no store: give a path, sqlite:",
        ),
        (["runs", "--store", "postgres://ada:secret@127.0.0.1:1/db"], "Check that the server runs"),
        (["--store", "none.db", "runs"], "There is no store at"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(arguments: list[str], said: str, folder: Path) -> None:
    assert said in fail(folder, *arguments)


@pytest.mark.parametrize("verb", [["verify"], ["events", "x"], ["db", "rebuild", "--all"]])
def test_a_store_that_is_not_there_is_not_made(verb: list[str], tmp_path: Path) -> None:
    said = fail(tmp_path, *verb)
    assert said.startswith(f"There is no store at {tmp_path}/runstone.db (from the default): ")
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_came_from(folder: Path) -> None:
    for arguments in (["--debug", "events", "nobody"], ["events", "nobody", "--debug"]):
        done = call(folder, *arguments)
        assert done.returncode == 2, "as without it: 1 is for something that was found"
        assert done.stderr.startswith(b"Traceback")
        assert b"NotFound" in done.stderr
        assert done.stderr.splitlines()[-1].startswith(
            b"runstone: There is no run with the id or key 'nobody'"
        )


def test_the_store_is_found_through_the_environment_and_the_file(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    told = call(elsewhere, "db", "status", env={"RUNSTONE_STORE": str(folder / "runstone.db")})
    assert f"store   {folder}/runstone.db\norigin  RUNSTONE_STORE\n" in told.stdout.decode()
    (elsewhere / "runstone.toml").write_text('store = "../runstone.db"')
    assert f"origin  {elsewhere}/runstone.toml\n" in succeed(elsewhere, "db", "status")


# verify and db


def test_a_clean_store_is_verified(folder: Path, runs: dict[str, Run]) -> None:
    assert (
        succeed(folder, "verify")
        == f"Verified {scene.CORRELATIONS} correlations, {scene.STREAMS} streams, {scene.EVENTS} events: "
        "all is as it has to be.\n"
    )
    one = succeed(folder, "verify", scene.KEY)
    assert one.startswith("Verified 1 correlation, 4 streams, ")
    assert succeed(folder, "verify", runs["FAILED"].id) == one
    told = json.loads(succeed(folder, "verify", "--all", "--json", "--tenant", scene.OTHER_TENANT))
    assert told == {
        "correlations": 1,
        "streams": 2,
        "events": 24,
        "archived": 0,
        "ok": True,
        "findings": [],
    }


def test_damage_is_shown_with_both_values_and_repaired(folder: Path, runs: dict[str, Run]) -> None:
    child = runs["FAILED"].id
    with Behind(folder / "runstone.db") as connection:
        connection.execute("UPDATE runs SET status = 'COMPLETED' WHERE id = ?", (child,))
    for arguments in (["verify"], ["verify", child]):
        done = call(folder, *arguments)
        assert done.returncode == 1
        assert done.stderr == b""
        assert done.stdout.decode().startswith(
            f"rows at runs {child}, column status of stream {child}\n"
            '  expected "FAILED"\n'
            '  found    "COMPLETED"\n'
            "Verified "
        )
    finding = json.loads(call(folder, "verify", "--json").stdout)["findings"][0]
    assert (finding["stream_id"], finding["found"]) == (child, '"COMPLETED"')
    assert succeed(folder, "db", "rebuild", child).startswith("Rebuilt 4 streams, ")
    assert "all is as it has to be" in succeed(folder, "verify")


def test_a_damaged_log_is_not_rebuilt(folder: Path, runs: dict[str, Run]) -> None:
    child = runs["FAILED"].id
    with Behind(folder / "runstone.db") as connection:
        connection.execute("UPDATE orchestration_events SET actor = 'x' WHERE stream_id = ?", (child,))
    done = call(folder, "db", "rebuild", "--all")
    assert done.returncode == 1
    assert f"Stream {child} was not rebuilt. Its log is damaged".encode() in done.stdout
    assert f"Rebuilt {scene.STREAMS - 1} streams".encode() in done.stdout


def test_a_file_that_is_no_store_is_damage_to_verify_and_an_error_to_others(folder: Path) -> None:
    (folder / "runstone.db").write_bytes(b"\xff" * 5000)
    done = call(folder, "verify")
    assert done.returncode == 1
    assert b"file is not a database" in done.stdout
    assert "file is not a database" in fail(folder, "runs")


def test_status_tells_what_is_in_the_store(folder: Path) -> None:
    told = dict(line.split(maxsplit=1) for line in succeed(folder, "db", "status").splitlines())
    assert told["store"] == str(folder / "runstone.db")
    assert told["origin"] == "the default"
    assert re.fullmatch(r"version \d+", told["schema"])
    assert told["events"] == str(scene.EVENTS)
    assert told["runs"] == "5 (2 COMPLETED, 1 FAILED, 1 PENDING, 1 RUNNING)"
    assert told["tenants"] == f"2 (default: 4 runs; {scene.OTHER_TENANT}: 1 run)"
    assert "tenants" not in succeed(folder, "db", "status", "--tenant", scene.OTHER_TENANT)


# runs, events, trace


def test_runs_are_listed_and_filtered(folder: Path, runs: dict[str, Run]) -> None:
    rows = [line.split("\t") for line in succeed(folder, "runs").splitlines()]
    assert [row[1] for row in rows] == ["PENDING", "FAILED", "RUNNING", "COMPLETED"]
    assert rows[1][:3] == [runs["FAILED"].id, "FAILED", "child"]
    assert rows[2][3] == scene.KEY
    assert succeed(folder, "runs", "--status", "failed", "--handler", "child").count("\n") == 1
    assert succeed(folder, "runs", "--status", "FAILED", "--handler", "handler") == ""
    shown = call(folder, "runs", "--json", "--limit", "1")
    assert json.loads(shown.stdout)["status"] == "PENDING"
    assert b"more than these 1" in shown.stderr


def test_events_are_shown_in_order(folder: Path, runs: dict[str, Run]) -> None:
    by_key = succeed(folder, "events", scene.KEY)
    rows = [line.split("\t") for line in by_key.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0][2] == "RUN_CREATED"
    child = runs["FAILED"].id
    events = [json.loads(line) for line in succeed(folder, "events", child[:-4], "--json").splitlines()]
    assert [event["event_type"] for event in events] == ["RUN_CREATED", "RUN_STARTED", "RUN_FAILED"]
    assert {event["stream_id"] for event in events} == {child}


def test_a_correlation_is_drawn_by_its_id_or_a_run(folder: Path, runs: dict[str, Run]) -> None:
    drawn = succeed(folder, "trace", runs["FAILED"].correlation_id)
    assert drawn == succeed(folder, "trace", scene.KEY)
    lines = drawn.splitlines()
    assert [line.partition("  ")[0] for line in lines[:4]] == ["signal", "run", "signal 2", "run 2"]
    assert lines[4].startswith("● SIGNAL_RECEIVED  signal #1")
    assert any(re.fullmatch(r"[│ ├─]*● RUN_FAILED  run 2 #3 .*", line) for line in lines)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            yield process, process.stdout, process.stderr
        finally:
            process.kill()


def test_a_follower_ends_with_the_run(folder: Path) -> None:
    async def cancel() -> None:
        async with await SqliteStore.open(folder / "runstone.db") as store:
            run = await store.find_run(scene.TENANT, scene.KEY)
            assert run is not None
            context = Context(now=SystemClock().now(), new_id=new_id, actor="test")
            await carry_out(store, scene.TENANT, run.id, CancelRun(exit_reason="enough"), context=context)

    with started(folder, "events", "-f", scene.KEY) as (process, stdout, _):
        assert b"RUN_CREATED" in stdout.readline()
        asyncio.run(cancel())
        rest, errors = process.communicate(timeout=ENOUGH)
    assert process.returncode == 0
    assert errors == b""
    assert rest.splitlines()[-1].split(b"\t")[2] == b"RUN_CANCELLED"


def test_a_follower_ends_at_once_where_the_run_has_ended(folder: Path, runs: dict[str, Run]) -> None:
    assert succeed(folder, "events", "--follow", runs["FAILED"].id).count("\n") == 3


def test_a_follower_ends_cleanly_when_interrupted(folder: Path) -> None:
    with started(folder, "events", "-f", scene.KEY) as (process, stdout, _):
        stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=ENOUGH)
    assert process.returncode == 0
    assert errors == b""


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    for arguments in (["events", scene.KEY], ["export", scene.KEY], ["trace", scene.KEY]):
        gone, stdout = os.pipe()
        os.close(gone)  # before it can say all that it has to say
        try:
            done = subprocess.run(
                [*PROGRAM, *arguments],
                cwd=folder,
                env=environment(),
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=ENOUGH,
                check=False,
            )
        finally:
            os.close(stdout)
        assert (done.returncode, done.stderr) == (141, b"")


# export and import


def test_a_run_is_carried_from_store_to_store(folder: Path, runs: dict[str, Run]) -> None:
    run_id = runs["COMPLETED"].id
    shown = succeed(folder, "export", run_id)
    assert succeed(folder, "export", run_id, "-o", "run.ndjson") == ""
    assert (folder / "run.ndjson").read_text() == shown
    imported = succeed(folder, "import", "run.ndjson", "--store", "new.db")
    assert re.fullmatch(r"Imported correlation [0-9a-f-]+, 1 run, 24 events \(run\.ndjson\)\n", imported)
    assert succeed(folder, "import", "--store", "new.db", "-", stdin=shown.encode()).startswith(
        "Already there: "
    )
    assert succeed(folder, "export", run_id, "--store", "new.db") == shown
    assert "24 events: all is as it has to be" in succeed(folder, "verify", "--store", "new.db")


def test_an_export_never_replaces_a_file_by_accident(folder: Path) -> None:
    (folder / "run.ndjson").write_text("precious")
    assert "run.ndjson exists" in fail(folder, "export", scene.KEY, "-o", "run.ndjson")
    assert (folder / "run.ndjson").read_text() == "precious"
    succeed(folder, "export", scene.KEY, "-o", "run.ndjson", "--force")
    assert (folder / "run.ndjson").read_text().startswith('{"contract_version"')
    assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []


def test_an_export_goes_to_what_is_no_file(folder: Path) -> None:
    bundle = succeed(folder, "export", scene.KEY)
    assert succeed(folder, "export", scene.KEY, "-o", "/dev/stdout") == bundle
    assert succeed(folder, "export", scene.KEY, "-o", "-") == bundle
    assert not (folder / "-").exists()


def test_an_unfinished_run_is_imported_only_when_told(folder: Path) -> None:
    bundle = succeed(folder, "export", scene.KEY).encode()
    said = fail(folder, "import", "-", "--store", "new.db", stdin=bundle)
    assert "--unfinished" in said
    succeed(folder, "import", "-", "--store", "new.db", "--unfinished", stdin=bundle)
    assert "RUNNING" in succeed(folder, "runs", "--store", "new.db")


def test_a_changed_bundle_writes_nothing(folder: Path) -> None:
    bundle = succeed(folder, "export", scene.KEY).encode()
    (folder / "good.ndjson").write_bytes(bundle)
    (folder / "bad.ndjson").write_bytes(bundle.replace(b'"actor":"engine"', b'"actor":"Engine"', 1))
    said = fail(folder, "import", "--unfinished", "good.ndjson", "bad.ndjson", "--store", "new.db")
    assert said.startswith("bad.ndjson: The bundle is not as it was written")
    (folder / "bad.ndjson").write_bytes(bundle[:-9])
    said = fail(folder, "import", "--unfinished", "good.ndjson", "bad.ndjson", "--store", "new.db")
    assert said.startswith(f"bad.ndjson: The bundle seems to be cut off in line {bundle.count(10)}, ")
    assert not (folder / "new.db").exists()
    said = fail(folder, "import", "good.ndjson", "--tenant", scene.OTHER_TENANT, "--store", "new.db")
    assert "belongs to tenant" in said


# Shells and terminals


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, folder: Path) -> None:
    script = succeed(folder, "completion", shell)
    assert f"_RUNSTONE_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script.encode(), check=True, timeout=ENOUGH)


def test_verbs_and_options_are_completed(folder: Path) -> None:
    def complete(words: str) -> list[str]:
        place = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = call(folder, env={"_RUNSTONE_COMPLETE": "bash_complete", **place})
        return done.stdout.decode().split()

    assert complete("runstone ev") == ["plain,events"]
    assert complete("runstone ex") == ["plain,export"]
    assert "plain,--follow" in complete("runstone events --f")


def at_terminal(folder: Path, *arguments: str) -> str:
    """What a person sees."""
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=folder,
            env=environment(),
            stdin=follower,
            stdout=follower,
            stderr=follower,
        )
        os.close(follower)
        shown = b""
        while chunk := _read(leader):
            shown += chunk
        assert process.wait(ENOUGH) == 0
    finally:
        os.close(leader)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_a_person_sees_tables_and_a_bar(folder: Path) -> None:
    listed = at_terminal(folder, "runs")
    assert re.search(r"run +status +handler +key ", listed)
    assert "\t" not in listed
    shown = at_terminal(folder, "events", scene.KEY)
    assert "RUN_CREATED" in shown
    assert "actor" in shown
    assert "verifying" in at_terminal(folder, "verify")
    assert "verifying" not in succeed(folder, "verify")
