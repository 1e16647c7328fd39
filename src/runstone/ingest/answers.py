"""Answers before they are taken in: one that does not fit its wait must not end it (§ENG-22).

The wait's start holds a JSON Schema of what its handler expects, so a gateway needs no code of the
user. Of the schema's language this understands what types say: shapes, choices and bounds. What it
does not know, such as the format of a text, it lets pass, and the handler's own reading decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from runstone.core.payloads import StepStarted
from runstone.core.state import RunState
from runstone.core.stream import Stream

Schema: TypeAlias = Mapping[str, Any]

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

_BOUNDS: Final[dict[str, tuple[type | tuple[type, ...], Callable[[Any, Any], bool]]]] = {
    "minimum": ((int, float), lambda value, bound: value >= bound),
    "maximum": ((int, float), lambda value, bound: value <= bound),
    "exclusiveMinimum": ((int, float), lambda value, bound: value > bound),
    "exclusiveMaximum": ((int, float), lambda value, bound: value < bound),
    "minLength": (str, lambda value, bound: len(value) >= bound),
    "maxLength": (str, lambda value, bound: len(value) <= bound),
    "pattern": (str, lambda value, bound: re.search(bound, value) is not None),
    "minItems": (list, lambda value, bound: len(value) >= bound),
    "maxItems": (list, lambda value, bound: len(value) <= bound),
    "minProperties": (dict, lambda value, bound: len(value) >= bound),
    "maxProperties": (dict, lambda value, bound: len(value) <= bound),
}


def answer_schema(stream: Stream, name: str) -> Schema | None:
    """What the wait that would take the answer expects; none if there is none, or it takes anything."""
    state = stream.fold()
    assert isinstance(state, RunState), "answers go to runs"
    open_steps = (state.steps[step_id] for step_id in state.open_steps.values())
    wait = next((step for step in open_steps if step.wait_name == name), None)
    if wait is None:
        return None
    for event in stream.events:
        if event.event_type == "STEP_STARTED" and event.aggregate_id == wait.id:
            spec = msgspec.json.decode(event.event_data, type=StepStarted).wait
            if spec is not None and isinstance(spec.answer_schema, msgspec.Raw):
                schema: Schema = msgspec.json.decode(spec.answer_schema)
                return schema
    return None


def misfit(value: Any, schema: Schema) -> str | None:
    """Where and why a value does not fit; nothing if it does."""
    return next(_misfits(value, schema, "", schema.get("$defs", {})), None)


def _misfits(value: Any, schema: Schema, pointer: str, definitions: Schema) -> Iterator[str]:
    while "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_TYPES[kind](value) for kind in kinds if kind in _TYPES):
        yield f"{pointer or 'it'} is not of type {' or '.join(kinds)}"
        return
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        yield f"{pointer or 'it'} is none of {schema['enum']}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{pointer or 'it'} is not {schema['const']!r}"
    for bound, (concerned, holds) in _BOUNDS.items():
        if bound in schema and isinstance(value, concerned) and not holds(value, schema[bound]):
            yield f"{pointer or 'it'} is beyond {bound} {schema[bound]}"
    choices = schema.get("anyOf", ())
    if choices and all(any(_misfits(value, choice, pointer, definitions)) for choice in choices):
        yield f"{pointer or 'it'} fits none of its types"
    if isinstance(value, dict):
        yield from _object_misfits(value, schema, pointer, definitions)
    if isinstance(value, list):
        yield from _array_misfits(value, schema, pointer, definitions)


def _same(value: Any, other: Any) -> bool:
    """Equal as JSON, where `true` is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _object_misfits(
    value: dict[str, Any], schema: Schema, pointer: str, definitions: Schema
) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{pointer}/{name} is missing"
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            yield from _misfits(item, known[name], f"{pointer}/{name}", definitions)
        elif others is False:
            yield f"{pointer}/{name} is unknown"
        elif isinstance(others, dict):
            yield from _misfits(item, others, f"{pointer}/{name}", definitions)


def _array_misfits(value: list[Any], schema: Schema, pointer: str, definitions: Schema) -> Iterator[str]:
    first = schema.get("prefixItems", ())
    rest = schema.get("items", {})
    for place, item in enumerate(value):
        expected = first[place] if place < len(first) else rest
        if isinstance(expected, dict):
            yield from _misfits(item, expected, f"{pointer}/{place}", definitions)
