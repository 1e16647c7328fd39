"""What a fork must not share: two processes on one connection would garble each other's statements.

In a child the parent's stores are closed, and nothing is sent on what they had open. It may open
its own: the locks are the server's, and know nothing of processes here.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet


class Forsakes(Protocol):
    def forsake(self) -> None:
        """Is no longer open, and touches nothing of what it had: that belongs to the parent."""


_open: Final[WeakSet[Forsakes]] = WeakSet()


def opened(store: Forsakes) -> None:
    _open.add(store)


def closed(store: Forsakes) -> None:
    _open.discard(store)


def _forsake() -> None:
    for store in list(_open):
        store.forsake()
    _open.clear()


os.register_at_fork(after_in_child=_forsake)
