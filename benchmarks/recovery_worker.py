"""A worker that `recovery` kills, or that takes over: a process of its own with one app.

It works on the runs of one database until its standard input ends, and answers each line of JSON with one.
Where it is told to hold, runs stay in their second step for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from typing import Any

from benchmarks.apps import Playable
from runstone import App, Run
from runstone.stores.postgres import PostgresStore


def two_steps(*, hold: bool) -> Playable:
    """A step that ends, and one that does not where it is to be held."""
    app = App("benchmark")

    @app.specialist
    async def prepare(number: int) -> dict[str, Any]:
        return {"value": number, "text": "what has to be known before"}

    @app.specialist
    async def work(number: int) -> dict[str, Any]:
        if hold:
            await asyncio.Event().wait()
        return {"value": number, "text": "what a specialist has to say about it"}

    @app.on()
    async def two_steps(run: Run, number: int) -> str:
        await run.call(prepare, number)
        await run.call(work, number)
        return "done"

    return Playable(app, two_steps)


async def main(url: str, hold: bool, concurrency: int, lease: timedelta) -> None:
    loop = asyncio.get_running_loop()
    app = two_steps(hold=hold).app
    async with (
        await PostgresStore.open(url) as store,
        app.running(store, concurrency=concurrency, lease=lease),
    ):
        while await loop.run_in_executor(None, sys.stdin.readline):
            os.write(1, json.dumps({"works": True}).encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], sys.argv[2] == "hold", int(sys.argv[3]), timedelta(seconds=float(sys.argv[4])))
    )
