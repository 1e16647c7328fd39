"""`runstone pipeline`, started as a user starts it: without a database, killed at every place, resumed."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.servers import programs
from tests.servers.telemetry import serving

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "runstone", "pipeline"]
GAZETTE = str(ROOT / "tests/acceptance/gazette.py")
SOURCE = f"{GAZETTE}:pipeline"
ENOUGH = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user works: two sources, and nothing else."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "east.txt").write_text("the sun rises")
    (sources / "west.txt").write_text("the sun sets late")
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("RUNSTONE", "DATABASE"))
    }
    mine = {"GAZETTE_NOTES": str(folder / "notes"), "GAZETTE_SOURCES": str(folder / "sources")}
    return ours | mine | {"TERM": "xterm", "COLUMNS": "160"} | more


def call(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return programs.run_text(
        ["pipeline", *arguments], cwd=folder, env=environment(folder, **env), timeout=ENOUGH
    )


def succeed(folder: Path, *arguments: str, **env: str) -> str:
    done = call(folder, *arguments, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail(folder: Path, *arguments: str) -> str:
    done = call(folder, *arguments)
    assert done.returncode == 2, done.stdout
    return done.stderr.splitlines()[-1].removeprefix("runstone: ")


def start(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=environment(folder, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_id_of(output: str) -> str:
    found = re.search(r"^run ([0-9a-f-]{36})$", output, re.MULTILINE)
    assert found, output
    return found[1]


def artifacts(folder: Path, run_id: str) -> dict[str, bytes]:
    root = folder / "runs" / run_id / "artifacts"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def events(folder: Path, run_id: str) -> list[dict[str, object]]:
    lines = (folder / "runs" / run_id / "events.ndjson").read_text().splitlines()
    return [json.loads(line) for line in lines]


def calls(folder: Path) -> Counter[str]:
    notes = folder / "notes" / "calls"
    return Counter(notes.read_text().splitlines()) if notes.exists() else Counter()


# What the specification asks for, line by line


def test_killed_at_every_state_and_every_work_item_and_resumed(folder: Path) -> None:
    """Resuming continues from the last stable node without repeating finished work (§PIP-20 to §PIP-29)."""
    process = start(folder, "run", SOURCE)  # an interpreter of its own: sets have another order in it
    whole = run_id_of(process.communicate(timeout=ENOUGH)[0])
    wanted = artifacts(folder, whole)
    (folder / "notes" / "calls").unlink()

    killed = call(folder, "run", SOURCE, GAZETTE_DEATHS="all")
    run_id = run_id_of(killed.stdout)
    kills = 0
    while killed.returncode == -signal.SIGKILL:
        kills += 1
        assert kills < 100
        killed = call(folder, "resume", run_id, GAZETTE_DEATHS="all")
    assert killed.returncode == 0, killed.stderr
    assert killed.stdout.splitlines()[-1] == "DONE"

    deaths = (folder / "notes" / "deaths").read_text().splitlines()
    assert len(deaths) == len(set(deaths)) == kills
    named = ["clone", "draft/east", "draft/west", "facts/east", "facts/west", "fix", "link/east", "link/west"]
    items = [*named, "request", "validate"]
    assert sorted(place for place in deaths if not place.startswith("state")) == sorted(
        [f"{when} {item}" for item in items for when in ("begin", "end")]
    )
    states = {place.removeprefix("state ") for place in deaths if place.startswith("state")}
    assert len(states) == 13
    assert states.isdisjoint({"FAILED", "CANCELLED"})

    assert artifacts(folder, run_id) == wanted
    completed = Counter(
        event["event_data"]["item"]  # type: ignore[index]
        for event in events(folder, run_id)
        if event["event_type"] == "WORK_ITEM_COMPLETED"
    )
    # Each was completed once; the validation twice, for the mend changed what it reads.
    assert {item: count for item, count in completed.items() if count != 1} == {"validate": 2}
    # A function that was killed at its end had not been completed: it was called once more, and no more.
    assert {item: count for item, count in calls(folder).items() if not item.startswith("fix")} == {
        **dict.fromkeys([item for item in items if item != "fix"], 2),
        "validate": 3,
    }
    assert "byte for byte" in succeed(folder, "replay", run_id, "--check")


def test_replaying_the_log_recreates_the_snapshot_exactly(folder: Path) -> None:
    """§PIP-7, and what happens when somebody has touched it."""
    run_id = run_id_of(succeed(folder, "run", SOURCE))
    snapshot = folder / "runs" / run_id / "snapshot.json"
    stored = snapshot.read_bytes()
    assert succeed(folder, "replay", run_id) == stored.decode()
    assert "byte for byte" in succeed(folder, "replay", "--check")
    snapshot.write_bytes(stored.replace(b'"DONE"', b'"LOST"', 1))
    checked = call(folder, "replay", run_id, "--check")
    assert checked.returncode == 1
    assert re.search(r'^-.*"LOST"', checked.stdout, re.MULTILINE)
    assert re.search(r'^\+.*"DONE"', checked.stdout, re.MULTILINE)
    snapshot.unlink()
    assert call(folder, "replay", run_id, "--check").returncode == 1
    succeed(folder, "resume", run_id)
    assert snapshot.read_bytes() == stored


def test_failures_leave_a_complete_trail_and_a_final_snapshot(folder: Path) -> None:
    """§PIP-32"""
    (folder / "broken.py").write_text(
        "import runstone as rs\n"
        "pipeline = rs.Pipeline('broken')\n"
        "@pipeline.item('CREATED')\n"
        "def fall(work):\n"
        "    raise ValueError('over the edge')\n"
    )
    done = call(folder, "run", "broken.py")
    run_id = run_id_of(done.stdout)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "FAILED (fall: ValueError: over the edge)"
    assert [event["event_type"] for event in events(folder, run_id)] == [
        *("RUN_CREATED", "RUN_STARTED", "RUN_STATE_CHANGED", "WORK_ITEM_STARTED", "WORK_ITEM_FAILED"),
        *("ISSUE_OPENED", "RUN_STATE_CHANGED", "RUN_FAILED"),
    ]
    shown = json.loads((folder / "runs" / run_id / "snapshot.json").read_bytes())
    assert shown["run_state"] == "FAILED"
    assert shown["issues"][0]["severity"] == "BLOCKER"
    assert "byte for byte" in succeed(folder, "replay", run_id, "--check")
    assert "BLOCKER WorkItemFailed failed/fall" in succeed(folder, "status", run_id)


# Working


def test_touching_one_source_makes_only_what_depends_on_it(folder: Path) -> None:
    first = run_id_of(succeed(folder, "run", SOURCE))
    (folder / "notes" / "calls").unlink()
    (folder / "sources" / "west.txt").write_text("the sun sets")
    second = run_id_of(succeed(folder, "run", SOURCE, "--reuse", "last"))
    made = calls(folder)
    assert [item for item in made if item.startswith(("facts", "draft"))] == ["facts/west", "draft/west"]
    before, after = artifacts(folder, first), artifacts(folder, second)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"sources/west.txt", "facts/west.json", "drafts/west.md", "site/west.md"} & changed
    assert "drafts/west.md" in changed


def test_force_and_from_reuse_the_rest(folder: Path) -> None:
    succeed(folder, "run", SOURCE)
    (folder / "notes" / "calls").unlink()
    succeed(folder, "run", SOURCE, "--force", "draft/east")
    assert calls(folder)["draft/east"] == 1
    assert calls(folder)["draft/west"] == 0
    (folder / "notes" / "calls").unlink()
    succeed(folder, "run", SOURCE, "--from", "DRAFTING")
    assert calls(folder)["draft/east"] == calls(folder)["draft/west"] == 1
    assert calls(folder)["facts/west"] == 0


def test_parameters_are_kept_with_the_run(folder: Path) -> None:
    run_id = run_id_of(succeed(folder, "run", SOURCE, "--param", "title=Times", "--root", "elsewhere"))
    page = folder / "elsewhere" / "runs" / run_id / "artifacts" / "site" / "east.md"
    assert page.read_text() == "# Times: east\n3\n"
    assert fail(folder, "run", SOURCE, "--param", "x=y").startswith("'gazette' has no parameter 'x'")
    assert fail(folder, "run", SOURCE, "--param", "x").startswith("--param 'x' has to be NAME=VALUE")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_and_resume_goes_on(folder: Path, number: signal.Signals) -> None:
    process = start(folder, "run", f"{GAZETTE}:slow")
    wait_for_call(folder, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=ENOUGH)
    assert process.returncode == 130
    assert "resume" in errors
    run_id = run_id_of(output)
    assert json.loads(succeed(folder, "status", run_id, "--json"))["run_state"] == "WORKING"
    (folder / "notes" / "go").touch()
    assert succeed(folder, "resume", run_id).splitlines()[-1] == "DONE"
    assert calls(folder) == {"a": 2, "b": 1}


def test_a_pipeline_that_moves_with_its_runs_is_found(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The log says where it is from the folder that `runs/` is in, and nothing of what is above that."""
    shutil.copy(GAZETTE, folder / "gazette.py")
    killed = call(folder, "run", "gazette.py:pipeline", GAZETTE_DEATHS="state DRAFTING")
    run_id = run_id_of(killed.stdout)
    for log in [*folder.glob("runs/*/events.ndjson"), *folder.glob("signals/*/events.ndjson")]:
        assert str(folder) not in log.read_text()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    folder.rename(elsewhere)
    assert succeed(elsewhere.parent, "resume", run_id, "--root", "moved").splitlines()[-1] == "DONE"


