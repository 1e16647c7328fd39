"""The outside of the simulation: it outlives workers, counts what was really done, and fails as planned."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

import runstone as rs
from runstone.core.payloads import ErrorInfo


@dataclass
class World:
    """What is outside of the runs."""

    random: Random
    done: Counter[str] = field(default_factory=Counter)
    """How often each thing was begun."""
    requests: dict[str, list[str]] = field(default_factory=dict)
    """What came to the receiver under each key, whatever became of it."""
    applied: list[tuple[str, str]] = field(default_factory=list)
    """What the receiver did, each key once: key and text."""
    bad: float = 0.0
    """How many requests go wrong."""

    def begin(self, what: str) -> int:
        self.done[what] += 1
        return self.done[what]

    async def receive(self, key: str, text: str, *, once: bool) -> rs.Failed | None:
        """A receiver that applies by key. Its answer takes time: whoever asked may not live to hear it."""
        self.requests.setdefault(key, []).append(text)
        down = self.random.random() < self.bad
        does_it = not down or once or self.random.random() < 0.5
        if does_it and key not in {known for known, _ in self.applied}:
            self.applied.append((key, text))
        await asyncio.sleep(self.random.random() ** 4 * 8)
        if not down:
            return None
        error = ErrorInfo(category="EXTERNAL", code="DOWN", message="down", retryable=True)
        return rs.Failed(error, target_down=self.random.random() < 0.5)


class Post(rs.EffectSpec, frozen=True, kw_only=True):
    """Something that dispatchers take to the receiver."""

    EFFECT_TYPE: ClassVar[str] = "POST"
    RETRIES: ClassVar[rs.RetryPolicy | None] = rs.RetryPolicy(10_000, rs.seconds(0.2), rs.seconds(2))

    text: str
