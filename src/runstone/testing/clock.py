"""Time and ids that a test owns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from runstone.core.ids import uuid7
from runstone.ports.clock import Clock

START: Final = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
"""Where a virtual clock begins unless told otherwise: a moment before as much as possible changes."""


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta | float) -> datetime:
        """Moves on by a span, or by so many seconds; below zero it goes back, as real clocks do."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self._now

    def set(self, moment: datetime) -> None:
        """Jumps."""
        self._now = moment.astimezone(UTC)


class SeededIds:
    """UUIDv7s from a seed: the same seed on the same clock gives the same ids."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = Random(seed)
        self._clock = clock

    def __call__(self) -> str:
        return uuid7(_unix_ms(self._clock.now()), self._random.randbytes(10))


def _unix_ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
