"""A process beside this one, asked and answering in lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PATIENCE: Final = 300.0
"""Seconds after which an answer is no longer waited for."""


class CompanionFailed(Exception):
    """The process ended, or hung, before it answered."""


class Companion:
    """A child process for as long as this is open; it ends when its standard input does."""

    def __init__(self, command: Sequence[str | Path], folder: Path) -> None:
        self._errors = (folder / "companion.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def __enter__(self) -> Companion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=30)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        finally:
            self._process.stdout.close()
            self._errors.close()

    def kill(self) -> None:
        """kill -9, for what it has started as well: it has no time for last words."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ask(self, **question: Any) -> dict[str, Any]:
        """Its answer; `CompanionFailed` with its last words if there is none."""
        self.tell(**question)
        return self.hear()

    def tell(self, **question: Any) -> None:
        """Asks without waiting for the answer, so that others can be asked as well."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # that it is gone is seen when its answer is not there
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The answer to what it was asked; `CompanionFailed` with its last words if there is none."""
        assert self._process.stdout is not None
        impatient = Timer(PATIENCE, self._process.kill)
        impatient.start()
        try:
            line = self._process.stdout.readline()
        finally:
            impatient.cancel()
        if not line:
            self._errors.seek(0)
            raise CompanionFailed(self._errors.read()[-2000:] or "it said nothing")
        answer: dict[str, Any] = json.loads(line)
        return answer
