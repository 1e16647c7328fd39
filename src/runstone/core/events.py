"""The event envelope: an immutable fact, where it stands, what caused it, who wrote it (§EVT-1).

A draft becomes an event when it is given its place in a stream: its `run_seq` and the hash of
its predecessor. `sequence_number` and `persisted_at` are the store's own and outside the hash.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw

from runstone.core.ids import Digest, Id

AggregateType: TypeAlias = Literal["SIGNAL", "RUN", "STEP", "EFFECT", "TOOL_CALL", "ENTITY", "SCHEDULE"]
StreamKind: TypeAlias = Literal["SIGNAL", "RUN", "ENTITY", "SCHEDULE"]
"""What a stream is about. What else changes, changes in a run's stream."""

LASTING: Final[frozenset[StreamKind]] = frozenset({"ENTITY", "SCHEDULE"})
"""Streams that outlive the runs which write to them: each is a correlation of its own (§ORD-37)."""

ENDLESS: Final[frozenset[StreamKind]] = frozenset({"ENTITY"})
"""Streams that are never over: the system of record stays (§STO-56)."""

Attempt: TypeAlias = Annotated[int, Meta(ge=1)]


class EventDraft(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A fact that has no place in a stream yet."""

    id: Annotated[Id, Meta(description="Unique over all events of all tenants; a UUIDv7.")]
    tenant_id: Annotated[Id, Meta(description="Whose event it is.")]
    stream_id: Annotated[
        Id, Meta(description="The stream it belongs to: the id of its run, signal, entity or schedule.")
    ]
    run_id: Annotated[Id | None, Meta(description="The run it is about, where there is one.")] = None
    event_type: Annotated[str, Meta(description="A name from the catalogue, in the past tense.")]
    event_version: Annotated[int, Meta(ge=1, description="The version of event_data's form.")]
    aggregate_type: Annotated[AggregateType, Meta(description="What kind of aggregate it is about.")]
    aggregate_id: Annotated[Id, Meta(description="The aggregate it is about.")]
    event_data: Annotated[Raw, Meta(description="The payload, exactly as written.")]
    idempotency_key: Annotated[Digest, Meta(description="Unique in its stream.")]
    correlation_id: Annotated[Id, Meta(description="Shared by all that one signal set off.")]
    causation_id: Annotated[Id | None, Meta(description="The event that caused this one.")] = None
    actor: Annotated[str, Meta(description="The agent, user or service that wrote it.")]
    occurred_at: Annotated[
        datetime, Meta(tz=True, description="When it happened; never goes back in a stream.")
    ]
    step_key: Annotated[str | None, Meta(description="The step's name and occurrence in its branch.")] = None
    logical_attempt: Annotated[
        Attempt | None, Meta(description="Counts retries asked for by policy or person.")
    ] = None
    engine_attempt: Annotated[Attempt | None, Meta(description="Counts claims: lost leases, crashes.")] = None
    control_signal_id: Annotated[Id | None, Meta(description="The control signal that asked for it.")] = None
    adapter_version: Annotated[str | None, Meta(description="The contract its writer knows.")] = None
    engine_run_ref: Annotated[Any, Meta(description="The run's id on a foreign engine.")] = None
    trace_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)", description="The trace it belongs to.")]
    span_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)", description="The span that wrote it.")]


class Event(EventDraft, frozen=True, kw_only=True, omit_defaults=True):
    """A fact in its place."""

    run_seq: Annotated[int, Meta(ge=1, description="Its position in its stream, contiguous from 1.")]
    prev_hash: Annotated[Digest, Meta(description="The hash of its predecessor; zeros for the first.")]
    sequence_number: Annotated[int | None, Meta(description="Its position in the store's feed.")] = None
    persisted_at: Annotated[datetime | None, Meta(description="When the store made it durable.")] = None
