"""Starting the programs of `child.py`, as they are or with strace killing them at a system call."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.servers import children
from tests.servers.children import STRACE, Child


@contextmanager
def child(program: str, root: Path, faults: Sequence[str] = ()) -> Iterator[Child]:
    """Runs a program; nothing of it is left in the end. `faults` are arguments of strace."""
    module = "tests.integration.stores.folder.child"
    with children.child(module, [program, str(root)], faults) as started:
        yield started


def said(process: Child) -> list[str]:
    """Waits for its end; all the lines that it finished."""
    return process.rest()


def heard(process: Child) -> str:
    """The next line it says."""
    return process.read()


def tell(process: Child) -> None:
    """The word that it waits for."""
    process.tell()


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
