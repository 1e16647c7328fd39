"""Starting the programs of `child.py`, as they are or with faults that strace puts into system calls."""

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
from typing import IO, Final

import pytest

ROOT: Final = Path(__file__).parents[4]
TIMEOUT: Final = 60.0
"""After so many seconds a child that should have ended hangs."""

_STRACE: Final = ("strace", "--follow-forks", "-qq", "--output=/dev/null")


class Child:
    """A process that was started for a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def read(self) -> str:
        """The next line it says, without the end; empty when it has ended."""
        return _pipe(self.process.stdout).readline().rstrip("\n")

    def tell(self) -> None:
        """The word that it waits for."""
        pipe = _pipe(self.process.stdin)
        pipe.write("go\n")
        pipe.flush()

    def rest(self) -> list[str]:
        """Waits for its end; all the lines that it finished and nobody has read."""
        said = self.process.communicate(timeout=TIMEOUT)[0]
        return [line.rstrip("\n") for line in said.splitlines(keepends=True) if line.endswith("\n")]

    def kill(self) -> list[str]:
        """Kills it; what it said before."""
        self.process.kill()
        return self.rest()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def child(program: str, *arguments: object, faults: Sequence[str] = ()) -> Iterator[Child]:
    """Runs a program; nothing of it is left in the end. `faults` are arguments of strace."""
    command = [sys.executable, "-m", "tests.integration.stores.sqlite.child", program, *map(str, arguments)]
    if faults:
        command = [*_STRACE, *faults, *command]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Child(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what strace runs outlives strace
        process.communicate()


@cache
def strace_problem() -> str | None:
    """Why there can be no faults here, if so."""
    if shutil.which("strace") is None:
        return "strace is not installed: without it no fault can be put into a system call"
    tried = subprocess.run(
        [*_STRACE, *inject("getpid", "error=EIO", 1), "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def inject(call: str, fault: str, when: int | str, path: Path | None = None) -> list[str]:
    """A fault in some of the calls that each thread makes, counted from 1, and on which file."""
    fast = [] if fault.startswith("signal=") else ["--seccomp-bpf"]  # which loses signals
    only = ["-P", str(path)] if path else []
    return [*fast, *only, "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={when}"]


needs_strace = pytest.mark.skipif(strace_problem() is not None, reason=str(strace_problem()))
