"""The suites find what they are there for: each bug planted here breaks one rule, and one of their tests."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
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
from runstone.core.commit import Commit, StreamWrite
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.events import Event, EventDraft
from runstone.core.rows import Row
from runstone.core.run import QueueEntry, Run
from runstone.core.signal import Signal
from runstone.core.step import Step
from runstone.core.stream import Stream
from runstone.errors import RunstoneError, StaleFence, StaleSequence
from runstone.ports.clock import Clock
from runstone.ports.store import Claim, FeedItem, FeedPosition
from runstone.testing.conformance import EventLogSuite, HostSuite, OpenStore, QueriesSuite
from runstone.testing.conformance.scene import open_scene
from runstone.testing.faults import Fault
from runstone.testing.memory import MemoryData, MemoryStore
from runstone.testing.memory_data import MemoryStream
from runstone.testing.memory_data import name as row_name

LOG, HOST, QUERIES = EventLogSuite(), HostSuite(), QueriesSuite()

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


# What is wrong with the store


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


class LeasesNeverExpire(MemoryStore):
    def _is_free(self, stream: MemoryStream) -> bool:
        return stream.owner is None


class RanksNotCompared(MemoryStore):
    async def claim(self, worker_id: str, **asked: Any) -> Sequence[Claim]:
        return await super().claim(worker_id, **asked | {"code_rank": "~"})


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
    bug(FeedByStream, HOST.test_the_feed_is_complete_and_in_the_order_of_commit),
    bug(FeedSkipsRestOfCommit, HOST.test_the_feed_can_be_resumed_from_any_place),
    bug(ClaimRaisesNoFence, HOST.test_a_new_owner_shuts_the_old_one_out),
    bug(OwnersIgnored, HOST.test_concurrent_claims_never_share_a_run),
    bug(OwnersIgnored, HOST.test_an_owned_run_is_not_claimed_while_its_lease_lives),
    bug(LeasesNeverExpire, HOST.test_an_owned_run_is_not_claimed_while_its_lease_lives),
    bug(RanksNotCompared, HOST.test_a_claim_takes_only_code_up_to_its_own),
    bug(HeartbeatExtendsNothing, HOST.test_a_heartbeat_keeps_all_runs_of_its_worker),
    bug(AttemptsKept, HOST.test_a_released_run_is_free_and_its_attempts_are_forgotten),
    bug(ExpiredCheckpointsKept, HOST.test_checkpoints_expire),
    bug(OldestRunsFirst, QUERIES.test_runs_are_listed_the_newest_first_in_pages),
    bug(RebuildDropsOwner, QUERIES.test_a_rebuilt_run_keeps_its_owner),
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
    parts = {part for suite in (EventLogSuite, HostSuite, QueriesSuite) for part in suite.__mro__}
    tests = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert len(tests) > 100
    assert [name for name, times in tests.items() if times > 1] == []
