"""The telemetry port: whoever wants to hear of events as they become durable.

It is for audit beside the log, never in its way: `tell` does not block, does not raise and may lose
what nobody could take. The log is the truth; it can be told again from there.
"""

from __future__ import annotations

from typing import Final, Protocol

from runstone.core.events import Event


class Telemetry(Protocol):
    """Hears of events."""

    def tell(self, event: Event) -> None:
        """Takes note of an event that is durable. Returns at once; the same event may come again."""
        ...

    async def close(self) -> None:
        """Gives what is left a short while to get through, then lets go."""
        ...


class _Silence:
    def tell(self, event: Event) -> None:
        """Nobody listens."""

    async def close(self) -> None:
        """Nothing is held."""


SILENCE: Final[Telemetry] = _Silence()
