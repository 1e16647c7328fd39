"""The program on a folder of runs: it lists, shows, proves and carries them, and says what it cannot do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.integration.stores.folder.scene import RUN, log_file, usual
from tests.servers import programs

SHOP = Path(__file__).with_name("shop.py")


def runstone(folder: Path, *arguments: object, code: int = 0) -> str:
    done = programs.run_text([str(one) for one in arguments], cwd=folder, env=os.environ, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(usual(tmp_path / "work"))
    return tmp_path


def test_what_can_be_asked_of_a_folder(folder: Path) -> None:
    assert RUN in runstone(folder, "--store", "folder:work", "runs")
    assert "ARTIFACT_WRITTEN" in runstone(folder, "--store", "work", "events", RUN[:18])
    assert "RUN_CREATED" in runstone(folder, "--store", "work", "trace", RUN)
    assert "17 events: all is as it has to be" in runstone(folder, "--store", "work", "verify", "--all")
    log_file(folder / "work").write_bytes(log_file(folder / "work").read_bytes() + b"garbage\n")
    said = runstone(folder, "--store", "work", "verify", RUN, code=1)
    assert said.count("line 15") == 1


def test_runs_go_from_a_folder_to_a_file_and_back(folder: Path) -> None:
    runstone(folder, "--store", "work", "export", RUN, "-o", "run.ndjson")
    assert "Imported" in runstone(folder, "--store", "store.db", "import", "run.ndjson")
    runstone(folder, "--store", "store.db", "verify", "--all")
    runstone(folder, "--store", "store.db", "export", RUN, "-o", "again.ndjson")
    assert "Imported" in runstone(folder, "--store", "folder:other", "import", "again.ndjson")
    assert "Already there" in runstone(folder, "--store", "other", "import", "run.ndjson")
    for name in ("events.ndjson", "snapshot.json"):
        one, two = (folder / root / "runs" / RUN / name for root in ("work", "other"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("verb", [("worker", f"{SHOP}:app"), ("db", "rebuild", "--all"), ("db", "status")])
def test_what_needs_a_queue_says_what_to_use(verb: tuple[str, ...], folder: Path) -> None:
    said = runstone(folder, *verb, "--store", "folder:work", code=2)
    assert "is a folder of runs" in said
    assert "name a SQLite file or a PostgreSQL database" in said


def test_a_folder_that_is_not_there_is_not_made_by_a_question(folder: Path) -> None:
    assert "There is no store at" in runstone(folder, "--store", "folder:nowhere", "runs", code=2)
    assert not (folder / "nowhere").exists()


def test_a_folder_without_runs_is_told_of(folder: Path) -> None:
    """It may be a store that is still empty, so it is no error; most often it is a slip of the pen."""
    (folder / "any").mkdir()
    said = runstone(folder, "--store", "any", "runs")
    assert said == f"There is no `runs/` in {folder}/any: see --store and RUNSTONE_STORE.\n"
    (folder / "any" / "runstone.db").touch()
    assert f"do you mean {folder}/any/runstone.db?" in runstone(folder, "--store", "any", "verify", "--all")
    (folder / "any" / "runs").mkdir()
    assert runstone(folder, "--store", "any", "runs") == ""
