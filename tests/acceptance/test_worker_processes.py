"""`runstone worker --processes`: several work on one file, are killed and replaced, and leave together."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from runstone.handle import Handle
from tests.acceptance.stuck import app, wait_inside

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
EACH = 4
"""Runs that one process takes."""
RUNS = 2 * EACH


class Site:
    """A store, a gate that runs wait at, and a supervisor whose processes let them wait there."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "stuck.db"
        self.gate = folder / "gate"

    @contextmanager
    def workers(
        self, *options: str, app: str = "tests/acceptance/stuck.py:app", terminal: bool = False
    ) -> Iterator[Workers]:
        """Two processes; whatever the test did to them, they are gone afterwards."""
        command = [sys.executable, "-m", "runstone", "worker", app, "--processes", "2"]
        command += ["--store", str(self.store), "--concurrency", str(EACH), *options]
        environment = os.environ | {"STUCK_GATE": str(self.gate)}
        ours, theirs = pty.openpty() if terminal else os.pipe()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=terminal,
            preexec_fn=_take_terminal if terminal else None,
        )
        os.close(theirs)
        workers = Workers(process, ours)
        try:
            yield workers
        finally:
            process.kill()
            process.wait()
            self._end(workers)
            os.close(ours)

    def _end(self, workers: Workers) -> None:
        """They notice that they are alone; through the gate they can leave."""
        if not workers.ended.is_set():
            self.gate.touch()
        if not workers.ended.wait(PATIENCE):
            for pid in self.waiting():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError("the processes outlived their supervisor")

    def waiting(self) -> Counter[int]:
        """How many runs each process has had waiting at the gate."""
        notes = self.gate.with_name("gate.waiting")
        lines = notes.read_text().splitlines() if notes.exists() else []
        return Counter(int(line.split()[1]) for line in lines)

    async def all_wait(self) -> list[int]:
        """The processes, once each has as many runs as it can take."""
        await until(lambda: sorted(self.waiting().values()) == [EACH, EACH], "both have their runs")
        return list(self.waiting())


def _take_terminal() -> None:
    """The terminal that a session's leader opens is the session's: Ctrl-C goes there."""
    os.close(os.open(os.ttyname(1), os.O_RDWR))


