"""The edge of the storage contract: names, versions and what an append answers, pinned."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from runstone.core import codec, contract
from runstone.core.contract import (
    CONTRACT_VERSION,
    FETCH_LIMIT,
    FIELD_ALIASES,
    TYPE_ALIASES,
    AppendResult,
    CanonicalEngineEvent,
    from_contract,
    to_contract,
)
from runstone.core.events import Event, EventDraft
from runstone.errors import InvalidPayload, UnknownEventType
from tests.unit.core.build import HASH, NOON, TENANT, Story, an_id
from tests.unit.core.stories import STORIES


def test_the_version_and_the_limit() -> None:
    """§VER-1, §STO-7"""
    assert CONTRACT_VERSION == "2.0.0"
    assert FETCH_LIMIT == 1000


def test_every_field_and_its_name_at_the_edge() -> None:
    """§EVT-24"""
    assert FIELD_ALIASES == {
        "id": "eventId",
        "tenant_id": "tenantId",
        "stream_id": "streamId",
        "run_id": "runId",
        "run_seq": "runSeq",
        "event_type": "eventType",
        "event_version": "eventVersion",
        "aggregate_type": "aggregateType",
        "aggregate_id": "aggregateId",
        "event_data": "eventData",
        "idempotency_key": "idempotencyKey",
        "correlation_id": "correlationId",
        "causation_id": "parentEventId",
        "actor": "actor",
        "occurred_at": "emittedAt",
        "step_key": "stepId",
        "logical_attempt": "logicalAttemptId",
        "engine_attempt": "engineAttemptId",
        "control_signal_id": "causedBySignalId",
        "adapter_version": "adapterVersion",
        "engine_run_ref": "engineRunRef",
        "trace_id": "traceId",
        "span_id": "spanId",
        "prev_hash": "prevHash",
        "sequence_number": "sequenceNumber",
        "persisted_at": "persistedAt",
    }
    assert set(FIELD_ALIASES) == set(Event.__struct_fields__) == set(CanonicalEngineEvent.__struct_fields__)
    assert set(CanonicalEngineEvent.__struct_encode_fields__) == set(FIELD_ALIASES.values())


def test_every_type_and_its_name_at_the_edge() -> None:
    """§EVT-23"""
    assert TYPE_ALIASES == {
        "ARTIFACT_INVALIDATED": "ArtifactInvalidated",
        "ARTIFACT_REVALIDATED": "ArtifactRevalidated",
        "COMMIT_RECORDED": "CommitRecorded",
        "ARTIFACT_WRITTEN": "ArtifactWritten",
        "COMPENSATION_REGISTERED": "CompensationRegistered",
        "EFFECT_CANCELLED": "EffectCancelled",
        "EFFECT_COMPLETED": "EffectCompleted",
        "EFFECT_DEAD_LETTERED": "EffectDeadLettered",
        "EFFECT_EXECUTING": "EffectExecuting",
        "EFFECT_FAILED": "EffectFailed",
        "EFFECT_LATE_OUTCOME": "EffectLateOutcome",
        "EFFECT_OUTCOME_UNKNOWN": "EffectOutcomeUnknown",
        "EFFECT_RECONCILED": "EffectReconciled",
        "EFFECT_REQUESTED": "EffectRequested",
        "EFFECT_REQUEUED": "EffectRequeued",
        "EFFECT_RETRYING": "EffectRetrying",
        "ENTITY_UPDATED": "EntityUpdated",
        "INVALID_STATE_TRANSITION": "InvalidStateTransition",
        "ISSUE_OPENED": "IssueOpened",
        "ISSUE_RESOLVED": "IssueResolved",
        "RESUME_REWIND": "ResumeRewind",
        "RUN_APPROVED": "RunApproved",
        "RUN_CANCELLED": "RunCancelled",
        "RUN_CHECKPOINT_CREATED": "RunCheckpointCreated",
        "RUN_COMPLETED": "RunCompleted",
        "RUN_CONTINUED": "RunContinued",
        "RUN_CREATED": "RunCreated",
        "RUN_FAILED": "RunFailed",
        "RUN_HANDLER_RETURNED": "RunHandlerReturned",
        "RUN_PAUSED": "RunPaused",
        "RUN_RESUMED": "RunResumed",
        "RUN_STARTED": "RunStarted",
        "RUN_STATE_CHANGED": "RunStateChanged",
        "RUN_SUSPENDED": "RunSuspended",
        "RUN_VARIABLE_SET": "RunVariableSet",
        "SCHEDULE_CANCELLED": "ScheduleCancelled",
        "SECTION_STATE_CHANGED": "SectionStateChanged",
        "SIGNAL_ACCEPTED": "SignalAccepted",
        "SIGNAL_CONFLICT": "SignalConflict",
        "SIGNAL_PROCESSED": "SignalProcessed",
        "SIGNAL_PROCESSING_FAILED": "SignalProcessingFailed",
        "SIGNAL_PROCESSING_STARTED": "SignalProcessingStarted",
        "SIGNAL_RECEIVED": "SignalReceived",
        "SIGNAL_REJECTED": "SignalRejected",
        "STEP_COMPLETED": "StepCompleted",
        "STEP_CORRECTED": "StepCorrected",
        "STEP_FAILED": "StepFailed",
        "STEP_RETRIED": "StepRetried",
        "STEP_SKIPPED": "StepSkipped",
        "STEP_STARTED": "StepStarted",
        "TASK_FIRED": "TaskFired",
        "TASK_SCHEDULED": "TaskScheduled",
        "TOOL_CALLED": "ToolCalled",
        "TOOL_COMPLETED": "ToolCompleted",
        "TOOL_FAILED": "ToolFailed",
        "WORK_ITEM_COMPLETED": "WorkItemCompleted",
        "WORK_ITEM_FAILED": "WorkItemFailed",
        "WORK_ITEM_STARTED": "WorkItemStarted",
    }


def test_what_an_append_answers() -> None:
    """§STO-5: all four, also when they are false."""
    answer = AppendResult(run_seq=7, idempotent=False, persisted=True)
    assert codec.encode(answer) == b'{"conflict":false,"idempotent":false,"persisted":true,"runSeq":7}'


def test_an_event_at_the_edge() -> None:
    story = Story.running()
    story.open_step(step_id=an_id(300))
    shown = codec.parse(codec.encode(to_contract(replace(story.last, sequence_number=9, engine_attempt=2))))
    assert shown["eventType"] == "StepStarted"
    assert (shown["runSeq"], shown["sequenceNumber"]) == (3, 9)
    assert (shown["stepId"], shown["logicalAttemptId"], shown["engineAttemptId"]) == ("work", "1", "2")
    assert shown["emittedAt"] == "2026-03-01T12:00:03Z"
    assert shown["parentEventId"] == story.run_events[1].id
    assert shown["eventData"]["step_type"] == "DECISION"


def test_a_type_that_is_not_in_the_catalogue_goes_out_as_it_is() -> None:
    """§EVT-22: whoever reads at the edge ignores what it does not know."""
    event = replace(Story.running().last, event_type="RUN_FLEW")
    assert to_contract(event).event_type == "RUN_FLEW"


def draft_of(event: Event) -> EventDraft:
    return EventDraft(**{name: getattr(event, name) for name in EventDraft.__struct_fields__})


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_out_and_in_again(tell: Callable[[], Story]) -> None:
    for event in tell().events:
        attempted = replace(event, engine_attempt=3, engine_run_ref={"id": 1}, persisted_at=NOON)
        text = codec.encode(to_contract(attempted))
        read = codec.decode_as(text, CanonicalEngineEvent)
        assert codec.encode(read) == text
        assert codec.encode(from_contract(read, tenant_id=TENANT)) == codec.encode(draft_of(attempted))


class TestTakingIn:
    """What others append: what the contract's first version did not have is filled in."""

    LEAST = CanonicalEngineEvent(
        id=an_id(1),
        run_id=an_id(2),
        event_type="RunPaused",
        event_data=msgspec.Raw(b'{"reason":"X"}'),
        idempotency_key=HASH,
        occurred_at=NOON,
    )

    def test_the_least_there_can_be(self) -> None:
        draft = from_contract(self.LEAST, tenant_id=TENANT)
        assert (draft.event_type, draft.event_version) == ("RUN_PAUSED", 1)
        assert draft.stream_id == draft.run_id == draft.aggregate_id == an_id(2)
        assert (draft.aggregate_type, draft.tenant_id) == ("RUN", TENANT)
        assert draft.correlation_id == an_id(2)
        assert (draft.logical_attempt, draft.engine_attempt) == (None, None)
        assert (draft.trace_id, draft.span_id) == ("0" * 32, "0" * 16)

    def test_the_correlation_of_its_stream_if_it_is_known(self) -> None:
        assert from_contract(self.LEAST, tenant_id=TENANT, correlation_id=an_id(9)).correlation_id == an_id(9)
        own = replace(self.LEAST, correlation_id=an_id(8))
        assert from_contract(own, tenant_id=TENANT, correlation_id=an_id(9)).correlation_id == an_id(8)

    def test_without_a_run_the_event_opens_a_stream_of_its_own(self) -> None:
        alone = replace(self.LEAST, run_id=None, event_type="SignalProcessed")
        draft = from_contract(alone, tenant_id=TENANT)
        assert (draft.stream_id, draft.run_id, draft.aggregate_type) == (an_id(1), None, "SIGNAL")

    def test_a_stream_that_is_named_counts(self) -> None:
        named = replace(self.LEAST, stream_id=an_id(5))
        assert from_contract(named, tenant_id=TENANT).stream_id == an_id(5)

    def test_the_tenant_is_the_callers(self) -> None:
        """§TEN-2: whatever the event says."""
        foreign = replace(self.LEAST, tenant_id=an_id(66))
        assert from_contract(foreign, tenant_id=TENANT).tenant_id == TENANT

    @pytest.mark.parametrize("name", ["RunFlew", "RUN_PAUSED", "runPaused", ""])
    def test_a_type_it_does_not_know(self, name: str) -> None:
        with pytest.raises(UnknownEventType) as refused:
            from_contract(replace(self.LEAST, event_type=name), tenant_id=TENANT)
        assert refused.value.event_type == name

    @pytest.mark.parametrize("field", ["logical_attempt", "engine_attempt"])
    @pytest.mark.parametrize("attempt", ["x", "", "0", "-1", "1.5"])
    def test_an_attempt_that_is_no_count(self, field: str, attempt: str) -> None:
        """It comes from outside: refused as an invalid payload, with its place (§PAY-13)."""
        with pytest.raises(InvalidPayload) as refused:
            from_contract(replace(self.LEAST, **{field: attempt}), tenant_id=TENANT)
        assert refused.value.pointer == f"/{FIELD_ALIASES[field]}"

    def test_a_time_without_a_zone_is_refused(self) -> None:
        """§PAY-3"""
        text = codec.encode(self.LEAST).replace(b"12:00:00Z", b"12:00:00")
        with pytest.raises(InvalidPayload) as refused:
            codec.decode_as(text, CanonicalEngineEvent)
        assert refused.value.pointer == "/emittedAt"


def test_aliases_lead_back_to_one_name_each() -> None:
    assert len(set(contract.TYPE_ALIASES.values())) == len(contract.TYPE_ALIASES)
    assert len(set(contract.FIELD_ALIASES.values())) == len(contract.FIELD_ALIASES)
