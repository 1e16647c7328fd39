"""Worker processes that die and are replaced."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.servers.programs import Program

ROOT: Final = Path(__file__).parents[2]
WORKERS: Final = 3


class Crew:
    """The same `runstone` command in several processes, and a hand that kills them."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] = {}) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = log.open("ab")
        self.workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> Program:
        return Program(self._command, cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log)

    def kill_one(self, chance: random.Random) -> None:
        place = chance.randrange(WORKERS)
        self.workers[place].send_signal(signal.SIGKILL)
        self.workers[place].wait()
        self.workers[place] = self._start()

    def end(self) -> list[int]:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(timeout=60) for worker in self.workers]
        self._log.close()
        return codes
