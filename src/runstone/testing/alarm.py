"""The alarm of the simulator: what becomes due is told of at its own time, and nobody has to look before.

A worker polls because it cannot know what others will write. In virtual time one place hears of every
commit, so it can say when there is something to do: years in which nothing is due cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime

from runstone.testing.loop import LoopClock, VirtualLoop


class Alarm:
    """Rings at the times that it was set to."""

    def __init__(self, loop: VirtualLoop, clock: LoopClock) -> None:
        self._loop = loop
        self._clock = clock
        self._context = copy_context()  # not that of a node which sets it: that may be killed
        self._set: dict[str, tuple[datetime, Callable[[], None], asyncio.TimerHandle]] = {}

    def set(self, name: str, at: datetime | None, ring: Callable[[], None]) -> None:
        """Rings then, and no longer when it was set to under this name before; with no time not at all."""
        self.stop(name)
        if at is not None:
            timer = self._loop.call_at(self._clock.when(at), self._reached, name, context=self._context)
            self._set[name] = at, ring, timer

    def stop(self, name: str) -> None:
        if name in self._set:
            self._set.pop(name)[2].cancel()

    def stop_all(self) -> None:
        for name in list(self._set):
            self.stop(name)

    def reset(self) -> None:
        """The hands of the clock were moved: everything is nearer now, or farther away."""
        for name, (at, ring, _) in list(self._set.items()):
            self.set(name, at, ring)

    def _reached(self, name: str) -> None:
        at, ring, _ = self._set.pop(name)
        if self._clock.now() < at:  # timers that are close together fire together
            self.set(name, at, ring)
        else:
            ring()
