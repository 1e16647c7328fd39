"""Time and ids, passed in wherever they are needed, so that a simulation can own them."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Protocol

from runstone.core.ids import uuid7


class Clock(Protocol):
    """Tells the time. It may jump; whoever orders things by it takes the later of two."""

    def now(self) -> datetime:
        """The present, in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def new_id() -> str:
    """A fresh UUIDv7 from the machine's clock and entropy."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))
