"""What a fork must not share.

A forked child inherits what SQLite knows of its locks, but not the locks. If it opened the file of
a store that its parent had open, it would write unprotected, and what it was told is durable could
be lost. So in a child the parent's stores are closed, and their files stay closed.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from runstone.errors import StoreUnusable


class Forsakes(Protocol):
    def forsake(self) -> None:
        """Is no longer open, and touches nothing of what it had: that belongs to the parent."""


_open: Final[WeakKeyDictionary[Forsakes, tuple[int, int]]] = WeakKeyDictionary()
_inherited: Final[set[tuple[int, int]]] = set()


def refuse_inherited(path: str) -> None:
    """Refuses a file that this process's parent had open at the fork."""
    if os.path.exists(path) and _identity(path) in _inherited:
        raise StoreUnusable(
            f"{path} was open when this process was forked off, and SQLite's locks do not survive that: "
            "open the store only after the fork, or start a process of its own ('spawn')"
        )


def opened(store: Forsakes, path: str) -> None:
    _open[store] = _identity(path)


def closed(store: Forsakes) -> None:
    _open.pop(store, None)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _forsake() -> None:
    _inherited.update(_open.values())
    for store in list(_open):
        store.forsake()
    _open.clear()


os.register_at_fork(after_in_child=_forsake)
