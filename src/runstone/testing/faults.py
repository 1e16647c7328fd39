"""A store that fails when it is told to, around any store that works.

Operations are counted from 1. The one that the plan names fails, all others pass through, so a
test can walk the number upward until no fault is hit: then every operation has failed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

import msgspec

from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.snapshot import RunSnapshot
from runstone.core.stream import Stream, StreamHead
from runstone.core.tombstone import Resting, Tombstone
from runstone.core.transitions import EffectStatus, RunStatus, ScheduleStatus
from runstone.errors import OutcomeUnknown, StoreBusy
from runstone.ports.health import Problem, Vitals
from runstone.ports.retention import Expired
from runstone.ports.store import (
    Claim,
    Committed,
    DueSchedule,
    EffectClaim,
    EffectGroup,
    FeedItem,
    FeedPosition,
    Place,
    Store,
)

_T = TypeVar("_T")


class Fault(Enum):
    """How an operation fails."""

    REFUSED = "it is not applied, and says so: StoreBusy"
    ANSWER_LOST = "it is applied, and the answer is lost: OutcomeUnknown"
    CANCELLED_BEFORE = "its caller is cancelled, and it is not applied"
    CANCELLED_AFTER = "its caller is cancelled, and it is applied"
    CANCELLED_MIDWAY = "it is cancelled under way, and the store decides what becomes of it"


class FaultPlan(msgspec.Struct, frozen=True):
    """Which operation fails, and how."""

    at: int
    fault: Fault


class FaultyStore:
    """Any store, with one operation that fails."""

    def __init__(self, store: Store, plan: FaultPlan) -> None:
        self.store = store
        self.plan = plan
        self.operations = 0
        """How many were asked for so far."""

    @property
    def contract_version(self) -> str:
        return self.store.contract_version

    @property
    def hit(self) -> bool:
        """Whether the plan's operation has been reached."""
        return self.operations >= self.plan.at

    async def _do(self, operation: Coroutine[Any, Any, _T]) -> _T:
        self.operations += 1
        if self.operations != self.plan.at:
            return await operation
        if self.plan.fault in (Fault.REFUSED, Fault.CANCELLED_BEFORE):
            operation.close()
        elif self.plan.fault is Fault.CANCELLED_MIDWAY:
            await _cancel_midway(operation)
        else:
            await operation
        if self.plan.fault is Fault.REFUSED:
            raise StoreBusy("As planned: not applied")
        if self.plan.fault is Fault.ANSWER_LOST:
            raise OutcomeUnknown("As planned: applied, and the answer is lost")
        raise asyncio.CancelledError("As planned")

    # EventLog

    async def append(self, draft: EventDraft) -> AppendResult:
        return await self._do(self.store.append(draft))

    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        return await self._do(self.store.fetch(tenant_id, stream_id, after_seq=after_seq, limit=limit))

    async def snapshot(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return await self._do(self.store.snapshot(tenant_id, run_id))

    async def project(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return await self._do(self.store.project(tenant_id, run_id))

    async def close(self) -> None:
        """Never fails, and does not count."""
        await self.store.close()

    # Host

    async def commit(self, commit: Commit) -> Committed:
        async def submit() -> Committed:
            return await self.store.commit(commit)

        return await self._do(submit())

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        return await self._do(self.store.load(tenant_id, stream_id, after_seq=after_seq))

    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        return await self._do(self.store.load_many(places))

    async def claim(
        self, worker_id: str, *, handlers: Sequence[str], code_rank: str, limit: int, lease: timedelta
    ) -> Sequence[Claim]:
        return await self._do(
            self.store.claim(worker_id, handlers=handlers, code_rank=code_rank, limit=limit, lease=lease)
        )

    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        return await self._do(self.store.heartbeat(worker_id, lease=lease))

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        return await self._do(self.store.release(worker_id, run_ids))

    async def claim_effects(
        self,
        worker_id: str,
        *,
        types: Sequence[str],
        limit: int,
        lease: timedelta,
        per_tenant: int | None = None,
        holding: Mapping[str, int] | None = None,
    ) -> Sequence[EffectClaim]:
        return await self._do(
            self.store.claim_effects(
                worker_id, types=types, limit=limit, lease=lease, per_tenant=per_tenant, holding=holding
            )
        )

    async def extend_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, lease: timedelta
    ) -> Sequence[EffectClaim]:
        return await self._do(self.store.extend_effects(worker_id, effect_ids, lease=lease))

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        return await self._do(self.store.release_effects(worker_id, effect_ids, until=until))

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        return await self._do(self.store.release_stray_effects(worker_id, keeping=keeping, since=since))

    async def due_schedules(
        self,
        *,
        tasks: Sequence[str],
        until: datetime,
        after: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> Sequence[DueSchedule]:
        return await self._do(self.store.due_schedules(tasks=tasks, until=until, after=after, limit=limit))

    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        return await self._do(self.store.feed(after, limit=limit))

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        await self._do(self.store.put_checkpoint(checkpoint))

    async def checkpoints(self, tenant_id: str, run_id: str) -> Sequence[Checkpoint]:
        return await self._do(self.store.checkpoints(tenant_id, run_id))

    async def delete_checkpoints(self, *, run_id: str | None = None) -> int:
        return await self._do(self.store.delete_checkpoints(run_id=run_id))

    # Queries and rebuilds

    async def get_run(self, tenant_id: str, run_id: str) -> Run | None:
        return await self._do(self.store.get_run(tenant_id, run_id))

    async def get_signal(self, tenant_id: str, signal_id: str) -> Signal | None:
        return await self._do(self.store.get_signal(tenant_id, signal_id))

    async def find_run(self, tenant_id: str, key: str) -> Run | None:
        return await self._do(self.store.find_run(tenant_id, key))

    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        return await self._do(self.store.find_signal(tenant_id, source_channel, source_id))

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: RunStatus | None = None,
        handler: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Run]:
        return await self._do(
            self.store.list_runs(tenant_id, status=status, handler=handler, after=after, limit=limit)
        )

    async def get_effect(self, tenant_id: str, effect_id: str) -> Effect | None:
        return await self._do(self.store.get_effect(tenant_id, effect_id))

    async def find_effect(self, tenant_id: str, key: str) -> Effect | None:
        return await self._do(self.store.find_effect(tenant_id, key))

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
        return await self._do(
            self.store.list_effects(
                tenant_id,
                status=status,
                effect_type=effect_type,
                error_code=error_code,
                after=after,
                limit=limit,
            )
        )

    async def effect_groups(
        self, tenant_id: str, *, status: EffectStatus | None = None
    ) -> Sequence[EffectGroup]:
        return await self._do(self.store.effect_groups(tenant_id, status=status))

    async def get_entity(self, tenant_id: str, stream_id: str) -> Entity | None:
        return await self._do(self.store.get_entity(tenant_id, stream_id))

    async def list_entities(
        self,
        tenant_id: str,
        *,
        entity_type: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Entity]:
        return await self._do(
            self.store.list_entities(tenant_id, entity_type=entity_type, after=after, limit=limit)
        )

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Schedule | None:
        return await self._do(self.store.get_schedule(tenant_id, stream_id))

    async def find_schedule(self, tenant_id: str, name: str) -> Schedule | None:
        return await self._do(self.store.find_schedule(tenant_id, name))

    async def list_schedules(
        self,
        tenant_id: str,
        *,
        status: ScheduleStatus | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Schedule]:
        return await self._do(
            self.store.list_schedules(tenant_id, status=status, task=task, after=after, limit=limit)
        )

    async def rows(self, tenant_id: str, stream_id: str) -> Sequence[Row]:
        return await self._do(self.store.rows(tenant_id, stream_id))

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        return await self._do(self.store.examine(tenant_id, stream_id))

    async def correlation(self, tenant_id: str, correlation_id: str) -> Sequence[Stream]:
        return await self._do(self.store.correlation(tenant_id, correlation_id))

    async def heads(self, tenant_id: str, correlation_id: str) -> Sequence[StreamHead]:
        return await self._do(self.store.heads(tenant_id, correlation_id))

    def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        """An iterator is no operation: it passes through."""
        return self.store.correlations(tenant_id)

    async def count_events(self, tenant_id: str | None = None) -> int:
        return await self._do(self.store.count_events(tenant_id))

    async def count_runs(self, tenant_id: str | None = None) -> dict[str, int]:
        return await self._do(self.store.count_runs(tenant_id))

    async def self_check(self) -> Sequence[str]:
        return await self._do(self.store.self_check())

    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        await self._do(self.store.replace_rows(tenant_id, stream_id, last_seq, rows))

    async def delete_strays(self) -> int:
        return await self._do(self.store.delete_strays())

    # Retention and health

    async def expired(
        self,
        resting: Resting,
        *,
        tenant_id: str | None = None,
        after: Expired | None = None,
        limit: int = 100,
    ) -> Sequence[Expired]:
        return await self._do(self.store.expired(resting, tenant_id=tenant_id, after=after, limit=limit))

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        return await self._do(self.store.forget(tombstones))

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        return await self._do(
            self.store.find_tombstone(tenant_id, stream_id=stream_id, source=source, run_key=run_key)
        )

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        return await self._do(self.store.tombstones(tenant_id, correlation_id))

    def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        """An iterator is no operation: it passes through."""
        return self.store.graveyard(tenant_id)

    async def vitals(self) -> Vitals:
        return await self._do(self.store.vitals())

    async def symptoms(self) -> Sequence[Problem]:
        return await self._do(self.store.symptoms())


async def _cancel_midway(operation: Coroutine[Any, Any, object]) -> None:
    """Cancels the operation where it first waits for something."""
    task = asyncio.ensure_future(operation)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # looked at, so that nobody warns of it
