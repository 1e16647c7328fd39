"""A timer that is begun often and runs out seldom.

Every step begins one, for its start that waits for company and for its write that must not take too
long, and nearly every one is over in a millisecond. So the event loop's own timer is left standing when
patience ends, and looked at again when it fires: one timer in half a second instead of one a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Patience:
    """Calls `over` when so many seconds have passed since it began, unless it ended before."""

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self._seconds = seconds
        self._over = over
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on; if it has begun already, from then on."""
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.time() + self._seconds
            if self._timer is None:
                self._timer = loop.call_at(self._due, self._look)

    def end(self) -> None:
        """It did not run out."""
        self._due = None

    def cancel(self) -> None:
        """It ends for good: nothing stays behind in the event loop."""
        self.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._due is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._due:
            self._timer = loop.call_at(self._due, self._look)
        else:
            self._due = None
            self._over()