def test_a_pipeline_that_moved_alone_is_asked_for(folder: Path) -> None:
    shutil.copy(GAZETTE, folder / "gazette.py")
    run_id = run_id_of(call(folder, "run", "gazette.py:pipeline", GAZETTE_DEATHS="state DRAFTING").stdout)
    (folder / "code").mkdir()
    (folder / "gazette.py").rename(folder / "code" / "gazette.py")
    said = fail(folder, "resume", run_id)
    assert said.startswith(f"There is no file {folder / 'gazette.py'}. Run {run_id} was begun with it: ")
    assert "--source" in said
    done = succeed(folder, "resume", run_id, "--source", "code/gazette.py:pipeline")
    assert done.splitlines()[-1] == "DONE"


def test_of_a_run_that_cannot_begin_no_id_is_told(folder: Path) -> None:
    succeed(folder, "run", SOURCE)
    for mistake in (("--from", "NOWHERE"), ("--force", "nothing")):
        refused = call(folder, "run", SOURCE, *mistake)
        assert (refused.returncode, refused.stdout) == (2, "")


def test_cancel(folder: Path) -> None:
    process = start(folder, "run", f"{GAZETTE}:slow")
    wait_for_call(folder, process)
    assert "is being worked on" in succeed(folder, "cancel", "last", "--reason", "too dear")
    assert "is being written to by process" in fail(folder, "resume")
    (folder / "notes" / "go").touch()
    output, _ = process.communicate(timeout=ENOUGH)
    assert (process.returncode, output.splitlines()[-1]) == (1, "CANCELLED (too dear)")
    assert calls(folder) == {"a": 1}
    assert "CANCELLED → CANCELLED" in fail(folder, "cancel", run_id_of(output))


