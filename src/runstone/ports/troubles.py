"""Troubles that come again with every try: each is told at once, and from then on only now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

EVERY: Final = 30.0
"""Seconds between two lines about the same."""
KNOWN: Final = 32
"""So many different ones are told apart; with more, the oldest is new again."""


class Troubles:
    """Warns of what goes wrong in a loop, without a line for every turn of it."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._known: dict[str, tuple[float, int]] = {}
        """When a trouble was told last, and how often it came since."""

    def warn(self, text: str) -> None:
        now = self._now()
        told_at, since = self._known.pop(text, (now - EVERY, 0))
        if now - told_at < EVERY:
            self._known[text] = told_at, since + 1
            return
        self._log.warning("%s", f"{text} ({since} times more since it was told last)" if since else text)
        self._known[text] = now, 0
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
