"""The reference store: the whole contract in memory, as plainly as it can be said.

It proves that the conformance suite asks for nothing impossible, and serves simulation and tests
that need a store and no disk. `MemoryData` is what a disk would be: whoever opens a store on the
same data finds what was there. An operation awaits its turn and nothing else, so it is atomic.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from runstone.core.append import append_write, empty_state, repeated
from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import QueueEntry, Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.snapshot import RunSnapshot, project_run, run_snapshot
from runstone.core.step import Step
from runstone.core.stream import Stream, StreamHead
from runstone.core.transitions import EffectStatus, RunStatus, ScheduleStatus
from runstone.errors import StaleSequence, StoreClosed
from runstone.ports.clock import Clock
from runstone.ports.store import (
    Claim,
    Committed,
    DueSchedule,
    EffectClaim,
    EffectGroup,
    FeedItem,
    FeedPosition,
    Place,
)
from runstone.testing.memory_data import EffectLease, MemoryData, MemoryStream, name
from runstone.testing.memory_upkeep import MemoryUpkeep

__all__ = ["MemoryData", "MemoryStore"]

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class MemoryStore(MemoryUpkeep):
    """A store with every part."""

    contract_version = "2.0.0"

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

    async def close(self) -> None:
        self._closed = True

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

    # Host: commits

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

    # Host: claims

    async def claim(
        self, worker_id: str, *, handlers: Sequence[str], code_rank: str, limit: int, lease: timedelta
    ) -> Sequence[Claim]:
        now = await self._turn()
        due = [
            (entry.wake_at, entry, stream)
            for stream in self.data.streams.values()
            for entry in stream.of(QueueEntry)
            if entry.wake_at is not None
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
        others = (other for stream in self.data.streams.values() for other in stream.of(QueueEntry))
        lane = (other for other in others if (other.tenant_id, other.lane) == (entry.tenant_id, entry.lane))
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

    # Host: claims of effects

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
            ready = _ready_at(effect, held)
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
                yield effect, stream.effect_leases.setdefault(effect.id, EffectLease())

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
            held.owner, held.fence, held.until = None, held.fence + 1, until
            held.claims = max(held.claims - 1, 0)
        return len(own)

    # Host: schedules

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

    # Host: the feed and checkpoints

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

    # Queries

    async def _all(self, tenant_id: str | None) -> list[MemoryStream]:
        await self._turn()
        return [s for s in self.data.streams.values() if tenant_id in (None, s.head.tenant_id)]

    async def get_run(self, tenant_id: str, run_id: str) -> Run | None:
        runs = (run for stream in await self._all(tenant_id) for run in stream.of(Run))
        return next((run for run in runs if run.id == run_id), None)

    async def find_run(self, tenant_id: str, key: str) -> Run | None:
        runs = (run for stream in await self._all(tenant_id) for run in stream.of(Run))
        return next((run for run in runs if run.key == key), None)

    async def get_signal(self, tenant_id: str, signal_id: str) -> Signal | None:
        signals = (signal for stream in await self._all(tenant_id) for signal in stream.of(Signal))
        return next((signal for signal in signals if signal.id == signal_id), None)

    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        signals = (signal for stream in await self._all(tenant_id) for signal in stream.of(Signal))
        source = (source_channel, source_id)
        return next((found for found in signals if (found.source_channel, found.source_id) == source), None)

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: RunStatus | None = None,
        handler: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Run]:
        runs = [run for stream in await self._all(tenant_id) for run in stream.of(Run)]
        wanted = [run for run in runs if status in (None, run.status) and handler in (None, run.plan_id)]
        page = [run for run in wanted if after is None or run.id < after]
        return sorted(page, key=lambda run: run.id, reverse=True)[:limit]

    async def _effects(self, tenant_id: str) -> list[Effect]:
        return [effect for stream in await self._all(tenant_id) for effect in stream.of(Effect)]

    async def get_effect(self, tenant_id: str, effect_id: str) -> Effect | None:
        return next((found for found in await self._effects(tenant_id) if found.id == effect_id), None)

    async def find_effect(self, tenant_id: str, key: str) -> Effect | None:
        effects = await self._effects(tenant_id)
        return next((found for found in effects if found.idempotency_key == key), None)

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
        wanted = [
            effect
            for effect in await self._effects(tenant_id)
            if status in (None, effect.status)
            and effect_type in (None, effect.effect_type)
            and error_code in (None, _error_code(effect))
            and (after is None or effect.id < after)
        ]
        return sorted(wanted, key=lambda effect: effect.id, reverse=True)[:limit]

    async def effect_groups(
        self, tenant_id: str, *, status: EffectStatus | None = None
    ) -> Sequence[EffectGroup]:
        effects = [found for found in await self._effects(tenant_id) if status in (None, found.status)]
        counts = Counter((found.status, found.effect_type, _error_code(found)) for found in effects)
        return [
            EffectGroup(status=state, effect_type=kind, error_code=code, count=count)
            for (state, kind, code), count in sorted(
                counts.items(), key=lambda group: (group[0][0], group[0][1], group[0][2] or "")
            )
        ]

    async def get_entity(self, tenant_id: str, stream_id: str) -> Entity | None:
        stream = await self._find(tenant_id, stream_id)
        return next(iter(stream.of(Entity)), None) if stream else None

    async def list_entities(
        self,
        tenant_id: str,
        *,
        entity_type: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Entity]:
        entities = [entity for stream in await self._all(tenant_id) for entity in stream.of(Entity)]
        wanted = [entity for entity in entities if entity_type in (None, entity.entity_type)]
        page = [entity for entity in wanted if after is None or _named(entity) > after]
        return sorted(page, key=_named)[:limit]

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Schedule | None:
        stream = await self._find(tenant_id, stream_id)
        return next(iter(stream.of(Schedule)), None) if stream else None

    async def list_schedules(
        self,
        tenant_id: str,
        *,
        status: ScheduleStatus | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Schedule]:
        schedules = [schedule for stream in await self._all(tenant_id) for schedule in stream.of(Schedule)]
        wanted = [one for one in schedules if status in (None, one.status) and task in (None, one.task)]
        page = [one for one in wanted if after is None or one.name > after]
        return sorted(page, key=lambda schedule: schedule.name)[:limit]

    async def rows(self, tenant_id: str, stream_id: str) -> Sequence[Row]:
        stream = await self._find(tenant_id, stream_id)
        return stream.all_rows() if stream else []

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        stream = await self._find(tenant_id, stream_id)
        return (stream.whole(), stream.all_rows()) if stream else None

    async def correlation(self, tenant_id: str, correlation_id: str) -> Sequence[Stream]:
        streams = await self._all(tenant_id)
        return [stream.whole() for stream in streams if stream.events[0].correlation_id == correlation_id]

    async def heads(self, tenant_id: str, correlation_id: str) -> Sequence[StreamHead]:
        return [stream.head for stream in await self.correlation(tenant_id, correlation_id)]

    async def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        streams = await self._all(tenant_id)
        for found in dict.fromkeys((s.head.tenant_id, s.events[0].correlation_id) for s in streams):
            yield found

    async def count_events(self, tenant_id: str | None = None) -> int:
        return sum(len(stream.events) for stream in await self._all(tenant_id))

    async def count_runs(self, tenant_id: str | None = None) -> dict[str, int]:
        return Counter(run.status for stream in await self._all(tenant_id) for run in stream.of(Run))

    async def self_check(self) -> Sequence[str]:
        await self._turn()
        headless = [stream_id for stream_id, stream in self.data.streams.items() if not stream.events]
        return [f"stream {stream_id} has a head and no events" for stream_id in headless]

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


def _named(entity: Entity) -> tuple[str, str]:
    return entity.entity_type, entity.entity_id


def _ready_at(effect: Effect, held: EffectLease) -> datetime | None:
    """When an entry may be claimed; none: not as it is."""
    if effect.status not in ("PENDING", "EXECUTING", "FAILED"):
        return None
    due = effect.next_retry_at or effect.requested_at
    return due if held.until is None else max(due, held.until)


def _error_code(effect: Effect) -> str | None:
    """The code of an effect's last error."""
    return None if effect.error_details is None else msgspec.json.decode(effect.error_details)["code"]
