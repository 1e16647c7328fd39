"""How the reference store forgets what was archived, and how it says that it is doing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime

from runstone.core.effect import Effect
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.tombstone import Resting, Tombstone, check_whole, last_at, objection, unfinished
from runstone.errors import CommitRefused
from runstone.ports.health import Backlog, DueRuns, LostWorker, Problem, Stuck, Unfired, Vitals
from runstone.ports.retention import Expired, oldest
from runstone.testing.memory_data import MemoryStream
from runstone.testing.memory_part import MemoryPart


class MemoryUpkeep(MemoryPart):
    """The parts for maintenance."""

    # Retention

    async def expired(
        self,
        resting: Resting,
        *,
        tenant_id: str | None = None,
        after: Expired | None = None,
        limit: int = 100,
    ) -> Sequence[Expired]:
        await self._turn()
        together: dict[tuple[str, str], list[MemoryStream]] = {}
        for stream in self.data.streams.values():
            if tenant_id in (None, stream.head.tenant_id):
                place = stream.head.tenant_id, stream.events[0].correlation_id
                together.setdefault(place, []).append(stream)
        found = [
            _expired(place, streams)
            for place, streams in together.items()
            if objection([stream.whole() for stream in streams], resting) is None
        ]
        return oldest([one for one in found if after is None or _place(one) > _place(after)], limit)

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        await self._turn()
        tenant_id, correlation_id = tombstones[0].tenant_id, tombstones[0].correlation_id
        streams = [
            stream
            for stream in self.data.streams.values()
            if (stream.head.tenant_id, stream.events[0].correlation_id) == (tenant_id, correlation_id)
        ]
        if not streams and all(stone.same(self.data.tombstones.get(stone.stream_id)) for stone in tombstones):
            return False
        check_whole(tombstones, [stream.head for stream in streams])
        reason = unfinished(stream.whole() for stream in streams)
        if reason is not None:
            raise CommitRefused(f"Correlation {correlation_id} stays, for {reason}")
        self.data.forget(tombstones)
        return True

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        await self._turn()
        for stone in self.data.tombstones.values():
            known_by = (
                stream_id == stone.stream_id,
                source is not None and source == (stone.source_channel, stone.source_id),
                run_key is not None and run_key == stone.run_key,
            )
            if stone.tenant_id == tenant_id and any(known_by):
                return stone
        return None

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        return [stone async for stone in self.graveyard(tenant_id) if stone.correlation_id == correlation_id]

    async def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        await self._turn()
        for _, stone in sorted(self.data.tombstones.items()):
            if tenant_id in (None, stone.tenant_id):
                yield stone

    # Health

    async def vitals(self) -> Vitals:
        now = await self._turn()
        streams = self.data.streams.values()
        return Vitals(
            now=now,
            latest=self.data.log[-1].event.persisted_at if self.data.log else None,
            lost_workers=tuple(self._lost_workers(now)),
            due_runs=tuple(self._due_runs(now)),
            due_effects=_backlog(self._due_effects(), now),
            dead_letters=_effects(streams, "DEAD_LETTER"),
            unknown_effects=_effects(streams, "UNKNOWN"),
            paused=tuple(_stuck(streams)),
            unfired=tuple(_unfired(streams, now)),
            tenants=Counter(run.tenant_id for stream in streams for run in stream.of(Run)),
        )

    def _is_lost(self, owner: str | None, now: datetime) -> bool:
        return owner is not None and (owner not in self.data.workers or self.data.workers[owner] <= now)

    def _lost_workers(self, now: datetime) -> Iterable[LostWorker]:
        owners = Counter(stream.owner for stream in self.data.streams.values() if stream.queue)
        for owner, runs in sorted(owners.items(), key=str):
            if owner is not None and self._is_lost(owner, now):
                yield LostWorker(worker_id=owner, lease_until=self.data.workers.get(owner), runs=runs)

    def _due_runs(self, now: datetime) -> Iterable[DueRuns]:
        due: dict[tuple[str, str], list[tuple[datetime, str, str]]] = {}
        for stream in self.data.streams.values():
            queue, free = stream.queue, not stream.owner or self._is_lost(stream.owner, now)
            if queue and queue.wake_at and queue.wake_at <= now and free:
                (run,) = stream.of(Run)
                wanted = (queue.handler, run.orchestrator_version)
                due.setdefault(wanted, []).append((queue.wake_at, run.id, run.tenant_id))
        for (handler, version), found in sorted(due.items()):
            since, run_id, owner = min(found)
            yield DueRuns(
                handler=handler,
                version=version,
                count=len(found),
                since=since,
                example=run_id,
                tenant_id=owner,
            )

    def _due_effects(self) -> Iterable[tuple[datetime, str, str]]:
        for stream in self.data.streams.values():
            for effect in stream.of(Effect):
                if effect.status in ("PENDING", "EXECUTING", "FAILED"):
                    lease = stream.effect_leases.get(effect.id)
                    due = effect.next_retry_at or effect.requested_at
                    until = max(due, lease.until) if lease and lease.until else due
                    yield until, effect.id, effect.tenant_id

    async def symptoms(self) -> Sequence[Problem]:
        """There is nothing below it."""
        await self._turn()
        return []


def _place(found: Expired) -> tuple[datetime, str]:
    return found.began_at, found.first_id


def _expired(place: tuple[str, str], streams: Sequence[MemoryStream]) -> Expired:
    began = [(signal.ingested_at, signal.id) for stream in streams for signal in stream.of(Signal)]
    began += [(schedule.created_at, schedule.id) for stream in streams for schedule in stream.of(Schedule)]
    began_at, first_id = min(began)
    return Expired(
        tenant_id=place[0],
        correlation_id=place[1],
        first_id=first_id,
        began_at=began_at,
        streams=len(streams),
        events=sum(stream.head.last_seq for stream in streams),
        last_at=last_at(stream.whole() for stream in streams),
    )


def _backlog(due: Iterable[tuple[datetime, str, str]], now: datetime) -> Backlog:
    late = [one for one in due if one[0] <= now]
    if not late:
        return Backlog()
    since, effect_id, owner = min(late)
    return Backlog(count=len(late), since=since, example=effect_id, tenant_id=owner)


def _effects(streams: Iterable[MemoryStream], status: str) -> Counter[str]:
    return Counter(
        effect.tenant_id for stream in streams for effect in stream.of(Effect) if effect.status == status
    )


def _stuck(streams: Iterable[MemoryStream]) -> Iterable[Stuck]:
    reasons: dict[str, list[tuple[str, str]]] = {}
    for stream in streams:
        for run in stream.of(Run):
            if run.status == "PAUSED":
                paused = [event for event in stream.events if event.event_type == "RUN_PAUSED"][-1]
                reason = json.loads(bytes(paused.event_data))["reason"]
                reasons.setdefault(reason, []).append((run.id, run.tenant_id))
    for reason, found in sorted(reasons.items()):
        run_id, owner = min(found)
        yield Stuck(reason=reason, count=len(found), example=run_id, tenant_id=owner)


def _unfired(streams: Iterable[MemoryStream], now: datetime) -> Iterable[Unfired]:
    tasks: dict[str, list[tuple[datetime, str, str, str]]] = {}
    for stream in streams:
        for schedule in stream.of(Schedule):
            if schedule.next_at is not None and schedule.next_at <= now:
                late = schedule.next_at, schedule.id, schedule.name, schedule.tenant_id
                tasks.setdefault(schedule.task, []).append(late)
    for task, due in sorted(tasks.items()):
        since, _, name, owner = min(due)
        yield Unfired(task=task, count=len(due), since=since, example=name, tenant_id=owner)
