"""The step that is being carried out, for the tool or specialist that carries it out to look at.

It travels in a context variable, so a function finds it however deep it is called, also in the thread
that a plain `def` runs in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from runstone.core.keys import step_call_key
from runstone.engine.scope import CURRENT
from runstone.errors import RunstoneError

CURRENT_STEP: ContextVar[CurrentStep | None] = ContextVar("runstone_step", default=None)


class CurrentStep:
    """Which step this is, and which attempt at it."""

    def __init__(
        self,
        *,
        run_id: str,
        tenant_id: str,
        step_key: str,
        logical_attempt: int,
        engine_attempt: int,
        emit: Callable[[Any], None],
    ) -> None:
        self.run_id = run_id
        self.tenant_id = tenant_id
        self.step_key = step_key
        self.logical_attempt = logical_attempt
        """Counts from 1: the retry policy's attempts, and those that a person asked for."""
        self.engine_attempt = engine_attempt
        """How often the run was claimed since a step of it finished; more than 1 after a crash."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._emit = emit

    @property
    def idempotency_key(self) -> str:
        """For the outside to know a repetition by: the same for every attempt at this step."""
        return step_call_key(self.tenant_id, self.run_id, self.step_key)

    def emit(self, value: object) -> None:
        """Shows progress to whoever follows the run; it is not history."""
        if threading.get_ident() == self._thread:
            self._emit(value)
        else:
            self._loop.call_soon_threadsafe(self._emit, value)


def in_handler() -> bool:
    """Whether a handler's own code is running, which replay runs again; what a step runs it does not."""
    return CURRENT.get(None) is not None and CURRENT_STEP.get() is None


def current_step() -> CurrentStep:
    """The step that the calling tool or specialist carries out."""
    step = CURRENT_STEP.get()
    if step is None:
        raise RunstoneError("rs.current_step() is for tools and specialists that `run.call` carries out")
    return step
