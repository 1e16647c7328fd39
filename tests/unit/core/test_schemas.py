"""The schemas: one for everything that leaves the process, and every field of every payload explained."""

from __future__ import annotations

import typing

import msgspec
import pytest

from runstone.core.catalogue import CATALOGUE
from runstone.core.effect_specs import BUILT_IN
from runstone.core.payloads import Payload
from runstone.core.schemas import DOCUMENTS, schemas

SCHEMAS = schemas()


def test_every_type_of_event_and_of_effect_has_one() -> None:
    payloads = {f"payloads/{name}.schema.json" for name in CATALOGUE.types}
    effects = {f"effects/{spec.EFFECT_TYPE}.schema.json" for spec in BUILT_IN}
    assert SCHEMAS.keys() == payloads | effects | {f"{name}.schema.json" for name in DOCUMENTS}


@pytest.mark.parametrize("name", CATALOGUE.types)
def test_it_knows_its_version(name: str) -> None:
    assert SCHEMAS[f"payloads/{name}.schema.json"]["x-event-version"] == CATALOGUE.types[name].VERSION


@pytest.mark.parametrize("payload", CATALOGUE.types.values(), ids=CATALOGUE.types)
def test_every_field_says_what_it_means(payload: type[Payload]) -> None:
    hints = typing.get_type_hints(payload, include_extras=True)
    for field in msgspec.structs.fields(payload):
        metas = getattr(hints[field.name], "__metadata__", ())
        assert any(meta.description for meta in metas), f"{payload.__name__}.{field.name}"


@pytest.mark.parametrize("payload", CATALOGUE.types.values(), ids=CATALOGUE.types)
def test_a_payload_with_a_field_too_many_is_refused(payload: type[Payload]) -> None:
    """A change of a type's data raises its version: there is nothing to ignore (§EVT-18)."""
    definition = SCHEMAS[f"payloads/{payload.EVENT_TYPE}.schema.json"]["$defs"][payload.__name__]
    assert definition["additionalProperties"] is False


def test_the_schemas_that_folders_and_readers_rely_on_keep_their_names() -> None:
    assert {"event", "snapshot", "run_snapshot"} <= DOCUMENTS.keys()
