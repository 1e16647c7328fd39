"""The parts of the PostgreSQL store that are for maintenance: retention, and how it is doing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from runstone.core.tombstone import Resting, Tombstone
from runstone.ports.clock import Clock
from runstone.ports.health import Problem, Vitals
from runstone.ports.retention import Expired
from runstone.stores.postgres import health, retention

_T = TypeVar("_T")


class PostgresUpkeep:
    """What a store does to itself; `PostgresStore` has the rest."""

    clock: Clock

    async def _read(self, query: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        raise NotImplementedError

    async def expired(
        self,
        resting: Resting,
        *,
        tenant_id: str | None = None,
        after: Expired | None = None,
        limit: int = 100,
    ) -> Sequence[Expired]:
        return await self._read(retention.expired, resting, tenant_id, after, limit)

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        """Asked twice, it finds its own tombstones: a lost answer is no doubt."""
        return await self._read(retention.forget, tombstones)

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        return await self._read(retention.find, tenant_id, stream_id, source, run_key)

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        return await self._read(retention.tombstones, tenant_id, correlation_id)

    async def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        after: str | None = None
        while page := await self._read(retention.graveyard, after, tenant_id):
            for stone in page:
                yield stone
            after = page[-1].stream_id

    async def vitals(self) -> Vitals:
        return await self._read(health.vitals, self.clock.now())

    async def symptoms(self) -> Sequence[Problem]:
        return await self._read(health.problems)
