"""The questions that every SQL store asks in the same way: what can be asked is here, how is the backend's.

A backend has functions for its statements, each of which takes a connection first. Which one it is lent, and
what happens when that fails, is for the store's `_read` to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar

from runstone.core.contract import FETCH_LIMIT
from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.events import Event
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.snapshot import RunSnapshot
from runstone.core.stream import Stream, StreamHead
from runstone.core.tombstone import Resting, Tombstone
from runstone.core.transitions import EffectStatus, RunStatus, ScheduleStatus
from runstone.ports.retention import Expired
from runstone.ports.store import DueSchedule, EffectGroup

_T = TypeVar("_T")

Answer: TypeAlias = _T | Awaitable[_T]
"""At once or awaited, as the backend's driver has it."""


class Reads(Protocol):
    """What a backend's module `reads` answers. `SqlQueries` shows what each function is asked with."""

    def one(self, *args: Any, **kwargs: Any) -> Answer[Any]: ...
    def fetch(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Event]]: ...
    def snapshot(self, *args: Any, **kwargs: Any) -> Answer[RunSnapshot | None]: ...
    def projection(self, *args: Any, **kwargs: Any) -> Answer[RunSnapshot | None]: ...
    def load(self, *args: Any, **kwargs: Any) -> Answer[Stream | None]: ...
    def find_run(self, *args: Any, **kwargs: Any) -> Answer[Run | None]: ...
    def find_signal(self, *args: Any, **kwargs: Any) -> Answer[Signal | None]: ...
    def find_effect(self, *args: Any, **kwargs: Any) -> Answer[Effect | None]: ...
    def list_runs(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Run]]: ...
    def list_effects(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Effect]]: ...
    def effect_groups(self, *args: Any, **kwargs: Any) -> Answer[Sequence[EffectGroup]]: ...
    def list_entities(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Entity]]: ...
    def find_schedule(self, *args: Any, **kwargs: Any) -> Answer[Schedule | None]: ...
    def list_schedules(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Schedule]]: ...
    def due_schedules(self, *args: Any, **kwargs: Any) -> Answer[Sequence[DueSchedule]]: ...
    def rows(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Row]]: ...
    def examine(self, *args: Any, **kwargs: Any) -> Answer[tuple[Stream, Sequence[Row]] | None]: ...
    def heads(self, *args: Any, **kwargs: Any) -> Answer[Sequence[StreamHead]]: ...
    def correlation(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Stream]]: ...
    def next_correlations(self, *args: Any, **kwargs: Any) -> Answer[Sequence[tuple[str, str]]]: ...
    def count_events(self, *args: Any, **kwargs: Any) -> Answer[int]: ...
    def count_runs(self, *args: Any, **kwargs: Any) -> Answer[dict[str, int]]: ...


class RetentionReads(Protocol):
    """The same of its module `retention`."""

    def expired(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Expired]]: ...
    def find(self, *args: Any, **kwargs: Any) -> Answer[Tombstone | None]: ...
    def tombstones(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Tombstone]]: ...
    def graveyard(self, *args: Any, **kwargs: Any) -> Answer[Sequence[Tombstone]]: ...