class Workers:
    """The supervisor's process, and what it and its children say."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.screen = screen
        self.ended = threading.Event()
        """All that could write are gone: the supervisor and its children."""
        self._output = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal says that its other end is closed
            while chunk := os.read(self.screen, 65536):
                self._output += chunk
        self.ended.set()

    def said(self, text: str) -> int:
        return self.output.count(text)

    @property
    def output(self) -> str:
        return self._output.decode()

    async def code(self) -> int:
        """How the supervisor ended, and all others with it."""
        code = await asyncio.to_thread(self.process.wait, PATIENCE)
        assert await asyncio.to_thread(self.ended.wait, PATIENCE), "somebody is left behind"
        return code


async def until(question: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not question():
        assert loop.time() < deadline, f"not within {PATIENCE} s: {what}"
        await asyncio.sleep(0.02)


async def results_of(handles: list[Handle[int]]) -> set[int]:
    """Which processes have let runs through."""
    async with asyncio.timeout(PATIENCE):
        return set(await asyncio.gather(*(handle.result() for handle in handles)))


async def test_one_that_is_killed_is_replaced_and_all_runs_finish(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        handles = [await app.start(wait_inside, number) for number in range(RUNS)]
        with site.workers("--lease", "5") as workers:
            killed, left = await site.all_wait()
            os.kill(killed, signal.SIGKILL)
            await until(lambda: len(site.waiting()) == 3, "a third one has runs of the killed one")
            site.gate.touch()
            results = await results_of(handles)
            workers.process.send_signal(signal.SIGTERM)
            assert await workers.code() == 0
    assert left in results
    assert killed not in results
    assert workers.said("was ended by signal 9; the next one starts in 0.5 s") == 1
    assert workers.said("working on") == 3
    assert not re.search(r"^\[", workers.output, re.MULTILINE), "for a program lines are not marked"


async def test_signalled_with_all_its_children_it_drains(tmp_path: Path) -> None:
    """As a service manager does it: what the supervisor passes on is not the second time."""
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        handles = [await app.start(wait_inside, number) for number in range(RUNS)]
        with site.workers("--drain", "600") as workers:
            children = await site.all_wait()
            for pid in [*children, workers.process.pid]:
                os.kill(pid, signal.SIGTERM)
            await until(lambda: workers.said("draining") == 2, "both drain")
            site.gate.touch()
            assert await workers.code() == 0
        assert await results_of(handles) == set(children)


async def test_what_cannot_finish_in_time_is_given_back(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        handles = [await app.start(wait_inside, number) for number in range(RUNS)]
        with site.workers("--drain", "0", "--lease", "6000") as workers:
            await site.all_wait()
            workers.process.send_signal(signal.SIGINT)
            assert await workers.code() == 0
    site.gate.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUCK_GATE", str(site.gate))
        async with app.running(str(site.store)):
            results = await results_of([app.handle(wait_inside, handle.id) for handle in handles])
    assert results == {os.getpid()}, "long before the lease is over"


async def test_told_twice_all_go_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        for number in range(RUNS):
            await app.start(wait_inside, number)
        with site.workers("--drain", "600") as workers:
            await site.all_wait()
            workers.process.send_signal(signal.SIGTERM)
            await until(lambda: workers.said("draining") == 2, "both drain")
            assert workers.process.poll() is None, "runs may finish, for ten minutes"
            workers.process.send_signal(signal.SIGINT)
            assert await workers.code() == 128 + signal.SIGINT


async def test_without_their_supervisor_they_drain(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        handles = [await app.start(wait_inside, number) for number in range(RUNS)]
        with site.workers("--drain", "600") as workers:
            children = await site.all_wait()
            workers.process.kill()
            await until(lambda: workers.said("draining") == 2, "both have noticed")
            site.gate.touch()
            assert await workers.code() == -signal.SIGKILL
        assert await results_of(handles) == set(children)


BROKEN = "import runstone\nraise ImportError('no such luck')\n"
EMPTY = "import runstone\napp = runstone.App('a')\n"
SENDING = EMPTY + (
    "class Note(runstone.EffectSpec):\n    EFFECT_TYPE = 'NOTE'\n"
    "@app.executor(Note)\nasync def note(spec: Note) -> None: ...\n"
)
SOUND = EMPTY + "@app.on()\nasync def idle(run: runstone.Run) -> None: ...\n"


@pytest.mark.parametrize(
    ("source", "options", "code", "message"),
    [
        (None, (), 2, "runstone: There is no file "),
        (BROKEN, (), 2, "broken.py cannot be loaded: ImportError: no such luck"),
        (EMPTY, (), 2, "broken.py:app has no handlers"),
        (SENDING, ("--only", "runs"), 2, "broken.py:app has no handlers"),
        (SOUND, ("--store", "/nowhere/a.db"), 2, "/nowhere/a.db"),
    ],
    ids=["no file", "import error", "no handlers", "only executors", "no store"],
)
async def test_what_cannot_start_says_so_once(
    tmp_path: Path, source: str | None, options: tuple[str, ...], code: int, message: str
) -> None:
    file = tmp_path / "broken.py"
    if source is not None:
        file.write_text(source)
    with Site(tmp_path).workers(*options, app=f"{file}:app") as workers:
        assert await workers.code() == code
    assert workers.said(message) == 1
    assert workers.said("\n") == 1 or source == BROKEN, workers.output


@pytest.mark.parametrize(("source", "options"), [(EMPTY, ("--only", "outbox")), (SENDING, ())])
async def test_processes_that_only_send(tmp_path: Path, source: str, options: tuple[str, ...]) -> None:
    """They need no handlers for that, and with executors nobody has to say so."""
    app = tmp_path / "empty.py"
    app.write_text(source)
    with Site(tmp_path).workers(*options, app=f"{app}:app") as workers:
        await until(lambda: workers.said("working on") == 2, "both are ready")
        workers.process.send_signal(signal.SIGTERM)
        assert await workers.code() == 0


async def test_at_a_terminal(tmp_path: Path) -> None:
    """Lines tell whose they are, and Ctrl-C, which reaches a whole process group, is one signal."""
    site = Site(tmp_path)
    async with app.running(str(site.store), worker=False):
        for number in range(RUNS):
            await app.start(wait_inside, number)
        with site.workers("--drain", "600", terminal=True) as workers:
            await site.all_wait()
            os.write(workers.screen, b"\x03")
            await until(lambda: workers.said("draining") == 2, "both drain")
            assert workers.process.poll() is None, "they wait for their runs"
            site.gate.touch()
            assert await workers.code() == 0
    lines = re.findall(r"(?:^|\^C)\[([12])\] (stuck 1: working on|draining)", workers.output, re.MULTILINE)
    assert sorted(lines) == [(place, what) for place in "12" for what in ("draining", "stuck 1: working on")]
