"""The bell: says within one process that a run may have something to do. A hint, never the truth."""

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
