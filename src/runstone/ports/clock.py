"""Time and ids, passed in wherever they are needed, so that a simulation can own them."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from typing import Final, Protocol

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


_IDS_A_PAGE: Final = 400
_entropy: Final = threading.local()
"""Random bytes, drawn from the system by the page: to ask for each id would cost more than the id."""

# A child process must not draw what its parent draws.
os.register_at_fork(after_in_child=lambda: _entropy.__dict__.clear())


def new_id() -> str:
    """A fresh UUIDv7 from the machine's clock and entropy."""
    try:
        entropy: bytes = _entropy.drawn.pop()
    except (AttributeError, IndexError):
        page = os.urandom(10 * _IDS_A_PAGE)
        _entropy.drawn = [page[start : start + 10] for start in range(0, len(page), 10)]
        entropy = _entropy.drawn.pop()
    return uuid7(time.time_ns() // 1_000_000, entropy)
