"""A program whose own signal handler calls `sys.exit`: the process stops, and its runs go on in the next."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import runstone as rs

PROGRAM = """
import asyncio, signal, sys
import runstone as rs

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
app = rs.App("desk")
place = sys.argv[2]

def stop(here):
    if place == here:
        signal.raise_signal(signal.SIGTERM)

@app.tool
async def tool() -> None:
    stop("tool")

async def branch(run: rs.Run) -> None:
    stop("branch")

@app.executor(rs.NotifyUser)
async def notify(spec: rs.NotifyUser) -> None:
    stop("executor")

@app.on()
async def handle(run: rs.Run) -> str:
    await run.call(tool)
    await run.gather(branch(run))
    await run.effect(rs.NotifyUser(user_id="u", message="m"), key="once")
    if place == "executor":
        await run.wait("never")
    stop("handler")
    return "done"

async def main() -> None:
    async with app.running(sys.argv[1]):
        await (await app.start(handle, key="one")).result()

asyncio.run(main())
"""


@pytest.mark.parametrize("place", ["tool", "branch", "handler", "executor"])
async def test_the_process_stops_and_the_run_does_not_fail(tmp_path: Path, place: str) -> None:
    """§ENG-52."""
    store = str(tmp_path / "store.db")
    command = [sys.executable, "-c", PROGRAM, store, place]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120)
    assert ended.returncode == 7, ended.stderr.decode()
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        raise AssertionError("it is only looked at")

    async with app.running(store, worker=False):
        found = await app.find(handle, "one")
        assert found is not None
        assert (await found.status()).status in ("PENDING", "RUNNING")
