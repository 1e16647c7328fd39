"""Entity: a record of the system of record, as its last change left it (§ENT-26)."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Raw


class Entity(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `entities`; its id is that of its stream."""

    id: str
    tenant_id: str
    entity_type: str
    entity_id: str
    version: int
    data: Raw
    evidence_pack: Raw
    source_id: str
    source_hash: str
    timestamp: datetime
    inference: bool
    run_id: str
    effect_id: str
    created_at: datetime
    updated_at: datetime
