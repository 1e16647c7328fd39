"""Starting the programs of `child.py`, as they are or with faults that strace puts into system calls."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.servers import children
from tests.servers.children import STRACE, TIMEOUT, Child

__all__ = ["TIMEOUT", "Child", "child", "inject", "needs_strace", "strace_problem"]


@contextmanager
def child(program: str, *arguments: object, faults: Sequence[str] = ()) -> Iterator[Child]:
    """Runs a program; nothing of it is left in the end. `faults` are arguments of strace."""
    module = "tests.integration.stores.sqlite.child"
    with children.child(module, [program, *map(str, arguments)], faults) as started:
        yield started


@cache
def strace_problem() -> str | None:
    """Why there can be no faults here, if so."""
    if shutil.which("strace") is None:
        return "strace is not installed: without it no fault can be put into a system call"
    tried = subprocess.run(
        [*STRACE, *inject("getpid", "error=EIO", 1), "true"],
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
