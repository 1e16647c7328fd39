"""Takes the changes of an entity in."""

from __future__ import annotations

from datetime import UTC
from typing import Final

import msgspec

from runstone.core.entity import Entity
from runstone.core.events import Event
from runstone.core.fold.streams import EntityFold, Reducer
from runstone.core.keys import entity_stream
from runstone.core.payloads import entities
from runstone.core.state import EntityState, StreamState
from runstone.errors import CommandRefused


def updated(fold: EntityFold, event: Event, data: entities.EntityUpdated) -> None:
    if data.version != fold.version + 1:
        raise CommandRefused(
            f"Entity {fold.stream_id} has version {fold.version}: its next cannot be {data.version}"
        )
    if entity_stream(fold.tenant_id, data.entity_type, data.entity_id) != fold.stream_id:
        raise CommandRefused(f"Stream {fold.stream_id} is not that of {data.entity_type} {data.entity_id!r}")
    fold.large.clear()  # every change holds the whole entity: of those before, no row says anything
    fold.entity = Entity(
        id=fold.stream_id,
        tenant_id=fold.tenant_id,
        entity_type=data.entity_type,
        entity_id=data.entity_id,
        version=data.version,
        data=fold.keep(event, "data", data.data),
        evidence_pack=fold.keep(event, "evidence_pack", data.evidence_pack),
        source_id=data.source_id,
        source_hash=data.source_hash,
        timestamp=data.timestamp.astimezone(UTC),
        inference=data.inference,
        run_id=data.run_id,
        effect_id=data.effect_id,
        created_at=fold.entity.created_at if fold.entity else event.occurred_at,
        updated_at=event.occurred_at,
    )


def pass_over(state: StreamState, last_seq: int) -> EntityState:
    """The same entity as of a later event, for the one behind that to be folded on.

    It holds all of the entity but when that was created: what lies between need not be read.
    """
    assert isinstance(state, EntityState)
    assert state.entity is not None, "it has had its first change"
    entity = msgspec.structs.replace(state.entity, version=last_seq)
    return msgspec.structs.replace(state, last_seq=last_seq, entity=entity)


REDUCERS: Final[dict[str, Reducer]] = {
    "ENTITY_UPDATED": updated,
}
