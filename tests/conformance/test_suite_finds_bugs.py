"""The suites find what they are there for: each bug planted here breaks one rule, and one of their tests."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from runstone.core import codec
from runstone.core.append import append_write
from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit, Hold, StreamWrite
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.effect import Effect
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import QueueEntry, Run
from runstone.core.signal import Signal
from runstone.core.step import Step
from runstone.core.stream import Stream
from runstone.core.tombstone import Resting, Tombstone
from runstone.errors import RunstoneError, StaleFence, StaleSequence
from runstone.ports.clock import Clock
from runstone.ports.retention import Expired
from runstone.ports.store import Claim, EffectClaim, FeedItem, FeedPosition, Place
from runstone.testing.conformance import (
    EventLogSuite,
    HealthSuite,
    HostSuite,
    OpenStore,
    QueriesSuite,
    RetentionSuite,
)
from runstone.testing.conformance.scene import open_scene
from runstone.testing.faults import Fault
from runstone.testing.memory import MemoryData, MemoryStore
from runstone.testing.memory_data import EffectLease, MemoryStream
from runstone.testing.memory_data import name as row_name

LOG, HOST, QUERIES, RETENTION = EventLogSuite(), HostSuite(), QueriesSuite(), RetentionSuite()

# What is wrong with the data


class FenceNotChecked(MemoryData):
    def _check_head(self, write: StreamWrite) -> None:
        with suppress(StaleFence):
            super()._check_head(write)


class SequenceNotCompared(MemoryData):
    def _check_head(self, write: StreamWrite) -> None:
        with suppress(StaleSequence):
            super()._check_head(write)


class StreamsWrittenOneByOne(MemoryData):
    def write(self, commit: Commit, now: datetime) -> None:
        for write in commit.writes:
            super().write(Commit((write,), write.events), now)


class TenantsJoined(MemoryData):
    def write(self, commit: Commit, now: datetime) -> None:
        tenants = {write.tenant_id for write in commit.writes}
        for tenant_id in tenants:
            writes = tuple(write for write in commit.writes if write.tenant_id == tenant_id)
            events = tuple(event for event in commit.events if event.tenant_id == tenant_id)
            super().write(Commit(writes, events), now)


class DuplicateKeysIgnored(MemoryData):
    def _check_keys(self, rows: Any) -> dict[tuple[str, ...], str]:
        return {}


class EventIdsNotChecked(MemoryData):
    def _check_events(self, events: Any) -> None:
        self.event_ids.clear()
        super()._check_events(events)


class KeysOfAllTenantsTogether(MemoryData):
    def _check_keys(self, rows: Any) -> dict[tuple[str, ...], str]:
        return super()._check_keys(msgspec.structs.replace(row, tenant_id="anybody") for row in rows)


class FrozenRowsThaw(MemoryData):
    def _check_rows(self, write: StreamWrite) -> None:
        pass


class LandedCommitsForgotten(MemoryData):
    def has(self, event: Event) -> bool:
        return False


class LandedKnownById(MemoryData):
    """A commit counts as landed when its event ids are there, whatever its events say."""

    def has(self, event: Event) -> bool:
        return event.id in self.event_ids


class AnswersDoNotWake(MemoryData):
    """Whoever commits without a lease changes nothing in the queue: a wake-up that is lost."""

    def _apply(self, write: StreamWrite) -> None:
        own = write.lease is not None or write.expected_seq == 0
        super()._apply(write if own else msgspec.structs.replace(write, queue_changed=False))


class LeaseLostBesideOthers(MemoryData):
    def _apply(self, write: StreamWrite) -> None:
        super()._apply(write)
        if write.queue_changed and write.lease is None:
            self.streams[write.stream_id].owner = None


class JsonRewritten(MemoryData):
    def _store(self, stream: MemoryStream, event: Event, now: datetime) -> None:
        tidy = Raw(codec.encode(msgspec.json.decode(event.event_data)))
        super()._store(stream, msgspec.structs.replace(event, event_data=tidy), now)


class StepsNeverUpdated(MemoryData):
    def _apply(self, write: StreamWrite) -> None:
        known = self.streams[write.stream_id].rows if write.stream_id in self.streams else {}
        rows = tuple(row for row in write.rows if not (isinstance(row, Step) and row_name(row) in known))
        super()._apply(msgspec.structs.replace(write, rows=rows))


class TombstonesForgotten(MemoryData):
    """What was archived is gone, and whatever comes again is new."""

    def forget(self, stones: Iterable[Tombstone]) -> None:
        super().forget(stones)
        self.tombstones.clear()


class SourcesForgotten(MemoryData):
    def forget(self, stones: Iterable[Tombstone]) -> None:
        super().forget(msgspec.structs.replace(stone, source_id=None, run_key=None) for stone in stones)


class TombstonesStay(MemoryData):
    def _apply(self, write: StreamWrite) -> None:
        stones = dict(self.tombstones)
        super()._apply(write)
        self.tombstones |= stones


class AnyStreamComesBack(MemoryData):
    def _check_tombstone(self, write: StreamWrite) -> None:
        pass


class FeedStartsAnew(MemoryData):
    """Numbers of events that are gone are given again."""

    def forget(self, stones: Iterable[Tombstone]) -> None:
        super().forget(stones)
        self.events = len(self.log)


# What is wrong with the store


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


class HoldsNotCompared(MemoryData):
    def _check_holds(self, write: StreamWrite) -> None:
        pass


class HoldsNeverEnd(MemoryData):
    def _end_hold(self, stream: MemoryStream, hold: Hold) -> None:
        pass


class OutcomesKeepTheClaims(MemoryData):
    def _end_hold(self, stream: MemoryStream, hold: Hold) -> None:
        claims = stream.effect_leases[hold.effect_id].claims
        super()._end_hold(stream, hold)
        stream.effect_leases[hold.effect_id].claims = claims


class ClaimsAfterReleaseForgotten(MemoryStore):
    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        for _, held in self._held(worker_id, effect_ids):
            held.claims = 0
        return await super().release_effects(worker_id, effect_ids, until=until)


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


Planted = type[MemoryData] | type[MemoryStore]
Proof = Callable[..., Awaitable[object]]


@dataclass(frozen=True)
class Bug:
    """A planted bug, and the test that has to find it."""

    planted: Planted
    found_by: Proof
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.planted.__name__}-{self.found_by.__name__}"


def bug(planted: Planted, found_by: Proof, **arguments: Any) -> Bug:
    return Bug(planted, found_by, arguments)


def opener(planted: Planted) -> OpenStore:
    """Opens stores that have the bug, all on the same data."""
    store = planted if issubclass(planted, MemoryStore) else MemoryStore
    data = planted() if issubclass(planted, MemoryData) else MemoryData()

    async def open_store(clock: Clock) -> MemoryStore:
        return store(data, clock=clock)

    return open_store


BUGS = [
    bug(FenceNotChecked, HOST.test_a_stale_fence_is_refused),
    bug(SequenceNotCompared, HOST.test_a_stale_sequence_is_refused_and_can_be_decided_again),
    bug(StreamsWrittenOneByOne, HOST.test_nothing_is_written_when_one_stream_is_stale, stale=1),
    bug(StreamsWrittenOneByOne, HOST.test_nothing_is_written_when_one_stream_has_a_duplicate),
    bug(TenantsJoined, HOST.test_a_commit_belongs_to_one_tenant),
    bug(DuplicateKeysIgnored, HOST.test_source_ids_are_unique_in_their_channel),
    bug(DuplicateKeysIgnored, HOST.test_effect_keys_are_unique_in_their_tenant),
    bug(DuplicateKeysIgnored, HOST.test_run_keys_are_unique_in_their_tenant),
    bug(DuplicateKeysIgnored, HOST.test_a_run_request_is_unique),
    bug(DuplicateKeysIgnored, HOST.test_a_commit_cannot_hold_the_same_key_twice),
    bug(KeysOfAllTenantsTogether, HOST.test_effect_keys_are_unique_in_their_tenant),
    bug(EventIdsNotChecked, HOST.test_event_ids_are_unique_over_all_tenants),
    bug(EventIdsNotChecked, LOG.test_an_event_id_is_unique_over_all_tenants),
    bug(FrozenRowsThaw, HOST.test_a_row_that_has_ended_is_frozen, entity="effect"),
    bug(FrozenRowsThaw, HOST.test_a_row_moves_only_where_its_machine_leads),
    bug(LandedCommitsForgotten, HOST.test_a_commit_that_landed_is_repeated),
    bug(LandedCommitsForgotten, HOST.test_a_commit_submitted_many_times_at_once_is_written_once),
    bug(LandedKnownById, HOST.test_an_event_cannot_be_replaced),
    bug(AnswersDoNotWake, HOST.test_an_answer_after_the_suspension_wakes),
    bug(AnswersDoNotWake, HOST.test_an_answer_is_never_lost_whoever_is_faster),
    bug(LeaseLostBesideOthers, HOST.test_a_commit_without_a_lease_leaves_it_alone),
    bug(JsonRewritten, LOG.test_hostile_payloads_come_back_byte_for_byte),
    bug(JsonRewritten, HOST.test_hostile_payloads_are_committed_byte_for_byte),
    bug(StepsNeverUpdated, QUERIES.test_rows_are_the_fold_after_every_commit),
    bug(StepsNeverUpdated, LOG.test_the_usual_run_is_shown_as_it_went),
    bug(GapUnderConcurrency, LOG.test_fifty_blind_writers_leave_no_gap),
    bug(ConflictNotFlagged, LOG.test_a_key_on_record_with_other_content_is_a_conflict),
    bug(FetchOneTooFew, LOG.test_fetch_gives_pages_in_order),
    bug(FetchOneTooFew, LOG.test_fetch_gives_a_thousand_events_unless_told_otherwise),
    bug(FetchForAnybody, LOG.test_a_tenant_sees_nothing_of_another),
    bug(SignalsOfAnybody, QUERIES.test_no_question_leads_to_another_tenant),
    bug(LastStreamLostAtClosing, HOST.test_acknowledged_commits_are_there_after_a_restart),
    bug(LastStreamLostAtClosing, LOG.test_acknowledged_events_are_there_after_a_restart),
    bug(TornLoad, HOST.test_load_gives_head_and_events_of_one_moment),
    bug(ManyLoadedOneByOne, HOST.test_many_streams_are_loaded_as_of_one_moment),
    bug(ManyLoadedForAnybody, HOST.test_many_streams_are_loaded_as_each_alone),
    bug(FeedByStream, HOST.test_the_feed_is_complete_and_in_the_order_of_commit),
    bug(FeedSkipsRestOfCommit, HOST.test_the_feed_can_be_resumed_from_any_place),
    bug(ClaimRaisesNoFence, HOST.test_a_new_owner_shuts_the_old_one_out),
    bug(OwnersIgnored, HOST.test_concurrent_claims_never_share_a_run),
    bug(OthersWorkersUnknown, HOST.test_a_fleet_that_claims_at_once_shares_no_run_and_leaves_none),
    bug(OthersLeasesUnknown, HOST.test_a_fleet_that_claims_at_once_shares_no_effect_and_leaves_none),
    bug(OwnersIgnored, HOST.test_an_owned_run_is_not_claimed_while_its_lease_lives),
    bug(LeasesNeverExpire, HOST.test_an_owned_run_is_not_claimed_while_its_lease_lives),
    bug(LanesWithoutLimit, HOST.test_runs_of_one_lane_take_turns_in_the_order_of_their_creation),
    bug(LanesWithoutLimit, HOST.test_a_lane_is_as_wide_as_its_limit),
    bug(UnapprovedInLine, HOST.test_what_waits_for_approval_stands_in_no_line),
    bug(OnlyRunningCounts, HOST.test_what_has_started_keeps_its_lane_while_it_is_paused),
    bug(RanksNotCompared, HOST.test_a_claim_takes_only_code_up_to_its_own),
    bug(HeartbeatExtendsNothing, HOST.test_a_heartbeat_keeps_all_runs_of_its_worker),
    bug(AttemptsKept, HOST.test_a_released_run_is_free_and_its_attempts_are_forgotten),
    bug(HoldsNotCompared, HOST.test_the_outcome_of_a_stale_claim_is_refused),
    bug(HoldsNotCompared, HOST.test_one_stale_hold_refuses_the_whole_commit),
    bug(HoldsNeverEnd, HOST.test_an_outcome_ends_the_claim),
    bug(EffectLeasesIgnored, HOST.test_a_claimed_effect_is_nobody_elses_until_its_lease_is_over),
    bug(EffectLeasesIgnored, HOST.test_released_effects_can_be_given_a_rest),
    bug(RetriesAtOnce, HOST.test_a_failed_effect_is_claimed_when_its_retry_is_due),
    bug(TenantsUnbounded, HOST.test_a_tenant_gets_no_more_than_its_bound),
    bug(EffectFenceStays, HOST.test_released_effects_are_claimed_at_once),
    bug(OutcomesKeepTheClaims, HOST.test_claims_are_counted_until_there_is_an_outcome),
    bug(ClaimsAfterReleaseForgotten, HOST.test_a_claim_that_is_given_back_does_not_count),
    bug(ExpiredCheckpointsKept, HOST.test_checkpoints_expire),
    bug(OldestRunsFirst, QUERIES.test_runs_are_listed_the_newest_first_in_pages),
    bug(RebuildDropsOwner, QUERIES.test_a_rebuilt_run_keeps_its_owner),
    bug(FrozenRowsThaw, QUERIES.test_the_version_only_rises),
    bug(SequenceNotCompared, QUERIES.test_of_several_who_write_the_same_version_one_does),
    bug(StreamsWrittenOneByOne, QUERIES.test_an_entity_is_written_with_a_run_or_not_at_all),
    bug(DuplicateKeysIgnored, QUERIES.test_a_name_is_one_entity_of_its_tenant),
    bug(ForgetsLiveRuns, QUERIES.test_an_entity_outlives_everything),
    bug(TombstonesForgotten, RETENTION.test_everything_of_a_correlation_goes_and_nothing_else),
    bug(TombstonesForgotten, RETENTION.test_forgetting_twice_is_harmless),
    bug(SourcesForgotten, RETENTION.test_the_same_signal_is_not_taken_in_again),
    bug(SourcesForgotten, RETENTION.test_a_runs_key_stays_its_own),
    bug(TombstonesStay, RETENTION.test_a_whole_correlation_can_come_back),
    bug(AnyStreamComesBack, RETENTION.test_nothing_is_written_to_a_stream_that_is_gone),
    bug(FeedStartsAnew, RETENTION.test_others_go_on_as_if_nothing_had_happened),
    bug(LiveRunsExpire, RETENTION.test_one_live_run_keeps_its_whole_correlation),
    bug(ForgetsWhatMovedOn, RETENTION.test_what_moved_on_is_not_forgotten),
    bug(ForgetsLiveRuns, RETENTION.test_a_live_run_is_not_forgotten),
    bug(ForgetsLiveRuns, RETENTION.test_a_part_of_a_correlation_is_not_forgotten),
    bug(TombstonesOfAnybody, RETENTION.test_a_tombstone_is_found_by_stream_source_and_key),
]

FAILURES = (AssertionError, pytest.fail.Exception, RunstoneError)


@pytest.mark.parametrize("case", BUGS, ids=str)
async def test_a_planted_bug_is_found(case: Bug) -> None:
    async with open_scene(opener(case.planted)) as scene:
        with pytest.raises(FAILURES):
            await case.found_by(scene, **case.arguments)


@pytest.mark.parametrize("case", BUGS, ids=str)
async def test_without_the_bug_the_same_test_passes(case: Bug) -> None:
    async with open_scene(opener(MemoryStore)) as scene:
        await case.found_by(scene, **case.arguments)


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.CANCELLED_AFTER])
async def test_the_fault_walk_finds_a_store_that_does_not_know_its_own_commits(fault: Fault) -> None:
    with pytest.raises(StaleSequence):
        await HOST.test_a_run_survives_a_fault_of_any_operation(opener(LandedCommitsForgotten), fault)


@pytest.mark.parametrize(
    ("planted", "found_by"),
    [
        (StepsNeverUpdated, QueriesSuite.test_rows_are_the_fold_of_any_history),
        (StepsNeverUpdated, HostSuite.test_any_history_can_be_committed),
        (JsonRewritten, HostSuite.test_any_history_can_be_committed),
        (JsonRewritten, EventLogSuite.test_any_history_can_be_appended_event_by_event),
    ],
)
async def test_random_histories_find_bugs_too(planted: type[MemoryData], found_by: Any) -> None:
    """One tape that ends steps and has payloads that are not canonical is enough."""
    tape = bytes(number % 251 for number in range(7, 4000, 13))
    async with open_scene(opener(planted)) as scene:
        with pytest.raises(AssertionError):
            await found_by.hypothesis.inner_test(HOST, scene, tape=tape, length=40)
    async with open_scene(opener(MemoryStore)) as scene:
        await found_by.hypothesis.inner_test(HOST, scene, tape=tape, length=40)


def test_no_test_of_one_suite_hides_one_of_another() -> None:
    """An adapter inherits from several suites: a name that is there twice would run once."""
    suites = (EventLogSuite, HostSuite, QueriesSuite, RetentionSuite, HealthSuite)
    parts = {part for suite in suites for part in suite.__mro__}
    tests = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert len(tests) > 100
    assert [name for name, times in tests.items() if times > 1] == []
