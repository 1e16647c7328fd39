"""A program that was forked is like one that was started: what tests learn of the one holds for the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import programs

ENOUGH = 60.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RUNSTONE")}


@pytest.mark.parametrize(
    ("arguments", "given", "code"),
    [
        (["--version"], b"", 0),
        (["runs", "--store", "nowhere.db"], b"", 2),
        (["import", "-", "--store", "new.db"], b"no bundle", 2),
        (["--debug", "runs", "--store", "nowhere.db"], b"", 2),
    ],
    ids=["well", "badly", "reads", "raises"],
)
def test_it_says_and_does_the_same(arguments: list[str], given: bytes, code: int, tmp_path: Path) -> None:
    started = subprocess.run(
        [sys.executable, "-m", "runstone", *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        input=given,
        capture_output=True,
        timeout=ENOUGH,
        check=False,
    )
    forked = programs.run(arguments, cwd=tmp_path, env=ENVIRONMENT, input=given, timeout=ENOUGH)
    assert started.returncode == forked.returncode == code
    assert forked.stdout == started.stdout
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_it_has_the_environment_that_it_was_given(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"RUNSTONE_STORE": str(tmp_path / "of the environment.db")}
    told = programs.run(["runs"], cwd=tmp_path, env=environment, timeout=ENOUGH).stderr.decode()
    assert "of the environment.db" in told
    assert "RUNSTONE_STORE" not in os.environ
    told = programs.run(["runs"], cwd=tmp_path, env=ENVIRONMENT, timeout=ENOUGH).stderr.decode()
    assert str(tmp_path / "runstone.db") in told


def test_it_can_be_killed_and_waited_for(tmp_path: Path) -> None:
    leaves, tells = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        program = programs.Program(
            ["import", "-", "--store", "new.db"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdin=leaves,
            stdout=log,
            stderr=log,
        )
    os.close(leaves)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.05)
        assert program.poll() is None
        assert Path(f"/proc/{program.pid}").exists()
        program.kill()
        assert program.wait(ENOUGH) == -signal.SIGKILL
        assert program.poll() == -signal.SIGKILL
        program.kill()  # nobody else is hit
    finally:
        os.close(tells)
