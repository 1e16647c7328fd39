"""Between what users write and what the log holds: arguments and results, by their annotations.

A value that was computed just now goes through the same bytes as one that was recorded last
year, so a handler sees the same thing on its first day and on replay.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from runstone.core import codec
from runstone.core.payloads import OptionalJson
from runstone.engine import models
from runstone.errors import InvalidPayload, RegistrationError


class Shape:
    """One annotation: how its values are written and read."""

    def __init__(self, annotation: Any, where: str) -> None:
        self.annotation = Any if annotation is inspect.Parameter.empty else annotation
        self._decode: Callable[[Raw], Any]
        try:
            self._decode = msgspec.json.Decoder(self.annotation, dec_hook=_from_model).decode
        except TypeError as error:
            read = models.reader(self.annotation)
            if read is None:
                raise RegistrationError(
                    f"{where}: values of {annotation!r} cannot be read back: {error}"
                ) from error
            self._decode = read

    def schema(self) -> OptionalJson:
        """What fits, as a JSON Schema; nothing if anything does, or if that cannot be said."""
        if self.annotation is Any:
            return UNSET
        try:
            return write(msgspec.json.schema(self.annotation, schema_hook=_model_schema))
        except (TypeError, NotImplementedError):
            return UNSET

    def read(self, raw: Raw) -> Any:
        """The value that these bytes hold."""
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            raise InvalidPayload("", str(error)) from error


_read_fields: Final = codec.reader(dict[str, Raw])

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    """A function's parameters and result, as the log sees them."""

    def __init__(self, function: Callable[..., Any], skip: int = 0) -> None:
        where = getattr(function, "__qualname__", repr(function))
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            raise RegistrationError(f"{where}: {error}; annotations must be importable names") from error
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        for parameter in parameters:
            if parameter.kind not in _NAMED:
                raise RegistrationError(f"{where}({parameter.name}): the log knows arguments by their names")
        self._signature = inspect.Signature(parameters)
        self.names = tuple(parameter.name for parameter in parameters)
        self._plain = all(
            parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters
        )
        self._shapes = {
            parameter.name: Shape(hints.get(parameter.name, Any), f"{where}({parameter.name})")
            for parameter in parameters
        }
        self.result = Shape(hints.get("return", Any), f"the result of {where}")

    def pack(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Raw:
        """A call's arguments by name."""
        if self._plain and not keywords and len(arguments) == len(self.names):
            return write(dict(zip(self.names, arguments, strict=True)))
        bound = self._signature.bind(*arguments, **keywords)
        return write(dict(bound.arguments))

    def read(self, name: str, raw: Raw) -> Any:
        """The value of one parameter."""
        return self._shapes[name].read(raw)

    def unpack(self, raw: Raw) -> dict[str, Any]:
        """The arguments of a recorded call."""
        given = _read_fields(raw)
        return {name: self._shapes[name].read(value) for name, value in given.items() if name in self._shapes}


def write(value: object) -> Raw:
    """A user's value as canonical JSON; what cannot be stored says so."""
    return codec.canonical(value, hook=_to_plain)


def _to_plain(value: Any) -> Any:
    if not models.is_model(type(value)):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return models.dump(value)


def _model_schema(kind: type) -> dict[str, Any]:
    if not models.is_model(kind):
        raise NotImplementedError
    return models.schema(kind)


def _from_model(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    if not models.is_model(kind):
        raise TypeError(f"{kind.__name__} cannot be read from JSON")
    return models.load(kind, value)
