"""Results of tools that say how long they hold: in the process, apart for each tenant (§IDM-29 to §IDM-31).

Only whether the tool is asked again depends on it. What a step was answered stands in the log, and
replay reads it there.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

from msgspec import Raw

from runstone.core.keys import tool_cache_key
from runstone.ports.clock import Clock

MOST: Final = 10_000
"""How many results are kept; the one that was asked for the longest ago goes first."""


class ResultCache:
    """What tools returned, for as long as it holds."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._kept: OrderedDict[str, tuple[datetime, Raw]] = OrderedDict()

    def find(self, tenant_id: str, tool: str, arguments: Raw) -> Raw | None:
        """A result that still holds."""
        key = tool_cache_key(tenant_id, tool, arguments)
        until, result = self._kept.get(key, (None, None))
        if until is None or until <= self._clock.now():
            self._kept.pop(key, None)
            return None
        self._kept.move_to_end(key)
        return result

    def keep(self, tenant_id: str, tool: str, arguments: Raw, result: Raw, holds: timedelta) -> None:
        """Keeps a result for so long."""
        key = tool_cache_key(tenant_id, tool, arguments)
        self._kept[key] = (self._clock.now() + holds, result)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
