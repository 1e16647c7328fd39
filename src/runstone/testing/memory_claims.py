"""Whose turn it is with what: how the reference store hands out runs and effects, and tells what is due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

from runstone.core.effect import Effect
from runstone.core.run import QueueEntry, Run
from runstone.core.schedule import Schedule
from runstone.ports.store import Claim, DueSchedule, EffectClaim
from runstone.testing.memory_data import EffectLease, MemoryStream
from runstone.testing.memory_part import MemoryPart

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class MemoryClaims(MemoryPart):
    """The queue, the outbox and the calendar."""

    # Runs

    async def claim(
        self, worker_id: str, *, handlers: Sequence[str], code_rank: str, limit: int, lease: timedelta
    ) -> Sequence[Claim]:
        now = await self._turn()
        due = [
            (entry.wake_at, entry, stream)
            for stream in self.data.streams.values()
            if (entry := stream.queue) is not None
            and entry.wake_at is not None
            and entry.wake_at <= now
            and self._is_free(stream)
            and entry.handler in handlers
            and entry.code_rank <= code_rank
            and (entry.lane is None or entry.started or self._has_room(entry, now))
        ]
        due.sort(key=lambda found: found[0])
        self.data.workers[worker_id] = now + lease
        return [self._take(stream, entry, worker_id) for _, entry, stream in due[:limit]]

    def _is_free(self, stream: MemoryStream) -> bool:
        return stream.owner is None or self.data.workers.get(stream.owner, _NEVER) <= self._clock.now()

    def _has_room(self, entry: QueueEntry, now: datetime) -> bool:
        """Whether those under way in its lane and those before it in line are fewer than the limit.

        Who has been claimed stands before who has not; the others stand in the order of their ids. Who is
        not due, for it waits to be approved, does not stand in line.
        """
        place = self._place(entry)
        queued = (other for stream in self.data.streams.values() if (other := stream.queue) is not None)
        lane = (other for other in queued if (other.tenant_id, other.lane) == (entry.tenant_id, entry.lane))
        before = (
            other.started
            or (other.wake_at is not None and other.wake_at <= now and self._place(other) < place)
            for other in lane
        )
        return sum(before) < entry.lane_limit

    def _place(self, entry: QueueEntry) -> tuple[bool, str]:
        return self.data.streams[entry.run_id].owner is None, entry.run_id

    def _take(self, stream: MemoryStream, entry: QueueEntry, worker_id: str) -> Claim:
        stream.owner = worker_id
        stream.attempts += 1
        stream.head = replace(stream.head, fence=stream.head.fence + 1)
        return Claim(
            run_id=entry.run_id,
            tenant_id=entry.tenant_id,
            handler=entry.handler,
            fence=stream.head.fence,
            attempts=stream.attempts,
        )

    def _owned(self, worker_id: str) -> dict[str, MemoryStream]:
        streams = self.data.streams.items()
        return {run_id: stream for run_id, stream in streams if stream.queue and stream.owner == worker_id}

    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        self.data.workers[worker_id] = await self._turn() + lease
        return {run_id: s.queue.news_seq for run_id, s in self._owned(worker_id).items() if s.queue}

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        await self._turn()
        owned = self._owned(worker_id)
        given_back = [stream for run_id, stream in owned.items() if run_ids is None or run_id in run_ids]
        for stream in given_back:
            stream.owner, stream.attempts = None, 0
            stream.head = replace(stream.head, fence=stream.head.fence + 1)
        return len(given_back)

    # Effects

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
        now = await self._turn()
        due: dict[str, list[tuple[datetime, str, Effect, EffectLease]]] = {}
        for effect, held in self._entries():
            ready = ready_at(effect, held)
            if ready is not None and ready <= now and effect.effect_type in types:
                due.setdefault(effect.tenant_id, []).append((ready, effect.id, effect, held))
        queues = []
        for tenant_id, found in sorted(due.items()):
            found.sort(key=lambda one: one[:2])
            room = None if per_tenant is None else max(0, per_tenant - (holding or {}).get(tenant_id, 0))
            queues.append(found[:room])
        claims: list[EffectClaim] = []
        while any(queues) and len(claims) < limit:  # one of each tenant, round after round
            for queue in queues:
                if queue and len(claims) < limit:
                    _, _, effect, held = queue.pop(0)
                    held.owner, held.fence, held.until = worker_id, held.fence + 1, now + lease
                    held.claims += 1
                    claims.append(self._claimed(effect, held))
        return claims

    def _claimed(self, effect: Effect, held: EffectLease) -> EffectClaim:
        run = next(iter(self.data.streams[effect.run_id].of(Run)), None)
        signal_id = None if run is None else run.signal_id
        return EffectClaim(effect=effect, signal_id=signal_id, fence=held.fence, claims=held.claims)

    def _entries(self) -> Iterator[tuple[Effect, EffectLease]]:
        for stream in self.data.streams.values():
            for effect in stream.of(Effect):
                yield effect, stream.lease_of(effect)

    def _held(self, worker_id: str, effect_ids: Sequence[str]) -> list[tuple[Effect, EffectLease]]:
        entries = {effect.id: (effect, held) for effect, held in self._entries()}
        named = (entries[effect_id] for effect_id in effect_ids if effect_id in entries)
        return [(effect, held) for effect, held in named if held.owner == worker_id]

    async def extend_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, lease: timedelta
    ) -> Sequence[EffectClaim]:
        now = await self._turn()
        own = self._held(worker_id, effect_ids)
        for _, held in own:
            held.until = now + lease
        return [self._claimed(effect, held) for effect, held in own]

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        await self._turn()
        own = self._held(worker_id, effect_ids)
        for _, held in own:
            _put_back(held, until)
        return len(own)

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        await self._turn()
        strays = []
        for effect, held in self._entries():
            ready = ready_at(effect, held)
            if held.owner == worker_id and effect.id not in keeping and ready is not None and ready > since:
                strays.append(held)
        for held in strays:
            _put_back(held, None)
        return len(strays)

    # Schedules

    async def due_schedules(
        self,
        *,
        tasks: Sequence[str],
        until: datetime,
        after: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> Sequence[DueSchedule]:
        due = [
            ((schedule.next_at, schedule.id), DueSchedule(schedule=schedule, head=stream.head))
            for stream in await self._all(None)
            for schedule in stream.of(Schedule)
            if schedule.next_at is not None and schedule.next_at <= until and schedule.task in tasks
        ]
        page = [found for found in due if after is None or found[0] > after]
        return [found for _, found in sorted(page, key=lambda one: one[0])[:limit]]


def _put_back(held: EffectLease, until: datetime | None) -> None:
    held.owner, held.fence, held.until = None, held.fence + 1, until
    held.claims = max(held.claims - 1, 0)


def ready_at(effect: Effect, held: EffectLease) -> datetime | None:
    """When an entry may be claimed; none: not as it is."""
    if effect.status not in ("PENDING", "EXECUTING", "FAILED"):
        return None
    due = effect.next_retry_at or effect.requested_at
    return due if held.until is None else max(due, held.until)
