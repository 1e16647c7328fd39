"""JSON Schemas of everything that leaves the process, made from the types themselves (§VER-2, §VER-9).

`specs/schemas/` holds what this module gives; a test fails when the two differ, so a change of
a type cannot change the contract unseen.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from runstone.core.bundle import Manifest
from runstone.core.catalogue import CATALOGUE
from runstone.core.contract import CONTRACT_VERSION, AppendResult, CanonicalEngineEvent
from runstone.core.effect_specs import BUILT_IN, EffectSpec
from runstone.core.events import Event
from runstone.core.payloads import InputContext, OutputResult, Payload
from runstone.core.pipeline import FolderSnapshot
from runstone.core.snapshot import RunSnapshot

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

DOCUMENTS: Final[dict[str, type]] = {
    "event": Event,
    "snapshot": FolderSnapshot,
    "run_snapshot": RunSnapshot,
    "canonical_event": CanonicalEngineEvent,
    "append_result": AppendResult,
    "bundle_manifest": Manifest,
    "input_context": InputContext,
    "output_result": OutputResult,
}
"""The name of each schema and the type it describes; payloads and effects come on top, one per type."""


def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its path below `specs/schemas/`."""
    found = {f"{name}.schema.json": _schema(name, kind) for name, kind in DOCUMENTS.items()}
    for event_type, payload in sorted(CATALOGUE.types.items()):
        found[f"payloads/{event_type}.schema.json"] = _payload_schema(event_type, payload)
    for spec in BUILT_IN:
        found[f"effects/{spec.EFFECT_TYPE}.schema.json"] = _effect_schema(spec)
    return found


def _schema(name: str, kind: type) -> dict[str, Any]:
    return {
        "$schema": _DIALECT,
        "$id": f"urn:runstone:{name}:{CONTRACT_VERSION}",
        **msgspec.json.schema(kind),
    }


def _effect_schema(spec: type[EffectSpec]) -> dict[str, Any]:
    schema = _schema(spec.EFFECT_TYPE, spec)
    described = schema["$defs"][spec.__name__]
    described["required"] = sorted(
        {*described["required"], *spec.DEMANDED}, key=list(described["properties"]).index
    )
    for field in spec.DEMANDED:
        described["properties"][field].pop("default")
    return schema


def _payload_schema(event_type: str, payload: type[Payload]) -> dict[str, Any]:
    return {**_schema(event_type, payload), "x-event-version": payload.VERSION}
