"""Decisions about an entity of the system of record: what a change makes of it, or why it is refused."""

from __future__ import annotations

from typing import Any

import msgspec

from runstone.core import codec, payloads
from runstone.core.commit import StreamWriter
from runstone.core.effect_specs import SorUpdate
from runstone.core.events import Event
from runstone.core.fold import EntityFold
from runstone.core.keys import content_hash
from runstone.core.merge import merge_patch
from runstone.core.payloads import ErrorInfo

VERSION_CONFLICT = "VERSION_CONFLICT"
SOURCE = "orchestrator:"
"""Who changes an entity for a run; the effect's key follows (§OUT-28)."""


def update(
    stream: StreamWriter[EntityFold], asked: SorUpdate, *, key: str, run_id: str, effect_id: str, cause: str
) -> Event | ErrorInfo:
    """Records the change. Its key is the effect's id: no stream takes the same effect twice (§OUT-56)."""
    fold = stream.fold
    if asked.expected_version not in (None, fold.version):
        return ErrorInfo(
            category="APPLICATION",
            code=VERSION_CONFLICT,
            message=f"{asked.entity_type} {asked.entity_id!r} has version {fold.version}, "
            f"and {asked.expected_version} was expected",
        )
    change = codec.canonical(asked.change)
    return stream.record(
        payloads.EntityUpdated(
            entity_type=asked.entity_type,
            entity_id=asked.entity_id,
            version=fold.version + 1,
            change=change,
            data=codec.canonical(merge_patch(_present(fold), asked.change)),
            evidence_pack=codec.canonical(asked.evidence_pack),
            source_id=f"{SOURCE}{key}",
            source_hash=content_hash(change),
            timestamp=stream.now,
            run_id=run_id,
            effect_id=effect_id,
        ),
        cause=cause,
        occurrence=effect_id,
    )


def _present(fold: EntityFold) -> Any:
    return None if fold.entity is None else msgspec.json.decode(fold.whole(fold.entity.data))
