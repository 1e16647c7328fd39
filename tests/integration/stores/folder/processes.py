"""Starting the programs of `child.py`, as they are or with strace killing them at a system call."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[4]
TIMEOUT: Final = 60.0
STRACE: Final = ("strace", "--follow-forks", "-qq", "--output=/dev/null")


@contextmanager
def child(program: str, root: Path, faults: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Runs a program; nothing of it is left in the end. `faults` are arguments of strace."""
    command = [sys.executable, "-B", "-m", "tests.integration.stores.folder.child", program, str(root)]
    process = subprocess.Popen(
        [*STRACE, *faults, *command] if faults else command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what strace runs outlives strace
        process.communicate()


def said(process: subprocess.Popen[str]) -> list[str]:
    """Waits for its end; all the lines that it finished."""
    text = process.communicate(timeout=TIMEOUT)[0]
    return [line.rstrip("\n") for line in text.splitlines(keepends=True) if line.endswith("\n")]


def heard(process: subprocess.Popen[str]) -> str:
    """The next line it says."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: subprocess.Popen[str]) -> None:
    """The word that it waits for."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def kill_at(call: str, when: int, *paths: Path) -> list[str]:
    """Kills the process as it makes a call for the n-th time, of those on these paths if any are named."""
    only = [word for path in paths for word in ("-P", str(path))]
    return [*only, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}"]


@cache
def _strace_problem() -> str | None:
    if shutil.which("strace") is None:
        return "strace is not installed: without it no process can be killed at a system call"
    tried = subprocess.run([*STRACE, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


needs_strace = pytest.mark.skipif(_strace_problem() is not None, reason=str(_strace_problem()))
