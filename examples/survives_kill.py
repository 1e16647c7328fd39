"""A run that survives kill -9.

    python -m examples.survives_kill

A worker process bakes a cake in five steps. It is killed with kill -9 in the middle; another one takes the
run over when the first one's lease is up, and does only the steps that were not done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import runstone as rs
from runstone.handle import Handle

app = rs.App("bakery", version="1")
STEPS = ["weigh", "mix", "bake", "cool", "ice"]


@app.tool
async def work(step: str) -> str:
    await asyncio.sleep(0.4)
    print(f"        worker {os.getpid()} did {step}", flush=True)
    return f"{step} done"


@app.on()
async def bake(run: rs.Run, cake: str) -> str:
    for step in STEPS:
        await run.call(work, step)
    return f"{cake}: ready"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "bakery.db"
        async with app.running(str(store), worker=False):
            handle = await app.start(bake, "Sacher")
            first = start_worker(store)
            print(f"   start  Worker {first.pid} takes the run of a Sacher cake.")
            await finished(handle, 2)
            first.send_signal(signal.SIGKILL)
            first.wait()
            print(f"    kill  kill -9 {first.pid}")
            second = start_worker(store)
            print(f"  resume  Worker {second.pid} waits for the dead one's lease, and goes on.")
            print(f"    done  {await handle.result()}")
            second.terminate()
            second.wait()
            await show_log(handle)


def start_worker(store: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "runstone", "worker", f"{__file__}:app", "--store", str(store)]
    return subprocess.Popen([*command, "--lease", "1"], stderr=subprocess.DEVNULL)


async def finished(handle: Handle[str], steps: int) -> None:
    """Until so many steps are in the log."""
    async for event in handle.events(follow=True):
        steps -= event.event_type == "STEP_COMPLETED"
        if steps == 0:
            return


async def show_log(handle: Handle[str]) -> None:
    events = [event async for event in handle.events()]
    done = [event for event in events if event.event_type == "STEP_COMPLETED"]
    workers = {event.actor for event in done}
    print(f"     log  {len(events)} events; {len(done)} steps, each done once, by {len(workers)} workers")
    if len(done) != len(STEPS) or len(workers) != 2:
        raise SystemExit("this must never happen")


if __name__ == "__main__":
    asyncio.run(main())
