"""What every part of the reference store stands on: the data, the clock, and an operation's turn."""

from __future__ import annotations

import asyncio
from datetime import datetime

from runstone.errors import StoreClosed
from runstone.ports.clock import Clock
from runstone.testing.memory_data import MemoryData, MemoryStream


class MemoryPart:
    """Looks streams up, one operation at a time."""

    def __init__(self, data: MemoryData, *, clock: Clock) -> None:
        self.data = data
        self._clock = clock
        self._closed = False

    async def _turn(self) -> datetime:
        """Lets others go first, as any real store would; gives the time of this operation."""
        await asyncio.sleep(0)
        if self._closed:
            raise StoreClosed
        return self._clock.now()

    async def _find(self, tenant_id: str, stream_id: str) -> MemoryStream | None:
        await self._turn()
        stream = self.data.streams.get(stream_id)
        return stream if stream is not None and stream.head.tenant_id == tenant_id else None

    async def _all(self, tenant_id: str | None) -> list[MemoryStream]:
        await self._turn()
        return [s for s in self.data.streams.values() if tenant_id in (None, s.head.tenant_id)]

    async def close(self) -> None:
        self._closed = True
