"""The bell: says that a run may have something to do. A hint, never the truth.

This one rings within one process. A store that processes share may have a `bell` of its own that
rings in all of them.
"""

from __future__ import annotations

from collections.abc import Callable


class Bell:
    """Whoever wrote to a run rings; whoever works on runs listens."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    def ring(self, run_id: str) -> None:
        for listener in list(self._listeners):
            listener(run_id)

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Registers a listener; call what is returned to stop listening."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self) -> None:
        """Rings elsewhere too from now on, where there is an elsewhere. May be called twice."""

    async def stop(self) -> None:
        """No longer does. May be called twice."""
