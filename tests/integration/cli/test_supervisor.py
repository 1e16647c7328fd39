"""The supervisor with processes of no other purpose: who is started again, who is given up, who is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runstone.cli.supervisor import Supervisor

PATIENCE = 60.0

GOOD = """
import asyncio, os, signal, sys, time
from pathlib import Path
from runstone.cli.supervisor import leash

line, folder = leash(os.environ), Path(sys.argv[1])
assert "RUNSTONE_SUPERVISED" not in os.environ
tries = len(list(folder.glob(f"{line.place}.*")))
(folder / f"{line.place}.{tries}").write_text(str(os.getpid()))

async def stay():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    line.follow(stop.set, lambda number: os._exit(128 + number))
    line.ready()
    (folder / f"ready.{line.place}.{tries}").touch()
    await stop.wait()
"""
STAYS = GOOD + "asyncio.run(stay())"
GOES_WHEN_READY = GOOD + "line.ready(); sys.exit(3 if tries == 0 else asyncio.run(stay()))"
IS_DEAF = GOOD + "line.ready(); (folder / 'deaf').touch(); time.sleep(600)"
DRAINS_FOR_EVER = GOOD.replace("await stop.wait()", "await asyncio.sleep(600)") + "asyncio.run(stay())"
STARTS_ONCE = GOOD + "sys.exit(5) if line.place == 2 and tries in (1, 2) else asyncio.run(stay())"
NEVER_STARTS = GOOD + "sys.exit(5)"
DIES_ONCE = GOOD + "os.kill(os.getpid(), signal.SIGKILL) if tries == 0 else asyncio.run(stay())"
IMPORTS_FOR_EVER = GOOD + "(folder / 'importing').touch(); time.sleep(600)"


class Scene:
    """A supervisor at work, and the notes its processes leave."""

    def __init__(self, folder: Path, script: str, count: int) -> None:
        self.folder = folder
        command = [sys.executable, "-c", script, str(folder)]
        self.supervisor = Supervisor(command, count, shortest=0.05)
        self.end = asyncio.ensure_future(self.supervisor.run())

    def pids(self, place: int) -> list[int]:
        notes = sorted(self.folder.glob(f"{place}.*"), key=lambda note: int(note.suffix[1:]))
        return [int(note.read_text() or 0) for note in notes]

    def ready(self, place: int, tries: int = 0) -> bool:
        return (self.folder / f"ready.{place}.{tries}").exists()

    async def until(self, question: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not question():
                assert not self.end.done(), "the supervisor is gone"
                await asyncio.sleep(0.01)

    async def code(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.end


@asynccontextmanager
async def supervised(folder: Path, script: str, count: int) -> AsyncIterator[Scene]:
    scene = Scene(folder, script, count)
    try:
        yield scene
    finally:
        for _ in range(3):
            scene.supervisor.tell(signal.SIGTERM)
        await asyncio.wait([scene.end], timeout=PATIENCE)


async def test_one_that_ends_after_it_was_ready_is_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, GOES_WHEN_READY, 1) as scene:
        await scene.until(lambda: scene.ready(1, tries=1))
        scene.supervisor.tell(signal.SIGTERM)
        assert await scene.code() == 0


async def test_one_that_is_killed_before_it_is_ready_is_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, DIES_ONCE, 1) as scene:
        await scene.until(lambda: scene.ready(1, tries=1))
        assert len(scene.pids(1)) == 2


async def test_what_cannot_start_is_tried_once_and_by_one(tmp_path: Path) -> None:
    async with supervised(tmp_path, NEVER_STARTS, 3) as scene:
        assert await scene.code() == 5
        assert [len(scene.pids(place)) for place in (1, 2, 3)] == [1, 0, 0]


async def test_a_command_that_is_not_there_is_an_end(tmp_path: Path) -> None:
    supervisor = Supervisor([str(tmp_path / "nothing")], 2)
    async with asyncio.timeout(PATIENCE):
        assert await supervisor.run() == 2


async def test_while_others_work_one_that_cannot_start_is_tried_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, STARTS_ONCE, 2) as scene:
        await scene.until(lambda: scene.ready(1) and scene.ready(2))
        os.kill(scene.pids(2)[0], signal.SIGKILL)
        await scene.until(lambda: scene.ready(2, tries=3))
        assert len(scene.pids(1)) == 1, "nobody else was disturbed"
        scene.supervisor.tell(signal.SIGTERM)
        assert await scene.code() == 0


async def test_one_that_drains_by_a_signal_of_its_own_is_replaced(tmp_path: Path) -> None:
    async with supervised(tmp_path, STAYS, 1) as scene:
        await scene.until(lambda: scene.ready(1))
        os.kill(scene.pids(1)[0], signal.SIGTERM)
        await scene.until(lambda: scene.ready(1, tries=1))


async def test_one_that_is_only_starting_is_not_waited_for(tmp_path: Path) -> None:
    async with supervised(tmp_path, IMPORTS_FOR_EVER, 2) as scene:
        await scene.until((tmp_path / "importing").exists)
        scene.supervisor.tell(signal.SIGINT)
        assert await scene.code() == 0, "it had not begun anything"
        assert scene.pids(2) == []


async def test_one_that_hears_nothing_is_killed_the_third_time(tmp_path: Path) -> None:
    async with supervised(tmp_path, IS_DEAF, 1) as scene:
        await scene.until((tmp_path / "deaf").exists)
        await scene.until(lambda: scene.supervisor.ready == 1)
        for _ in range(2):
            scene.supervisor.tell(signal.SIGINT)
        done, _ = await asyncio.wait([scene.end], timeout=0.2)
        assert not done
        scene.supervisor.tell(signal.SIGINT)
        assert await scene.code() == 128 + signal.SIGKILL


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
async def test_told_twice_all_end_at_once(tmp_path: Path, again: signal.Signals) -> None:
    async with supervised(tmp_path, DRAINS_FOR_EVER, 2) as scene:
        await scene.until(lambda: scene.ready(1) and scene.ready(2))
        scene.supervisor.tell(signal.SIGTERM)
        scene.supervisor.tell(again)
        assert await scene.code() == 128 + again
