"""Entities of the system of record: each change whole, with what it rests on."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Raw

from runstone.core.events import AggregateType
from runstone.core.ids import Digest, Id
from runstone.core.payloads.base import Moment, Payload


class EntityUpdated(Payload, frozen=True, kw_only=True):
    """An effect of a run changed an entity; the first opens the entity's stream."""

    EVENT_TYPE: ClassVar[str] = "ENTITY_UPDATED"
    AGGREGATE: ClassVar[AggregateType] = "ENTITY"

    entity_type: Annotated[str, Meta(min_length=1, max_length=100, description="What kind of thing it is.")]
    entity_id: Annotated[
        str, Meta(min_length=1, max_length=255, description="Which one, in its users' words.")
    ]
    version: Annotated[int, Meta(ge=1, description="How many changes it has had, this one among them.")]
    change: Annotated[Raw, Meta(description="What was asked for, as a JSON merge patch.")]
    data: Annotated[Raw, Meta(description="The whole entity after it.")]
    evidence_pack: Annotated[Raw, Meta(description="What the change rests on.")]
    source_id: Annotated[
        str, Meta(max_length=300, description="Who changed it: `orchestrator:` and the key.")
    ]
    source_hash: Annotated[Digest, Meta(description="The SHA-256 of the change.")]
    timestamp: Annotated[Moment, Meta(description="When it was carried out.")]
    inference: Annotated[bool, Meta(description="Whether it was concluded rather than stated.")] = False
    run_id: Annotated[Id, Meta(description="The run that asked for it.")]
    effect_id: Annotated[Id, Meta(description="The effect that it is the outcome of.")]
