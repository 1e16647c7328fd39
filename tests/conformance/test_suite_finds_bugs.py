"""The suites find what they are there for: each bug planted here breaks one rule, and one of their tests."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from runstone.errors import RunstoneError, StaleSequence
from runstone.ports.clock import Clock
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
from tests.conformance import broken_claims, broken_data, broken_stores

LOG, HOST, QUERIES, RETENTION = EventLogSuite(), HostSuite(), QueriesSuite(), RetentionSuite()

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
    bug(broken_data.FenceNotChecked, HOST.test_a_stale_fence_is_refused),
    bug(broken_data.SequenceNotCompared, HOST.test_a_stale_sequence_is_refused_and_can_be_decided_again),
    bug(broken_data.StreamsWrittenOneByOne, HOST.test_nothing_is_written_when_one_stream_is_stale, stale=1),
    bug(broken_data.StreamsWrittenOneByOne, HOST.test_nothing_is_written_when_one_stream_has_a_duplicate),
    bug(broken_data.TenantsJoined, HOST.test_a_commit_belongs_to_one_tenant),
    bug(broken_data.DuplicateKeysIgnored, HOST.test_source_ids_are_unique_in_their_channel),
    bug(broken_data.DuplicateKeysIgnored, HOST.test_effect_keys_are_unique_in_their_tenant),
    bug(broken_data.DuplicateKeysIgnored, HOST.test_run_keys_are_unique_in_their_tenant),
    bug(broken_data.DuplicateKeysIgnored, HOST.test_a_run_request_is_unique),
    bug(broken_data.DuplicateKeysIgnored, HOST.test_a_commit_cannot_hold_the_same_key_twice),
    bug(broken_data.KeysOfAllTenantsTogether, HOST.test_effect_keys_are_unique_in_their_tenant),
    bug(broken_data.EventIdsNotChecked, HOST.test_event_ids_are_unique_over_all_tenants),
    bug(broken_data.EventIdsNotChecked, LOG.test_an_event_id_is_unique_over_all_tenants),
    bug(broken_data.FrozenRowsThaw, HOST.test_a_row_that_has_ended_is_frozen, aggregate="effect"),
    bug(broken_data.FrozenRowsThaw, HOST.test_a_row_moves_only_where_its_machine_leads),
    bug(broken_data.LandedCommitsForgotten, HOST.test_a_commit_that_landed_is_repeated),
    bug(broken_data.LandedCommitsForgotten, HOST.test_a_commit_submitted_many_times_at_once_is_written_once),
    bug(broken_data.LandedKnownById, HOST.test_an_event_cannot_be_replaced),
    bug(broken_data.AnswersDoNotWake, HOST.test_an_answer_after_the_suspension_wakes),
    bug(broken_data.AnswersDoNotWake, HOST.test_an_answer_is_never_lost_whoever_is_faster),
    bug(broken_data.LeaseLostBesideOthers, HOST.test_a_commit_without_a_lease_leaves_it_alone),
    bug(broken_data.JsonRewritten, LOG.test_hostile_payloads_come_back_byte_for_byte),
    bug(broken_data.JsonRewritten, HOST.test_hostile_payloads_are_committed_byte_for_byte),
    bug(broken_data.StepsNeverUpdated, QUERIES.test_rows_are_the_fold_after_every_commit),
    bug(broken_data.StepsNeverUpdated, LOG.test_the_usual_run_is_shown_as_it_went),
    bug(broken_stores.GapUnderConcurrency, LOG.test_fifty_blind_writers_leave_no_gap),
    bug(broken_stores.ConflictNotFlagged, LOG.test_a_key_on_record_with_other_content_is_a_conflict),
    bug(broken_stores.FetchOneTooFew, LOG.test_fetch_gives_pages_in_order),
    bug(broken_stores.FetchOneTooFew, LOG.test_fetch_gives_a_thousand_events_unless_told_otherwise),
    bug(broken_stores.FetchForAnybody, LOG.test_a_tenant_sees_nothing_of_another),
    bug(broken_stores.SignalsOfAnybody, QUERIES.test_no_question_leads_to_another_tenant),
    bug(broken_stores.LastStreamLostAtClosing, HOST.test_acknowledged_commits_are_there_after_a_restart),
    bug(broken_stores.LastStreamLostAtClosing, LOG.test_acknowledged_events_are_there_after_a_restart),
    bug(broken_stores.TornLoad, HOST.test_load_gives_head_and_events_of_one_moment),
    bug(broken_stores.ManyLoadedOneByOne, HOST.test_many_streams_are_loaded_as_of_one_moment),
    bug(broken_stores.ManyLoadedForAnybody, HOST.test_many_streams_are_loaded_as_each_alone),
    bug(broken_stores.FeedByStream, HOST.test_the_feed_is_complete_and_in_the_order_of_commit),
    bug(broken_stores.FeedSkipsRestOfCommit, HOST.test_the_feed_can_be_resumed_from_any_place),
    bug(broken_claims.ClaimRaisesNoFence, HOST.test_a_new_owner_shuts_the_old_one_out),
    bug(broken_claims.OwnersIgnored, HOST.test_concurrent_claims_never_share_a_run),
    bug(
        broken_claims.OthersWorkersUnknown,
        HOST.test_a_fleet_that_claims_at_once_shares_no_run_and_leaves_none,
    ),
    bug(
        broken_claims.OthersLeasesUnknown,
        HOST.test_a_fleet_that_claims_at_once_shares_no_effect_and_leaves_none,
    ),
    bug(broken_claims.OwnersIgnored, HOST.test_an_owned_run_is_not_claimed_while_its_lease_lives),
    bug(broken_claims.LeasesNeverExpire, HOST.test_an_owned_run_is_not_claimed_while_its_lease_lives),
    bug(
        broken_claims.LanesWithoutLimit, HOST.test_runs_of_one_lane_take_turns_in_the_order_of_their_creation
    ),
    bug(broken_claims.LanesWithoutLimit, HOST.test_a_lane_is_as_wide_as_its_limit),
    bug(broken_claims.UnapprovedInLine, HOST.test_what_waits_for_approval_stands_in_no_line),
    bug(broken_claims.OnlyRunningCounts, HOST.test_what_has_started_keeps_its_lane_while_it_is_paused),
    bug(broken_claims.RanksNotCompared, HOST.test_a_claim_takes_only_code_up_to_its_own),
    bug(broken_claims.HeartbeatExtendsNothing, HOST.test_a_heartbeat_keeps_all_runs_of_its_worker),
    bug(broken_claims.AttemptsKept, HOST.test_a_released_run_is_free_and_its_attempts_are_forgotten),
    bug(broken_data.HoldsNotCompared, HOST.test_the_outcome_of_a_stale_claim_is_refused),
    bug(broken_data.HoldsNotCompared, HOST.test_one_stale_hold_refuses_the_whole_commit),
    bug(broken_data.HoldsNeverEnd, HOST.test_an_outcome_ends_the_claim),
    bug(
        broken_claims.EffectLeasesIgnored, HOST.test_a_claimed_effect_is_nobody_elses_until_its_lease_is_over
    ),
    bug(broken_claims.EffectLeasesIgnored, HOST.test_released_effects_can_be_given_a_rest),
    bug(broken_claims.RetriesAtOnce, HOST.test_a_failed_effect_is_claimed_when_its_retry_is_due),
    bug(broken_claims.TenantsUnbounded, HOST.test_a_tenant_gets_no_more_than_its_bound),
    bug(broken_claims.EffectFenceStays, HOST.test_released_effects_are_claimed_at_once),
    bug(broken_data.OutcomesKeepTheClaims, HOST.test_claims_are_counted_until_there_is_an_outcome),
    bug(broken_claims.ClaimsAfterReleaseForgotten, HOST.test_a_claim_that_is_given_back_does_not_count),
    bug(broken_claims.StraysOfAllReleased, HOST.test_what_a_worker_does_not_know_of_is_put_back),
    bug(broken_claims.StraysCount, HOST.test_what_a_worker_does_not_know_of_is_put_back),
    bug(broken_claims.StraysForgottenWithTheirLease, HOST.test_a_stray_is_found_by_how_long_it_is_leased),
    bug(broken_stores.ExpiredCheckpointsKept, HOST.test_checkpoints_expire),
    bug(broken_stores.OldestRunsFirst, QUERIES.test_runs_are_listed_the_newest_first_in_pages),
    bug(broken_stores.RebuildDropsOwner, QUERIES.test_a_rebuilt_run_keeps_its_owner),
    bug(broken_data.FrozenRowsThaw, QUERIES.test_the_version_only_rises),
    bug(broken_data.SequenceNotCompared, QUERIES.test_of_several_who_write_the_same_version_one_does),
    bug(broken_data.StreamsWrittenOneByOne, QUERIES.test_an_entity_is_written_with_a_run_or_not_at_all),
    bug(broken_data.DuplicateKeysIgnored, QUERIES.test_a_name_is_one_entity_of_its_tenant),
    bug(broken_stores.ForgetsLiveRuns, QUERIES.test_an_entity_outlives_everything),
    bug(broken_data.TombstonesForgotten, RETENTION.test_everything_of_a_correlation_goes_and_nothing_else),
    bug(broken_data.TombstonesForgotten, RETENTION.test_forgetting_twice_is_harmless),
    bug(broken_data.SourcesForgotten, RETENTION.test_the_same_signal_is_not_taken_in_again),
    bug(broken_data.SourcesForgotten, RETENTION.test_a_runs_key_stays_its_own),
    bug(broken_data.TombstonesStay, RETENTION.test_a_whole_correlation_can_come_back),
    bug(broken_data.AnyStreamComesBack, RETENTION.test_nothing_is_written_to_a_stream_that_is_gone),
    bug(broken_data.FeedStartsAnew, RETENTION.test_others_go_on_as_if_nothing_had_happened),
    bug(broken_stores.LiveRunsExpire, RETENTION.test_one_live_run_keeps_its_whole_correlation),
    bug(broken_stores.ForgetsWhatMovedOn, RETENTION.test_what_moved_on_is_not_forgotten),
    bug(broken_stores.ForgetsLiveRuns, RETENTION.test_a_live_run_is_not_forgotten),
    bug(broken_stores.ForgetsLiveRuns, RETENTION.test_a_part_of_a_correlation_is_not_forgotten),
    bug(broken_stores.TombstonesOfAnybody, RETENTION.test_a_tombstone_is_found_by_stream_source_and_key),
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
        await HOST.test_a_run_survives_a_fault_of_any_operation(
            opener(broken_data.LandedCommitsForgotten), fault
        )


@pytest.mark.parametrize(
    ("planted", "found_by"),
    [
        (broken_data.StepsNeverUpdated, QueriesSuite.test_rows_are_the_fold_of_any_history),
        (broken_data.StepsNeverUpdated, HostSuite.test_any_history_can_be_committed),
        (broken_data.JsonRewritten, HostSuite.test_any_history_can_be_committed),
        (broken_data.JsonRewritten, EventLogSuite.test_any_history_can_be_appended_event_by_event),
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