class SqlQueries(ABC):
    """The part of a store that asks the same of every backend; the store has the rest."""

    _reads: Reads
    _retention: RetentionReads

    @abstractmethod
    async def _read(self, query: Callable[..., Answer[_T]], *arguments: Any) -> _T:
        """Asks on a connection. A store may insist on queries that answer in the way of its own driver."""

    # EventLog and Host

    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        return await self._read(self._reads.fetch, tenant_id, stream_id, after_seq, limit)

    async def snapshot(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return await self._read(self._reads.snapshot, tenant_id, run_id)

    async def project(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return await self._read(self._reads.projection, tenant_id, run_id)

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        return await self._read(self._reads.load, tenant_id, stream_id, after_seq)

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Schedule | None:
        found: Schedule | None = await self._read(self._reads.one, Schedule, tenant_id, stream_id)
        return found

    async def find_schedule(self, tenant_id: str, name: str) -> Schedule | None:
        return await self._read(self._reads.find_schedule, tenant_id, name)

    async def due_schedules(
        self,
        *,
        tasks: Sequence[str],
        until: datetime,
        after: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> Sequence[DueSchedule]:
        return await self._read(self._reads.due_schedules, tasks, until, after, limit)

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        return await self._read(self._retention.find, tenant_id, stream_id, source, run_key)

    # Queries

    async def get_run(self, tenant_id: str, run_id: str) -> Run | None:
        found: Run | None = await self._read(self._reads.one, Run, tenant_id, run_id)
        return found

    async def get_signal(self, tenant_id: str, signal_id: str) -> Signal | None:
        found: Signal | None = await self._read(self._reads.one, Signal, tenant_id, signal_id)
        return found

    async def find_run(self, tenant_id: str, key: str) -> Run | None:
        return await self._read(self._reads.find_run, tenant_id, key)

    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        return await self._read(self._reads.find_signal, tenant_id, source_channel, source_id)

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: RunStatus | None = None,
        handler: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Run]:
        return await self._read(self._reads.list_runs, tenant_id, status, handler, after, limit)

    async def get_effect(self, tenant_id: str, effect_id: str) -> Effect | None:
        found: Effect | None = await self._read(self._reads.one, Effect, tenant_id, effect_id)
        return found

    async def find_effect(self, tenant_id: str, key: str) -> Effect | None:
        return await self._read(self._reads.find_effect, tenant_id, key)

    async def list_effects(
        self,
        tenant_id: str,
        *,
        status: EffectStatus | None = None,
        effect_type: str | None = None,
        error_code: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Effect]:
        filters = (tenant_id, status, effect_type, error_code, after, limit)
        return await self._read(self._reads.list_effects, *filters)

    async def effect_groups(
        self, tenant_id: str, *, status: EffectStatus | None = None
    ) -> Sequence[EffectGroup]:
        return await self._read(self._reads.effect_groups, tenant_id, status)

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
        return await self._read(self._reads.list_entities, tenant_id, entity_type, after, limit)

    async def list_schedules(
        self,
        tenant_id: str,
        *,
        status: ScheduleStatus | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Schedule]:
        return await self._read(self._reads.list_schedules, tenant_id, status, task, after, limit)

    async def rows(self, tenant_id: str, stream_id: str) -> Sequence[Row]:
        return await self._read(self._reads.rows, tenant_id, stream_id)

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        return await self._read(self._reads.examine, tenant_id, stream_id)

    async def heads(self, tenant_id: str, correlation_id: str) -> Sequence[StreamHead]:
        return await self._read(self._reads.heads, tenant_id, correlation_id)

    async def correlation(self, tenant_id: str, correlation_id: str) -> Sequence[Stream]:
        return await self._read(self._reads.correlation, tenant_id, correlation_id)

    async def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        after: tuple[str, str] | None = None
        while page := await self._read(self._reads.next_correlations, after, tenant_id):
            for found in page:
                yield found
            after = page[-1]

    async def count_events(self, tenant_id: str | None = None) -> int:
        return await self._read(self._reads.count_events, tenant_id)

    async def count_runs(self, tenant_id: str | None = None) -> dict[str, int]:
        return await self._read(self._reads.count_runs, tenant_id)

    # Retention

    async def expired(
        self,
        resting: Resting,
        *,
        tenant_id: str | None = None,
        after: Expired | None = None,
        limit: int = 100,
    ) -> Sequence[Expired]:
        return await self._read(self._retention.expired, resting, tenant_id, after, limit)

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        return await self._read(self._retention.tombstones, tenant_id, correlation_id)

    async def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        after: str | None = None
        while page := await self._read(self._retention.graveyard, after, tenant_id):
            for stone in page:
                yield stone
            after = page[-1].stream_id
