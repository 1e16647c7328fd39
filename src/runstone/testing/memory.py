"""The reference store: the whole contract in memory, as plainly as it can be said.

It proves that the conformance suite asks for nothing impossible, and serves simulation and tests
that need a store and no disk. `MemoryData` is what a disk would be: whoever opens a store on the
same data finds what was there. An operation awaits its turn and nothing else, so it is atomic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from runstone.core.append import append_write, empty_state, repeated
from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.snapshot import RunSnapshot, project_run, run_snapshot
from runstone.core.step import Step
from runstone.core.stream import Stream
from runstone.errors import StaleSequence
from runstone.ports.store import Committed, FeedItem, FeedPosition, Place
from runstone.testing.memory_claims import MemoryClaims
from runstone.testing.memory_data import MemoryData, name
from runstone.testing.memory_queries import MemoryQueries
from runstone.testing.memory_upkeep import MemoryUpkeep

__all__ = ["MemoryData", "MemoryStore"]


class MemoryStore(MemoryClaims, MemoryQueries, MemoryUpkeep):
    """A store with every part: the log and its feed here, the others in modules of their own."""

    contract_version = "2.0.0"

    # EventLog

    async def append(self, draft: EventDraft) -> AppendResult:
        stream = await self._find(draft.tenant_id, draft.stream_id)
        if stream is not None and (first := stream.by_key.get(draft.idempotency_key)) is not None:
            return repeated(draft, first.run_seq, first.event_type, bytes(first.event_data))
        state = stream.state() if stream else empty_state(draft)
        write, after = append_write(state, draft, stream.head.fence if stream else 0)
        self.data.write(Commit((write,), write.events), self._clock.now())
        self.data.streams[draft.stream_id].folded = after
        return AppendResult(run_seq=write.last_seq, idempotent=False, persisted=True)

    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        stream = await self._find(tenant_id, stream_id)
        return stream.events[after_seq : after_seq + limit] if stream else []

    async def snapshot(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        stream = await self._find(tenant_id, run_id)
        run = next(iter(stream.of(Run)), None) if stream else None
        return run_snapshot(run, stream.of(Step), stream.head.last_seq) if stream and run else None

    async def project(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        stream = await self._find(tenant_id, run_id)
        is_run = stream is not None and stream.head.kind == "RUN"
        return project_run(run_id, tenant_id, stream.events) if stream and is_run else None

    # Commits

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        stream = await self._find(tenant_id, stream_id)
        return stream.whole(after_seq) if stream else None

    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        await self._turn()
        found = [(place, self.data.streams.get(place.stream_id)) for place in places]
        return [
            stream.whole(place.after_seq) if stream and stream.head.tenant_id == place.tenant_id else None
            for place, stream in found
        ]

    async def commit(self, commit: Commit) -> Committed:
        now = await self._turn()
        if all(map(self.data.has, commit.events)):
            return Committed(repeated=True)
        self.data.write(commit, now)
        return Committed()

    # The feed and checkpoints

    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        await self._turn()
        place = bisect_right(self.data.log, after.sequence if after else 0, key=_sequence)
        return self.data.log[place : place + limit]

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        await self._turn()
        self.data.checkpoints[checkpoint.run_id, checkpoint.checkpoint_index] = checkpoint

    async def checkpoints(self, tenant_id: str, run_id: str) -> Sequence[Checkpoint]:
        now = await self._turn()
        kept = self.data.checkpoints.values()
        good = [c for c in kept if (c.tenant_id, c.run_id) == (tenant_id, run_id) and c.expires_at > now]
        return sorted(good, key=lambda checkpoint: -checkpoint.checkpoint_index)

    async def delete_checkpoints(self, *, run_id: str | None = None) -> int:
        now = await self._turn()
        kept = self.data.checkpoints
        gone = [key for key, c in kept.items() if (c.run_id == run_id if run_id else c.expires_at <= now)]
        for key in gone:
            del kept[key]
        return len(gone)

    # Rebuilding

    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        stream = await self._find(tenant_id, stream_id)
        if stream is None or stream.head.last_seq != last_seq:
            raise StaleSequence(stream_id, last_seq, stream.head.last_seq if stream else 0)
        stream.rows = {name(row): row for row in rows}

    async def delete_strays(self) -> int:
        """There are none: rows live inside of their stream."""
        await self._turn()
        return 0


def _sequence(item: FeedItem) -> int:
    return item.position.sequence
