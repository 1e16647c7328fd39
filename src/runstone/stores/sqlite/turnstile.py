"""Fair turns between processes that write to one file.

SQLite's own lock goes to whoever asks at the right moment: under load one process can wait for
seconds. Here every writer first takes the turnstile and holds it while it waits for the lock;
whoever has just written finds the turnstile taken by the next in line and has to queue behind it.
Nobody sleeps, and a lone writer pays four system calls.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turnstile:
    """Two lock files beside the store's."""

    def __init__(self, store: Path) -> None:
        self._turn = _open(store.with_name(store.name + "-turn"))
        self._lock = _open(store.with_name(store.name + "-lock"))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Waits for this writer's turn; the next one may come when it is over."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._lock)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
