"""An app whose step hangs until a file is there: its worker is killed or told to leave meanwhile."""

from __future__ import annotations

import asyncio
import os

import runstone as rs

app = rs.App("stuck", version="1")


def gate_is_open() -> bool:
    return os.path.exists(os.environ["STUCK_GATE"])


def note(number: int) -> None:
    with open(f"{os.environ['STUCK_GATE']}.waiting", "ab", buffering=0) as waiting:
        waiting.write(f"{number} {os.getpid()}\n".encode())


@app.tool
async def hang(number: int) -> int:
    """Who waits here is noted; whoever finds the gate open gets through."""
    note(number)
    while not gate_is_open():  # noqa: ASYNC110 (another process opens it)
        await asyncio.sleep(0.02)
    return os.getpid()


@app.on()
async def wait_inside(run: rs.Run, number: int) -> int:
    return await run.call(hang, number)
