"""Processes that a test talks to, as they are or with faults that strace puts into their system calls."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from tests.servers.programs import Program

TIMEOUT: Final = 60.0
"""After so many seconds a child that should have ended hangs."""

STRACE: Final = ("strace", "--follow-forks", "--quiet=personality,exit", "--output=/dev/null")
"""It says nothing but to whom it has attached itself."""

_ROOT: Final = Path(__file__).parents[2]


class Child:
    """A process that was started for a test."""

    def __init__(self, process: Program, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self._stdin, self._stdout = stdin, stdout
        self._said = b""

    def read(self) -> str:
        """The next line it says, without the end; empty when it has ended."""
        while b"\n" not in self._said and self._hear(None):
            pass
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def _hear(self, timeout: float | None) -> bool:
        """Whether there was anything more."""
        if not select.select([self._stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"child {self.pid}", timeout or 0.0)
        heard = os.read(self._stdout.fileno(), 65536)
        self._said += heard
        return bool(heard)

    def tell(self) -> None:
        """The word that it waits for."""
        self._stdin.write(b"go\n")

    def rest(self) -> list[str]:
        """Waits for its end; all the lines that it finished and nobody has read."""
        self._stdin.close()
        while self._hear(TIMEOUT):
            pass
        self.process.wait(TIMEOUT)
        *lines, _ = self._said.split(b"\n")
        return [line.decode() for line in lines]

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Waits for its end, whoever else may go on with what it said."""
        return self.process.wait(timeout)

    def kill(self) -> list[str]:
        """Kills it; what it said before."""
        self.process.kill()
        return self.rest()


@contextmanager
def child(program: str, arguments: Sequence[str], faults: Sequence[str] = ()) -> Iterator[Child]:
    """Runs a program; nothing of it is left in the end. `faults` are arguments of strace."""
    its_stdin, told = os.pipe()
    said, its_stdout = os.pipe()
    with (
        open(told, "wb", buffering=0) as stdin,
        open(said, "rb", buffering=0) as stdout,
        ExitStack() as stack,
    ):
        process = Program(
            arguments,
            program=program,
            cwd=_ROOT,
            env=os.environ,
            stdin=its_stdin,
            stdout=its_stdout,
            stderr=2,
            start_new_session=True,
            held=bool(faults),
        )
        os.close(its_stdin)
        os.close(its_stdout)
        try:
            if faults:
                stack.enter_context(_traced(process, faults))
            process.let_go()
            yield Child(process, stdin, stdout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _traced(process: Program, faults: Sequence[str]) -> Iterator[None]:
    """Only what the process does from now on: that it was started has cost enough.

    Strace tells when it has stopped it. It is its tracer before that, while the process may still run on.
    """
    read, write = os.pipe()
    with open(read, "rb") as told:
        command = [*STRACE, *faults, f"--attach={process.pid}"]
        strace = subprocess.Popen(command, stderr=write)
        os.close(write)
        try:
            said = b""
            while not said.endswith(b" attached\n"):
                said = told.readline()
                assert said, "strace may not trace here"
            yield
        finally:
            process.kill()
            strace.wait(TIMEOUT)
