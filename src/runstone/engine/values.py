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
        self._where = where
        self.decode: Callable[[Raw], Any]
        """Reads like `read`, for those who say themselves what did not fit."""
        try:
            self.decode = msgspec.json.Decoder(self.annotation, dec_hook=_from_model).decode
        except TypeError as error:
            read = models.reader(self.annotation)
            if read is None:
                raise RegistrationError(
                    f"{where}: values of {annotation!r} cannot be read back: {error}"
                ) from error
            self.decode = read

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
            return self.decode(raw)
        except msgspec.DecodeError as error:
            raise InvalidPayload("", f"{self._where}: {error}") from error

    def written(self, value: object) -> Raw:
        """A value of a user's that has to fit; what could not be read back is not recorded (§ENG-50)."""
        try:
            raw = write(value)
        except InvalidPayload as error:
            raise InvalidPayload(error.pointer, f"{self._where}: {error.reason}") from None
        self.read(raw)
        return raw


_read_fields: Final = codec.reader(dict[str, Raw])

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    """A function's parameters and result, as the log sees them."""

    def __init__(self, function: Callable[..., Any], skip: int = 0) -> None:
        where = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            raise RegistrationError(f"{where}: {error}; annotations must be importable names") from error
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        for parameter in parameters:
            if parameter.kind not in _NAMED:
                raise RegistrationError(f"{where}({parameter.name}): the log knows arguments by their names")
        self._where = where
        self._signature = inspect.Signature(parameters)
        self.names = tuple(parameter.name for parameter in parameters)
        self._plain = all(
            parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters
        )
        self.shapes = {
            parameter.name: Shape(hints.get(parameter.name, Any), f"{where}({parameter.name})")
            for parameter in parameters
        }
        result = hints.get("return", Any)
        told = "" if result is Any else f" -> {inspect.formatannotation(result)}"
        self.result = Shape(result, f"the result of {where}{told}")

    def pack(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Raw:
        """A call's arguments by name."""
        if self._plain and not keywords and len(arguments) == len(self.names):
            given = dict(zip(self.names, arguments, strict=True))
        else:
            given = self._bind(arguments, keywords)
        try:
            return write(given)
        except InvalidPayload as error:
            raise InvalidPayload(error.pointer, f"an argument of {self._where}: {error.reason}") from None

    def _bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._signature.bind(*arguments, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{self._where}{self._signature}: {error}") from None

    def read(self, name: str, raw: Raw) -> Any:
        """The value of one parameter."""
        return self.shapes[name].read(raw)

    def unpack(self, raw: Raw) -> dict[str, Any]:
        """The arguments of a recorded call."""
        given = _read_fields(raw)
        return {name: self.shapes[name].read(value) for name, value in given.items() if name in self.shapes}


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
