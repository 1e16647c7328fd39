"""Stores that hand out runs and effects wrongly: each breaks one rule of claims and leases."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from runstone.core.effect import Effect
from runstone.core.run import QueueEntry
from runstone.ports.store import Claim, EffectClaim
from runstone.testing.memory import MemoryStore
from runstone.testing.memory_data import EffectLease, MemoryStream


class ClaimRaisesNoFence(MemoryStore):
    def _take(self, stream: MemoryStream, entry: QueueEntry, worker_id: str) -> Claim:
        head = stream.head
        claim = super()._take(stream, entry, worker_id)
        stream.head = head
        return msgspec.structs.replace(claim, fence=head.fence)


class OwnersIgnored(MemoryStore):
    def _is_free(self, stream: MemoryStream) -> bool:
        return True


class OthersWorkersUnknown(MemoryStore):
    """Takes every worker for dead whose first claim did not come to this very store."""

    def _is_free(self, stream: MemoryStream) -> bool:
        return super()._is_free(stream) or stream.owner not in self.__dict__.setdefault("mine", set())

    async def claim(self, worker_id: str, **asked: Any) -> Sequence[Claim]:
        self.__dict__.setdefault("mine", set()).add(worker_id)
        return await super().claim(worker_id, **asked)


class LeasesNeverExpire(MemoryStore):
    def _is_free(self, stream: MemoryStream) -> bool:
        return stream.owner is None


class LanesWithoutLimit(MemoryStore):
    def _has_room(self, entry: QueueEntry, now: datetime) -> bool:
        return True


class UnapprovedInLine(MemoryStore):
    """Whoever is in the queue stands in line, due or not."""

    def _has_room(self, entry: QueueEntry, now: datetime) -> bool:
        others = [other for stream in self.data.streams.values() for other in stream.of(QueueEntry)]
        lane = [other for other in others if (other.tenant_id, other.lane) == (entry.tenant_id, entry.lane)]
        before = (other.started or self._place(other) < self._place(entry) for other in lane)
        return sum(before) < entry.lane_limit


class OnlyRunningCounts(MemoryStore):
    """A run that has started and is not due lets others pass."""

    def _has_room(self, entry: QueueEntry, now: datetime) -> bool:
        hidden = [
            stream
            for stream in self.data.streams.values()
            for other in stream.of(QueueEntry)
            if other.started and other.wake_at is None
        ]
        kept = self.data.streams
        self.data.streams = {name: stream for name, stream in kept.items() if stream not in hidden}
        try:
            return super()._has_room(entry, now)
        finally:
            self.data.streams = kept


class RanksNotCompared(MemoryStore):
    async def claim(self, worker_id: str, **asked: Any) -> Sequence[Claim]:
        return await super().claim(worker_id, **asked | {"code_rank": "~"})


class ClaimsAfterReleaseForgotten(MemoryStore):
    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        for _, held in self._held(worker_id, effect_ids):
            held.claims = 0
        return await super().release_effects(worker_id, effect_ids, until=until)


class StraysOfAllReleased(MemoryStore):
    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        owners = {held.owner for _, held in self._entries() if held.owner is not None}
        counts = [
            await super(StraysOfAllReleased, self).release_stray_effects(owner, keeping=keeping, since=since)
            for owner in sorted(owners)
        ]
        return sum(counts)


class StraysCount(MemoryStore):
    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        claims = {effect.id: held.claims for effect, held in self._entries()}
        released = await super().release_stray_effects(worker_id, keeping=keeping, since=since)
        for effect, held in self._entries():
            held.claims = claims[effect.id]
        return released


class StraysForgottenWithTheirLease(MemoryStore):
    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        return await super().release_stray_effects(worker_id, keeping=keeping, since=self._clock.now())


class EffectLeasesIgnored(MemoryStore):
    def _entries(self) -> Iterator[tuple[Effect, EffectLease]]:
        for effect, held in super()._entries():
            held.until = None
            yield effect, held


class OthersLeasesUnknown(MemoryStore):
    """Knows only of effects that were claimed through this very store."""

    def _entries(self) -> Iterator[tuple[Effect, EffectLease]]:
        for effect, held in super()._entries():
            if held.owner not in self.__dict__.setdefault("mine", set()):
                held.until = None
            yield effect, held

    async def claim_effects(self, worker_id: str, **asked: Any) -> Sequence[EffectClaim]:
        self.__dict__.setdefault("mine", set()).add(worker_id)
        return await super().claim_effects(worker_id, **asked)


class RetriesAtOnce(MemoryStore):
    def _entries(self) -> Iterator[tuple[Effect, EffectLease]]:
        for effect, held in super()._entries():
            yield msgspec.structs.replace(effect, next_retry_at=None), held


class TenantsUnbounded(MemoryStore):
    async def claim_effects(self, worker_id: str, **asked: Any) -> Sequence[EffectClaim]:
        return await super().claim_effects(worker_id, **{**asked, "per_tenant": None})


class EffectFenceStays(MemoryStore):
    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        before = {effect.id: held.fence for effect, held in self._entries()}
        released = await super().release_effects(worker_id, effect_ids, until=until)
        for effect, held in self._entries():
            held.fence = before[effect.id]
        return released

    async def claim_effects(self, worker_id: str, **asked: Any) -> Sequence[EffectClaim]:
        before = {effect.id: held.fence or 1 for effect, held in self._entries()}
        claims = await super().claim_effects(worker_id, **asked)
        for effect, held in self._entries():
            held.fence = before[effect.id]
        return [msgspec.structs.replace(claim, fence=before[claim.effect.id]) for claim in claims]


class HeartbeatExtendsNothing(MemoryStore):
    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        until = self.data.workers.get(worker_id)
        news = await super().heartbeat(worker_id, lease=lease)
        if until is not None:
            self.data.workers[worker_id] = until
        return news


class AttemptsKept(MemoryStore):
    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        attempts = {run_id: stream.attempts for run_id, stream in self.data.streams.items()}
        released = await super().release(worker_id, run_ids)
        for run_id, stream in self.data.streams.items():
            stream.attempts = attempts[run_id]
        return released
