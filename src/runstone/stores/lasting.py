"""Questions about what outlives runs, entities and schedules: asked in the same way of every SQL store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from runstone.core.entity import Entity
from runstone.core.schedule import Schedule
from runstone.core.transitions import ScheduleStatus
from runstone.ports.store import DueSchedule


class LastingRows:
    """The part of a store that finds entities and schedules; the store has the rest."""

    _reads: Any
    """The module with its queries."""

    async def _read(self, query: Callable[..., Any], *arguments: Any) -> Any:
        raise NotImplementedError

    async def get_entity(self, tenant_id: str, stream_id: str) -> Entity | None:
        found: Entity | None = await self._read(self._reads.one, Entity, tenant_id, stream_id)
        return found

    async def list_entities(
        self,
        tenant_id: str,
        *,
        entity_type: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Entity]:
        found: Sequence[Entity] = await self._read(
            self._reads.list_entities, tenant_id, entity_type, after, limit
        )
        return found

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Schedule | None:
        found: Schedule | None = await self._read(self._reads.one, Schedule, tenant_id, stream_id)
        return found

    async def list_schedules(
        self,
        tenant_id: str,
        *,
        status: ScheduleStatus | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Schedule]:
        found: Sequence[Schedule] = await self._read(
            self._reads.list_schedules, tenant_id, status, task, after, limit
        )
        return found

    async def due_schedules(
        self,
        *,
        tasks: Sequence[str],
        until: datetime,
        after: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> Sequence[DueSchedule]:
        found: Sequence[DueSchedule] = await self._read(self._reads.due_schedules, tasks, until, after, limit)
        return found
