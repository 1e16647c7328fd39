"""Branches of a handler: each has a scope, and a step is known by its name and occurrence in its scope.

The root handler is one branch; `run.gather` and `run.first` open further ones. A durable call has
to come from its scope's own task: from any other, replay could hand one branch another's result.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from contextvars import ContextVar
from datetime import datetime
from hashlib import sha256
from typing import Any

from runstone.engine.functions import checked_name
from runstone.errors import UseRunGather

CURRENT: ContextVar[Scope] = ContextVar("runstone_scope")


class Scope:
    """One branch: where it stands, what it has seen, and the task that runs it."""

    def __init__(self, run_id: str, path: str, now: datetime, cause: str | None) -> None:
        self.run_id = run_id
        self.path = path
        self.now = now
        self.cause = cause
        self.task: asyncio.Task[Any] | None = None
        self.blocked = False
        self.cancelled = False
        self._occurrences: Counter[str] = Counter()

    def child(self, key: str, place: int) -> Scope:
        """A branch of this branch, opened under a key of it; it begins with what its parent has seen."""
        return Scope(self.run_id, f"{key}.{place}/", self.now, self.cause)

    def saw(self, moment: datetime, cause: str | None) -> None:
        """It has seen an event; time does not go back within a branch."""
        self.now = max(self.now, moment)
        self.cause = cause

    def key(self, name: str) -> str:
        """The key of the next step of that name."""
        checked_name(name)
        self._occurrences[name] += 1
        return f"{self.path}{name}#{self._occurrences[name]}"

    def random(self) -> float:
        """A number that is the same on replay: seeded by run, scope and ordinal."""
        return random.Random(self._seed("random")).random()

    def uuid(self) -> uuid.UUID:
        """An id that is the same on replay."""
        return uuid.UUID(bytes=self._seed("uuid")[:16], version=4)

    def _seed(self, kind: str) -> bytes:
        return sha256(f"{self.run_id}:{self.key(f'${kind}')}".encode()).digest()


def cancelled_from_outside() -> bool:
    """Whether somebody cancelled the calling task; if not, a `CancelledError` in it is its own doing."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def current_scope() -> Scope:
    """The scope of the calling task, which must be the scope's own."""
    scope = CURRENT.get(None)
    if scope is None or asyncio.current_task() is not scope.task:
        raise UseRunGather
    return scope
