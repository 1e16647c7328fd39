"""`python -m runstone` as often as a test likes: real processes, forked from one that has imported it all.

An interpreter that starts and imports the package costs a third of a second; a fork of one costs
a few milliseconds. What a fork cannot show (how the program is installed and starts, which
modules it imports by itself) is for tests that start it as a user does.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

_SERVER: Final = Path(__file__).with_name("forked.py")
_ROOT: Final = Path(__file__).parents[2]
_lock: Final = threading.Lock()
_lines: Final[dict[str, socket.socket]] = {}


def _server(program: str) -> socket.socket:
    """The line to the process that forks for this one; there is one for each program."""
    with _lock:
        if program not in _lines:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            process = subprocess.Popen(
                [sys.executable, str(_SERVER), program],
                cwd=_ROOT,
                stdin=theirs.fileno(),
                env=environment,
                start_new_session=True,
            )
            theirs.close()
            atexit.register(_end, ours, process)
            _lines[program] = ours
        return _lines[program]


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    process.wait()


class Program:
    """A process, as `subprocess.Popen` knows one."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        start_new_session: bool = False,
        program: str = "runstone",
        held: bool = False,
    ) -> None:
        """`held`: it does nothing before `let_go`, so that it can be traced from its beginning."""
        wanted = {
            "arguments": list(arguments),
            "folder": str(cwd),
            "environment": dict(env),
            "session": start_new_session,
        }
        self._told, theirs = socket.socketpair()
        held_by, self._holds = os.pipe()
        with theirs, open(os.devnull, "rb") as nothing:
            streams = [
                stream if isinstance(stream, int) else stream.fileno()
                for stream in (nothing if stdin is None else stdin, stdout, stderr)
            ]
            fds = [theirs.fileno(), *streams, *([held_by] if held else [])]
            socket.send_fds(_server(program), [json.dumps(wanted).encode()], fds)
        os.close(held_by)
        if not held:
            self.let_go()
        self.pid = self._answer()
        self.returncode: int | None = None

    def let_go(self) -> None:
        if self._holds >= 0:
            os.close(self._holds)
            self._holds = -1

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._heard()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"runstone ({self.pid})", timeout or 0.0)
            self._heard()
        assert self.returncode is not None
        return self.returncode

    def _heard(self) -> None:
        self.let_go()
        self.returncode = self._answer()
        self._told.close()

    def _answer(self) -> int:
        """The next line, and nothing behind it: what lay in a buffer of ours, no `select` would tell of."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._told.recv(1)
            if not byte:
                raise EOFError("Who started the program is gone")
            line += byte
        return int(line)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], input: bytes = b"", timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs it to its end, and keeps what it says; files take all of it without anybody who reads along."""
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(input)
        stdin.seek(0)
        program = Program(arguments, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
            program.wait()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, stdout.read(), stderr.read())


def run_text(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    done = run(arguments, cwd=cwd, env=env, timeout=timeout)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
