"""Stores that answer, keep or forget wrongly: each breaks one rule of reading, of the feed or of upkeep."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from runstone.core.append import append_write
from runstone.core.checkpoint import Checkpoint
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.signal import Signal
from runstone.core.stream import Stream
from runstone.core.tombstone import Resting, Tombstone
from runstone.ports.retention import Expired
from runstone.ports.store import FeedItem, FeedPosition, Place
from runstone.testing.memory import MemoryStore


class LiveRunsExpire(MemoryStore):
    """Looks only at streams that have ended, and takes the others of their correlation for gone."""

    async def expired(self, resting: Resting, **asked: Any) -> Sequence[Expired]:
        streams = self.data.streams
        self.data.streams = {name: stream for name, stream in streams.items() if stream.queue is None}
        try:
            return await super().expired(resting, **asked)
        finally:
            self.data.streams = streams


class ForgetsWhatMovedOn(MemoryStore):
    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        known = (stone for stone in tombstones if stone.stream_id in self.data.streams)
        heads = {stone.stream_id: self.data.streams[stone.stream_id].head for stone in known}
        current = [
            msgspec.structs.replace(stone, last_seq=head.last_seq, head=head.head)
            for stone in tombstones
            if (head := heads.get(stone.stream_id)) is not None
        ]
        return await super().forget(current or tombstones)


class ForgetsLiveRuns(MemoryStore):
    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        self.data.forget(tombstones)
        return True


class TombstonesOfAnybody(MemoryStore):
    async def find_tombstone(self, tenant_id: str, **asked: Any) -> Tombstone | None:
        found = [
            await super(TombstonesOfAnybody, self).find_tombstone(stone.tenant_id, **asked)
            for stone in self.data.tombstones.values()
        ]
        return next((stone for stone in found if stone is not None), None)


class GapUnderConcurrency(MemoryStore):
    """Reads the stream, waits, and writes without looking again."""

    async def append(self, draft: EventDraft) -> AppendResult:
        stream = await self._find(draft.tenant_id, draft.stream_id)
        if stream is None or draft.idempotency_key in stream.by_key:
            return await super().append(draft)
        write, _ = append_write(stream.state(), draft, stream.head.fence)
        await asyncio.sleep(0)
        self.data._apply(write)
        self.data._store(stream, write.events[0], self._clock.now())
        return AppendResult(run_seq=write.last_seq, idempotent=False, persisted=True)


class ConflictNotFlagged(MemoryStore):
    async def append(self, draft: EventDraft) -> AppendResult:
        return msgspec.structs.replace(await super().append(draft), conflict=False)


class FetchOneTooFew(MemoryStore):
    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        return await super().fetch(tenant_id, stream_id, after_seq=after_seq, limit=limit - (limit > 1))


class FetchForAnybody(MemoryStore):
    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        stream = self.data.streams.get(stream_id)
        owner = stream.head.tenant_id if stream else tenant_id
        return await super().fetch(owner, stream_id, after_seq=after_seq, limit=limit)


class SignalsOfAnybody(MemoryStore):
    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        for stream in self.data.streams.values():
            for signal in stream.of(Signal):
                if (signal.source_channel, signal.source_id) == (source_channel, source_id):
                    return signal
        return None


class LastStreamLostAtClosing(MemoryStore):
    async def close(self) -> None:
        await super().close()
        if self.data.streams:
            self.data.streams.popitem()


class TornLoad(MemoryStore):
    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        before = await super().load(tenant_id, stream_id, after_seq=after_seq)
        await asyncio.sleep(0)
        after = await super().load(tenant_id, stream_id, after_seq=after_seq)
        return Stream(head=before.head, events=after.events) if before and after else None


class ManyLoadedOneByOne(MemoryStore):
    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        return [
            await self.load(place.tenant_id, place.stream_id, after_seq=place.after_seq) for place in places
        ]


class ManyLoadedForAnybody(MemoryStore):
    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        found = [(place, self.data.streams.get(place.stream_id)) for place in places]
        return [stream.whole(place.after_seq) if stream else None for place, stream in found]


class FeedByStream(MemoryStore):
    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        page = list(await super().feed(after, limit=limit))
        return sorted(page, key=lambda item: item.event.stream_id)


class FeedSkipsRestOfCommit(MemoryStore):
    """Takes the commit for the position: a page that ends inside of one loses the rest."""

    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        await self._turn()
        passed = after.transaction if after else 0
        return [item for item in self.data.log if item.position.transaction > passed][:limit]


class ExpiredCheckpointsKept(MemoryStore):
    async def checkpoints(self, tenant_id: str, run_id: str) -> Sequence[Checkpoint]:
        kept = [c for c in self.data.checkpoints.values() if (c.tenant_id, c.run_id) == (tenant_id, run_id)]
        return sorted(kept, key=lambda checkpoint: -checkpoint.checkpoint_index)


class OldestRunsFirst(MemoryStore):
    async def list_runs(self, tenant_id: str, **filters: Any) -> Sequence[Run]:
        return list(reversed(await super().list_runs(tenant_id, **filters)))


class RebuildDropsOwner(MemoryStore):
    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        await super().replace_rows(tenant_id, stream_id, last_seq, rows)
        self.data.streams[stream_id].owner = None
