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


class _Entropy:
    """Random bytes, asked of the system by the page: a call for each id would cost more than the id."""

    _PAGE: Final = 4096

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """A child process must not draw what its parent draws."""
        self._page = b""
        self._used = 0

    def take(self, count: int) -> bytes:
        start = self._used
        taken = self._page[start : start + count]
        if len(taken) < count:
            self._page = os.urandom(self._PAGE)
            start, taken = 0, self._page[:count]
        self._used = start + count
        return taken


_entropy: Final = threading.local()


def new_id() -> str:
    """A fresh UUIDv7 from the machine's clock and entropy."""
    try:
        source: _Entropy = _entropy.source
    except AttributeError:
        source = _entropy.source = _Entropy()
    return uuid7(time.time_ns() // 1_000_000, source.take(10))
