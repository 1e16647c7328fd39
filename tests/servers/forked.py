"""A program of ours, ready to run: it waits with everything imported, and forks for whoever wants one.

A process of its own for each, with an exit code, signals and files like any other; only that it does not
import the same modules again, which costs more than most of what tests ask of it. Run as a script, with
a socket as its standard input and the program's module as its argument; `programs.py` is the other end.

The child of a fork is kept by a process between the two: it tells who it is and how it ended, and does not
let go of its pid before the test has heard of that.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any

ENOUGH = 1 << 20
PR_SET_PTRACER = 0x59616D61
ANYBODY = ctypes.c_ulong(-1)


def preload(program: str) -> None:
    """What the program would load at its first use, again and again."""
    if program != "runstone":
        importlib.import_module(program)
        return
    import runstone.cli

    for module in pkgutil.iter_modules(runstone.cli.__path__, "runstone.cli."):
        importlib.import_module(module.name)
    for name in ("runstone.stores.sqlite", "runstone.stores.folder", "runstone.stores.postgres"):
        importlib.import_module(name)


def main(program: str) -> None:
    assert sys.path[0] == str(Path(__file__).parent), "only as a script"
    sys.path[0] = os.getcwd()
    preload(program)
    del sys.path[0]
    gc.freeze()  # a collection would touch, and so copy, what all of them share
    asked = socket.socket(fileno=0)
    while True:
        message, fds, _, _ = socket.recv_fds(asked, ENOUGH, 5)
        reap()
        if not message:
            return
        if os.fork():
            for fd in fds:
                os.close(fd)
            continue
        asked.detach()
        line, *streams = fds
        with socket.socket(fileno=line) as told:
            pid = os.fork()
            if pid:
                keep(pid, told, streams)
        run(program, json.loads(message), streams)
        return


def reap() -> None:
    """So that what they cost is counted as ours."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def keep(pid: int, told: socket.socket, streams: list[int]) -> None:
    for fd in (0, *streams):
        os.close(fd)
    told.sendall(f"{pid}\n".encode())
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    told.sendall(f"{ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status}\n".encode())
    told.recv(1)  # until it is closed
    os.waitpid(pid, 0)
    os._exit(0)


def run(program: str, wanted: dict[str, Any], streams: list[int]) -> None:
    """Becomes `python -m PROGRAM`, started in that folder and with that environment."""
    for gate in streams[3:]:
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
        os.read(gate, 1)  # until it is closed
        os.close(gate)
    for number, fd in enumerate(streams[:3]):
        os.dup2(fd, number)
        os.close(fd)
    if wanted["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [os.getcwd(), *paths]
    sys.argv = [program, *wanted["arguments"]]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)))
    sys.stdout = io.TextIOWrapper(_buffered(1), line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(_buffered(2), errors="backslashreplace", line_buffering=True)
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _buffered(fd: int) -> io.BufferedWriter:
    return io.BufferedWriter(io.FileIO(fd, "w", closefd=False))


if __name__ == "__main__":
    main(sys.argv[1])
