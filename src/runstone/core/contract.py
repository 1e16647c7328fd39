"""The edge of the storage contract: our events in the words that other systems use (§EVT-23, §EVT-24).

Inside it is `STEP_COMPLETED` and `run_seq`; at the edge `StepCompleted` and `runSeq`. The names
of types are derived, the names of fields are this one table.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from runstone.core.catalogue import CATALOGUE
from runstone.core.events import AggregateType, Event, EventDraft
from runstone.core.ids import Digest, Id
from runstone.core.payloads import Moment
from runstone.errors import InvalidPayload, UnknownEventType

CONTRACT_VERSION: Final = "2.0.0"
"""Semantic: the minor rises with what old readers may ignore, the major with what they may not."""

FETCH_LIMIT: Final = 1000
"""How many events a fetch gives when nobody says otherwise."""

FIELD_ALIASES: Final = {
    "id": "eventId",
    "stream_id": "streamId",
    "run_id": "runId",
    "run_seq": "runSeq",
    "step_key": "stepId",
    "engine_attempt": "engineAttemptId",
    "logical_attempt": "logicalAttemptId",
    "event_type": "eventType",
    "event_version": "eventVersion",
    "event_data": "eventData",
    "idempotency_key": "idempotencyKey",
    "occurred_at": "emittedAt",
    "persisted_at": "persistedAt",
    "adapter_version": "adapterVersion",
    "engine_run_ref": "engineRunRef",
    "control_signal_id": "causedBySignalId",
    "causation_id": "parentEventId",
    "tenant_id": "tenantId",
    "aggregate_type": "aggregateType",
    "aggregate_id": "aggregateId",
    "correlation_id": "correlationId",
    "actor": "actor",
    "trace_id": "traceId",
    "span_id": "spanId",
    "prev_hash": "prevHash",
    "sequence_number": "sequenceNumber",
}
"""Every field of an event and its name at the edge."""

TYPE_ALIASES: Final = {
    name: "".join(word.capitalize() for word in name.split("_")) for name in sorted(CATALOGUE.types)
}
"""Every type of event and its name at the edge."""

_TYPE_NAMES: Final = {alias: name for name, alias in TYPE_ALIASES.items()}


class AppendResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of an append."""

    run_seq: int
    """Its position in its stream; for a repeated key, the position of the first."""
    idempotent: bool
    """Whether its key was there already."""
    persisted: bool
    """Whether a new event was written."""
    conflict: bool = False
    """Whether what was there under its key has another type or other data."""


class CanonicalEngineEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=FIELD_ALIASES.get
):
    """An event at the edge. What the contract's first version did not have is optional."""

    id: Id
    run_id: Id | None = None
    run_seq: int = 0
    step_key: str | None = None
    engine_attempt: str | None = None
    logical_attempt: str | None = None
    event_type: str
    event_data: Raw
    idempotency_key: Digest
    occurred_at: Moment
    persisted_at: Moment | None = None
    adapter_version: str | None = None
    engine_run_ref: Any = None
    control_signal_id: Id | None = None
    causation_id: Id | None = None
    stream_id: Id | None = None
    event_version: int = 1
    tenant_id: Id | None = None
    aggregate_type: AggregateType | None = None
    aggregate_id: Id | None = None
    correlation_id: Id | None = None
    actor: str = ""
    trace_id: str = "0" * 32
    span_id: str = "0" * 16
    prev_hash: Digest | None = None
    sequence_number: int | None = None


def to_contract(event: Event) -> CanonicalEngineEvent:
    """An event as the contract shows it."""
    fields = msgspec.structs.asdict(event)
    fields["event_type"] = TYPE_ALIASES.get(event.event_type, event.event_type)
    fields["engine_attempt"] = None if event.engine_attempt is None else str(event.engine_attempt)
    fields["logical_attempt"] = None if event.logical_attempt is None else str(event.logical_attempt)
    return CanonicalEngineEvent(**fields)


def from_contract(
    event: CanonicalEngineEvent, *, tenant_id: str, correlation_id: str | None = None
) -> EventDraft:
    """A draft of what somebody wants appended; the tenant is the caller's, whatever the event says."""
    name = _TYPE_NAMES.get(event.event_type)
    if name is None:
        raise UnknownEventType(event.event_type)
    stream_id = event.stream_id or event.run_id or event.id
    return EventDraft(
        id=event.id,
        tenant_id=tenant_id,
        stream_id=stream_id,
        run_id=event.run_id,
        event_type=name,
        event_version=event.event_version,
        aggregate_type=event.aggregate_type or CATALOGUE.types[name].AGGREGATE,
        aggregate_id=event.aggregate_id or stream_id,
        event_data=event.event_data,
        idempotency_key=event.idempotency_key,
        correlation_id=event.correlation_id or correlation_id or stream_id,
        causation_id=event.causation_id,
        actor=event.actor,
        occurred_at=event.occurred_at,
        step_key=event.step_key,
        logical_attempt=_attempt("logical_attempt", event.logical_attempt),
        engine_attempt=_attempt("engine_attempt", event.engine_attempt),
        control_signal_id=event.control_signal_id,
        adapter_version=event.adapter_version,
        engine_run_ref=event.engine_run_ref,
        trace_id=event.trace_id,
        span_id=event.span_id,
    )


def _attempt(field: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and int(given) >= 1):
        raise InvalidPayload(f"/{FIELD_ALIASES[field]}", f"{given!r} does not count an attempt")
    return int(given)
