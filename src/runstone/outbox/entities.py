"""Entities of the system of record, as people and programs read them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec

from runstone.core.catalogue import CATALOGUE
from runstone.core.events import Event
from runstone.core.keys import entity_stream
from runstone.core.payloads import EntityUpdated
from runstone.ports.store import Store

PAGE: Final = 500


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity as one change left it, and what is known of that change."""

    entity_type: str
    entity_id: str
    version: int
    """How many changes it had had by then."""
    data: dict[str, Any]
    """All of it."""
    change: dict[str, Any]
    """What the last change was, as a JSON merge patch."""
    evidence_pack: dict[str, Any]
    """What that rests on."""
    source_id: str
    source_hash: str
    timestamp: datetime
    inference: bool
    run_id: str
    """The run that asked for the change; it may be archived by now."""
    effect_id: str
    stream_id: str
    event_id: str
    """Where the change stands in the log."""
    created_at: datetime
    updated_at: datetime


async def read_entity(store: Store, tenant_id: str, entity_type: str, entity_id: str) -> Entity | None:
    """An entity as it is now; none if nobody has written to it."""
    stream_id = entity_stream(tenant_id, entity_type, entity_id)
    row = await store.get_entity(tenant_id, stream_id)
    if row is None:
        return None
    # Each change is one event and holds all of the entity: a row may only say where it stands.
    (event,) = await store.fetch(tenant_id, stream_id, after_seq=row.version - 1, limit=1)
    return _as_of(event, row.created_at)


async def read_history(
    store: Store, tenant_id: str, entity_type: str, entity_id: str
) -> AsyncIterator[Entity]:
    """An entity after each of its changes, the first one first."""
    stream_id = entity_stream(tenant_id, entity_type, entity_id)
    created_at: datetime | None = None
    after = 0
    while page := await store.fetch(tenant_id, stream_id, after_seq=after, limit=PAGE):
        for event in page:
            created_at = created_at or event.occurred_at
            yield _as_of(event, created_at)
        after = page[-1].run_seq


def _as_of(event: Event, created_at: datetime) -> Entity:
    changed = CATALOGUE.read(event, EntityUpdated)
    return Entity(
        entity_type=changed.entity_type,
        entity_id=changed.entity_id,
        version=changed.version,
        data=msgspec.json.decode(changed.data),
        change=msgspec.json.decode(changed.change),
        evidence_pack=msgspec.json.decode(changed.evidence_pack),
        source_id=changed.source_id,
        source_hash=changed.source_hash,
        timestamp=changed.timestamp,
        inference=changed.inference,
        run_id=changed.run_id,
        effect_id=changed.effect_id,
        stream_id=event.stream_id,
        event_id=event.id,
        created_at=created_at,
        updated_at=event.occurred_at,
    )
