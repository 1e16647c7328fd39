"""`runstone worker` as a process: told twice to stop it goes at once; killed, others have its runs soon."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.stuck import app, wait_inside

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
RUNS = 20
LEASE = timedelta(seconds=5)
TAKEN_OVER_WITHIN = LEASE + timedelta(seconds=2)


class Site:
    """A store, a gate, and the workers that wait at it."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "stuck.db"
        self.gate = folder / "gate"
        self.log = folder / "worker.log"

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker's process; whatever the test did to it, it is gone afterwards."""
        command = [sys.executable, "-m", "runstone", "worker", "tests/acceptance/stuck.py:app"]
        command += ["--store", str(self.store), *options]
        environment = os.environ | {"STUCK_GATE": str(self.gate)}
        with open(self.log, "ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def waiting(self, process: subprocess.Popen[bytes]) -> int:
        """How many runs this worker has waiting at the gate."""
        notes = self.gate.with_name("gate.waiting")
        lines = notes.read_text().splitlines() if notes.exists() else []
        return sum(line.endswith(f" {process.pid}") for line in lines)

    def said(self) -> str:
        return self.log.read_text()


async def until(question: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        if question():
            return
        assert loop.time() < deadline, f"not within {PATIENCE} s: {what}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def lateness(folder: Path) -> AsyncIterator[list[timedelta]]:
    """By how much this machine let a short sleep and a small write overrun: nobody is blamed for that."""
    late = [timedelta(0)]

    async def measure() -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.05)
            await asyncio.to_thread(write, folder / "written")
            late[0] += timedelta(seconds=max(0.0, loop.time() - began - 0.07))

    def write(file: Path) -> None:
        with open(file, "wb", buffering=0) as written:
            written.write(b"x")
            os.fsync(written.fileno())

    task = asyncio.ensure_future(measure())
    try:
        yield late
    finally:
        task.cancel()


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
async def test_told_twice_it_goes_at_once(tmp_path: Path, again: signal.Signals) -> None:
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        await app.start(wait_inside, 1)
        with site.worker("--drain", "600") as process:
            await until(lambda: site.waiting(process) == 1, "the step was begun")
            process.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in site.said(), "it drains")
            assert process.poll() is None, "its run may finish, for ten minutes"
            process.send_signal(again)
            code = await asyncio.to_thread(process.wait, PATIENCE)
    assert code == 128 + again


async def test_the_runs_of_a_killed_worker_are_taken_over_in_time(tmp_path: Path) -> None:
    """Within its lease and two seconds, by the times in the log."""
    site = Site(tmp_path)
    lease = ("--lease", str(LEASE.total_seconds()))
    async with app.running(str(site.store), worker=False):
        handles = [await app.start(wait_inside, number) for number in range(RUNS)]
        with site.worker(*lease) as first:
            await until(lambda: site.waiting(first) == RUNS, "it has them all")
            with site.worker(*lease) as second:
                await until(lambda: site.said().count("working on") == 2, "another is ready")
                await asyncio.sleep(0.5)
                assert site.waiting(second) == 0, "they are not its to take"
                first.kill()
                killed = datetime.now(UTC)
                site.gate.touch()
                async with lateness(tmp_path) as late, asyncio.timeout(PATIENCE):
                    results = await asyncio.gather(*(handle.result() for handle in handles))
        assert results == [second.pid] * RUNS
        for handle in handles:
            events = [event async for event in handle.events()]
            (done,) = [event for event in events if event.event_type == "STEP_COMPLETED"]
            assert f":{second.pid}:" in done.actor
            assert done.engine_attempt == 2, "the claim has counted"
            assert done.occurred_at - killed <= TAKEN_OVER_WITHIN + late[0], (
                f"{done.occurred_at - killed} after the kill"
            )


BROKEN = """
import runstone as rs
from runstone.stores.sqlite import SqliteStore

async def mistaken(*given, **more):
    raise ZeroDivisionError

SqliteStore.claim = mistaken
app = rs.App("broken", version="1")

@app.on()
async def idle(run: rs.Run) -> None: ...
"""


def test_one_that_breaks_down_says_why_and_does_not_end_well(tmp_path: Path) -> None:
    """Whoever keeps it alive starts it again."""
    (tmp_path / "broken.py").write_text(BROKEN)
    command = [sys.executable, "-m", "runstone", "worker", f"{tmp_path}/broken.py:app"]
    ended = subprocess.run(
        [*command, "--store", str(tmp_path / "broken.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2
    assert "CRITICAL runstone the worker has ended" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
