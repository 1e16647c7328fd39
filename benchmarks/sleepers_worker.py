"""The worker that `sleepers` watches: a process of its own, so that nothing else is in its memory.

It works on the runs of one file, and for each line of JSON writes one: `nap` puts runs to sleep
through the engine, `memory` says how much of it the process holds, and the most since it was last asked.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.apps import Playable, nap
from runstone import Handle

SAMPLED_EVERY: Final = 0.05
STATM: Final = Path("/proc/self/statm")


def resident_mb() -> float:
    """Memory of this process in MB; where the system only knows the most there ever was, that."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class Watch:
    """Looks at the memory again and again."""

    def __init__(self) -> None:
        self.most = 0.0

    async def run(self) -> None:
        while True:
            self.most = max(self.most, resident_mb())
            await asyncio.sleep(SAMPLED_EVERY)

    def read(self) -> dict[str, float]:
        gc.collect()
        now = resident_mb()
        most, self.most = max(self.most, now), now
        return {"now": now, "most": most}


async def put_to_sleep(playable: Playable, runs: int, seconds: float) -> list[str]:
    """Starts runs; returns when all of them sleep."""
    app = playable.app
    handles = [await app.start(playable.handler, seconds) for _ in range(runs)]
    for handle in handles:
        while not await _sleeps(handle):
            await app.runtime.changed(handle.id, SAMPLED_EVERY)
    return [handle.id for handle in handles]


async def _sleeps(handle: Handle[str]) -> bool:
    return "RUN_SUSPENDED" in [event.event_type async for event in handle.events()]


async def answer(playable: Playable, watch: Watch, question: dict[str, Any]) -> dict[str, Any]:
    if question["do"] == "nap":
        return {"runs": await put_to_sleep(playable, question["runs"], question["seconds"])}
    return {**watch.read()}


async def main(path: str) -> None:
    playable, watch = nap(), Watch()
    loop = asyncio.get_running_loop()
    async with playable.app.running(path):
        watching = asyncio.ensure_future(watch.run())
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            said = await answer(playable, watch, json.loads(line))
            os.write(1, json.dumps(said).encode() + b"\n")
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