def wait_for_call(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + ENOUGH
    while not calls(folder):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_can_be_moved_into_a_database(folder: Path) -> None:
    """With its signal, and proven there like any other."""
    run_id = run_id_of(succeed(folder, "run", SOURCE))

    def do(*arguments: str) -> str:
        done = programs.run_text(arguments, cwd=folder, env=environment(folder), timeout=ENOUGH)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "COMPLETED" in do("--store", "folder:.", "runs")
    do("--store", "folder:.", "export", run_id, "-o", "run.ndjson")
    do("--store", "copy.db", "import", "run.ndjson")
    assert "all is as it has to be" in do("--store", "copy.db", "verify", run_id)
    assert "COMMIT_RECORDED" in do("--store", "copy.db", "events", run_id)
    assert run_id in succeed(folder, "status", "--store", "folder:.")
    assert "lives in a folder" in fail(folder, "status", "--store", "copy.db")


# Looking


def test_status_draws_the_graph(folder: Path) -> None:
    run_id = run_id_of(succeed(folder, "run", SOURCE))
    shown = succeed(folder, "status", run_id[:13])
    assert shown.splitlines()[0] == f"gazette {run_id}: COMPLETED"
    assert "  ✓ FIXING         → VALIDATING; transitional; 1 of 20 attempts" in shown
    assert "  ▶ DONE" in shown
    assert "commit " + "c" * 40 + " on news" in shown
    (line,) = succeed(folder, "status").splitlines()
    assert line.split("\t")[:4] == [run_id, "gazette", "DONE", "COMPLETED"]
    (row,) = map(json.loads, succeed(folder, "status", "--json").splitlines())
    assert (row["run"], row["state"]) == (run_id, "DONE")
    everything = json.loads(succeed(folder, "status", "last", "--json"))
    assert everything == json.loads((folder / "runs" / run_id / "snapshot.json").read_bytes())


def test_why_tells_of_a_file_that_was_touched(folder: Path) -> None:
    run_id = run_id_of(succeed(folder, "run", SOURCE))
    assert "It is up to date." in succeed(folder, "why", "site/east.md")
    (folder / "runs" / run_id / "artifacts" / "facts" / "east.json").write_text("{}")
    shown = succeed(folder, "why", "site/east.md")
    assert "  touched   facts/east.json: its file is not what the log says\n" in shown
    assert "up to date" not in shown


def test_a_run_can_be_followed(folder: Path) -> None:
    process = start(folder, "run", f"{GAZETTE}:slow")
    wait_for_call(folder, process)
    follower = start(folder, "status", "last", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "WORKING 0/1\n"
    (folder / "notes" / "go").touch()
    process.communicate(timeout=ENOUGH)
    output, _ = follower.communicate(timeout=ENOUGH)
    assert follower.returncode == 0
    assert output.splitlines()[-1] == "DONE 2/2"
    assert json.loads(succeed(folder, "status", "last", "-f", "--json"))["run_state"] == "DONE"
    assert at_a_terminal(folder, "status", "last", "-f")[0] == 0
    assert "which RUN to follow" in fail(folder, "status", "-f")


def test_a_broken_run_does_not_hide_the_others(folder: Path) -> None:
    good, bad = (run_id_of(succeed(folder, "run", SOURCE)) for _ in range(2))
    log = folder / "runs" / bad / "events.ndjson"
    log.write_bytes(log.read_bytes().replace(b"RUN_STARTED", b"RUN_STURTED", 1))
    rows = {line.split("\t")[0]: line for line in succeed(folder, "status").splitlines()}
    assert "unreadable" in rows[bad]
    assert "COMPLETED" in rows[good]
    done = call(folder, "resume", bad)
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_why(folder: Path) -> None:
    run_id = run_id_of(succeed(folder, "run", SOURCE))
    told = succeed(folder, "why", "site/east.md")
    assert "by fix (work item fix#1)" in told
    assert "made from drafts/east.md" in told
    assert "needed by request.json" in told
    assert "up to date" in told
    answer = json.loads(succeed(folder, "why", "facts/east.json", "--run", run_id, "--json"))
    assert (answer["item"], answer["stale"]) == ("facts/east", False)
    assert [source["name"] for source in answer["made_from"]] == ["sources/east.txt"]
    assert fail(folder, "why", "nothing").startswith("The run has no artifact 'nothing'")


def test_why_something_is_stale(folder: Path) -> None:
    """A run that was killed right after an edit was found."""
    run_id = run_id_of(call(folder, "run", SOURCE, GAZETTE_DEATHS="begin request").stdout)
    (folder / "runs" / run_id / "artifacts" / "facts" / "east.json").write_text('{"words":99}')
    again = call(folder, "resume", run_id, GAZETTE_DEATHS="begin draft/east")
    assert again.returncode == -signal.SIGKILL
    assert "RESUME_REWIND: READY_FOR_PR → PLAN_READY" in again.stderr
    told = succeed(folder, "why", "site/east.md")
    assert "stale     site/east.md: drafts/east.md is stale" in told
    assert "stale     drafts/east.md: facts/east.json changed from" in told
    assert "by external" in succeed(folder, "why", "facts/east.json")
    succeed(folder, "resume", run_id)
    assert (folder / "runs" / run_id / "artifacts" / "site" / "east.md").read_text() == "# News: east\n99\n"


def test_the_graph_as_a_drawing(folder: Path) -> None:
    drawn = succeed(folder, "graph", SOURCE)
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    succeed(folder, "graph", SOURCE, "-o", "graph.svg")
    assert (folder / "graph.svg").read_text("utf-8") == drawn
    assert succeed(folder, "graph", SOURCE, "-o", "-") == drawn
    assert "There is no folder no for no/x.svg" in fail(folder, "graph", SOURCE, "-o", "no/x.svg")
    succeed(folder, "run", SOURCE)
    assert 'class="terminal visited here"' in succeed(folder, "graph", "--run", "last")
    assert "one of the two" in fail(folder, "graph")


def test_telemetry(folder: Path) -> None:
    with serving() as endpoint:
        run_id = run_id_of(succeed(folder, "run", SOURCE, "--telemetry", endpoint.url))
        told = succeed(folder, "told", run_id, "--telemetry", endpoint.url).splitlines()
        assert [json.loads(line)["id"] for line in told] == [event["id"] for event in events(folder, run_id)]
        (commit,) = succeed(folder, "told", "c" * 40, RUNSTONE_TELEMETRY=endpoint.url).splitlines()
        assert json.loads(commit)["run_id"] == run_id
        assert "told of no run" in fail(folder, "told", "d" * 40, "--telemetry", endpoint.url)
    assert "no telemetry endpoint" in fail(folder, "run", SOURCE, "--telemetry", "nonsense")
    down = call(folder, "run", SOURCE, "--telemetry", endpoint.url)
    assert (down.returncode, down.stdout.splitlines()[-1]) == (0, "DONE")
    assert "does not answer" in down.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "nowhere.py"], "There is no file nowhere.py"),
        (["run", "no.such.module"], "There is no module 'no.such.module'"),
        (["run", GAZETTE], "say which"),
        (["run", f"{GAZETTE}:nothing"], "has no Pipeline called 'nothing'"),
        (["run", SOURCE, "--from", "NOWHERE"], "There is no"),
        (["resume"], "There is no run yet"),
        (["status", "abc"], "There is no run whose id begins with 'abc'"),
        (["why", "x"], "There is no run yet"),
        (["cancel", "last"], "There is no run yet"),
    ],
)
def test_mistakes_are_told_in_a_line(folder: Path, arguments: list[str], problem: str) -> None:
    assert problem in fail(folder, *arguments)


def test_a_terminal_gets_colours_and_a_bar(folder: Path) -> None:
    done, output = at_a_terminal(folder, "run", SOURCE)
    assert done == 0
    assert "DONE" in output
    _, output = at_a_terminal(folder, "status", "last")
    assert "\x1b[" in output
    assert "DRAFT_READY" in output


def at_a_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=environment(folder),
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        output += piece
    os.close(ours)
    return process.wait(ENOUGH), output.decode()


def test_help_of_every_command(folder: Path) -> None:
    for command in ("run", "resume", "status", "why", "replay", "graph", "cancel", "told"):
        assert succeed(folder, command, "--help").startswith(f"Usage: runstone pipeline {command} ")
