"""Pydantic models as values, without depending on Pydantic: a model is what has a model's methods.

What is written must read back. A model whose aliases are the same both ways is written by them, as its
own JSON is; one that reads by other names than it writes is kept by the names of its fields. Reading
takes either, so an answer from outside may use a model's aliases whatever the log does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, get_args

import msgspec
from msgspec import Raw


def is_model(kind: type) -> bool:
    """Whether values of this type can be dumped and validated."""
    return hasattr(kind, "model_dump") and hasattr(kind, "model_validate_json")


def dump(value: Any) -> Any:
    """A model as plain JSON values."""
    kind: Any = type(value)
    return value.model_dump(mode="json", by_alias=_same_both_ways(kind), round_trip=True)


def load(kind: Any, value: Any) -> Any:
    """The model back; read as JSON, so that a strict model takes a time that is written as text."""
    return kind.model_validate_json(msgspec.json.encode(value), **_either_name(kind.model_validate_json))


def reader(annotation: Any) -> Callable[[Raw], Any] | None:
    """Reads what only Pydantic can, such as one of several models; none if no model is concerned."""
    if not any(isinstance(part, type) and is_model(part) for part in _parts(annotation)):
        return None
    adapter = sys.modules["pydantic"].TypeAdapter(annotation)  # there are models, so it is there
    options = _either_name(adapter.validate_json)

    def read(raw: Raw) -> Any:
        try:
            return adapter.validate_json(bytes(raw), **options)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error

    return read


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def schema(kind: Any) -> dict[str, Any]:
    """What fits, as a JSON Schema, by the names under which values are written."""
    try:
        described: dict[str, Any] = kind.model_json_schema(by_alias=_same_both_ways(kind))
    except Exception as error:  # Pydantic has many reasons, and an annotation that it refuses is one
        raise NotImplementedError(f"{kind.__name__} cannot describe itself") from error
    return described


@lru_cache(maxsize=1024)
def _same_both_ways(kind: Any) -> bool:
    """Whether the model, and all that it holds, reads by the names it writes."""
    try:
        read, written = (
            _names(kind.model_json_schema(mode=mode)) for mode in ("validation", "serialization")
        )
    except Exception:  # a model that cannot describe itself
        return False
    return all(names <= written.get(model, set()) for model, names in read.items())


def _names(described: dict[str, Any]) -> dict[str, set[str]]:
    models = {"": described, **described.get("$defs", {})}
    return {name: set(model.get("properties", ())) for name, model in models.items()}


@lru_cache(maxsize=1024)
def _either_name(validate: Callable[..., Any]) -> dict[str, bool]:
    """Pydantic before 2.11 reads by alias, or by name where the model says so, and cannot be told."""
    parameters = inspect.signature(validate).parameters
    return {option: True for option in ("by_alias", "by_name") if option in parameters}
