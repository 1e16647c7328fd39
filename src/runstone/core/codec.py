"""JSON: one canonical, byte-stable form going out, one strict reading coming in (§PAY-1 to §PAY-13).

`canonical` is the only way a value becomes bytes that are stored; `parse` the only way
foreign JSON text becomes a value. Both refuse what some other JSON reader would understand
differently, and say where it stands with a JSON pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from runstone.errors import InvalidPayload

MAX_DEPTH: Final = 128
MAX_BYTES: Final = 8 * 1024 * 1024
MAX_INTEGER: Final = 2**53 - 1

NULL: Final = Raw(b"null")

_OWN_DEPTH: Final = 16
"""How deep a payload of a user's may stand in a struct of ours."""

_T = TypeVar("_T")
_encode = msgspec.json.Encoder(order="sorted").encode


class _Repeated:
    """Marks an object that named a key twice, until the walk that knows its pointer meets it."""

    def __init__(self, key: str) -> None:
        self.key = key


def encode(value: object) -> bytes:
    """The canonical bytes of a value made by this package: no checks."""
    return _encode(value)


def encode_line(value: msgspec.Struct) -> bytes:
    """The canonical bytes, in one line, of a struct whose texts may be anybody's.

    The payloads in it were checked before, but for line breaks between their values.
    """
    try:
        encoded = _encode(value)
    except UnicodeEncodeError as error:
        raise InvalidPayload("", "text holds a lone surrogate") from error
    if b"\\u0000" in encoded:
        _check(json.loads(encoded), "", -_OWN_DEPTH)
    check_line(encoded)
    return encoded


def canonical(value: object, hook: Callable[[Any], Any] | None = None) -> Raw:
    """The canonical bytes of any value a user may hand in, checked; `hook` explains users' types."""
    try:
        plain = msgspec.to_builtins(value, order="sorted", enc_hook=hook)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(_culprit(value, "", hook), f"not storable as JSON: {error}") from error
    check(plain)
    encoded = _encode(plain)
    _check_size(encoded)
    return Raw(encoded)


def _culprit(value: object, pointer: str, hook: Callable[[Any], Any] | None) -> str:
    """Where the first thing stands that cannot be encoded; the encoder itself does not say."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif isinstance(value, msgspec.Struct):
        items = ((field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(value))
    for key, item in items:
        try:
            msgspec.to_builtins(item, order="sorted", enc_hook=hook)
        except (TypeError, ValueError):
            return _culprit(item, f"{pointer}/{escaped(str(key))}", hook)
        except RecursionError:
            break
    return pointer


def parse(text: bytes | str) -> Any:
    """The value of a strict I-JSON text; whatever is ambiguous is refused."""
    _check_size(text)
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=float)
    except UnicodeDecodeError as error:
        raise InvalidPayload("", f"not valid UTF-8: byte {error.start}") from error
    except RecursionError as error:
        raise InvalidPayload("", f"nested deeper than {MAX_DEPTH}") from error
    except ValueError as error:
        raise InvalidPayload("", f"not valid JSON: {error}") from error
    check(value)
    return value


def reader(kind: type[_T]) -> Callable[[bytes | Raw], _T]:
    """Reads bytes as one type. To be made when a module is imported, and by one thread: msgspec looks a
    type over when it first meets it, and two threads that make it do so at once can crash the process."""
    return msgspec.json.Decoder(kind).decode


def decode_as(raw: Raw | bytes, kind: type[_T]) -> _T:
    """Stored bytes as a typed value; a mismatch names its place."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidPayload(_pointer_of(error), str(error)) from error


def check_line(content: bytes) -> None:
    """Refuses JSON with line breaks between its values: an event is one line wherever it is written."""
    if b"\n" in content or b"\r" in content:
        raise InvalidPayload("", "JSON with line breaks between its values: send it without")


def check(value: object) -> None:
    """Refuses anything that strict I-JSON has no single reading for."""
    if not _is_plain(value, 0):
        _check(value, "", 0)


def _is_plain(value: object, depth: int) -> bool:
    """Whether there is certainly nothing to refuse; if there may be, `_check` says what and where."""
    if isinstance(value, str):
        return value.isascii() and "\0" not in value
    if isinstance(value, dict):
        return depth < MAX_DEPTH and all(
            isinstance(key, str) and key.isascii() and "\0" not in key and _is_plain(item, depth + 1)
            for key, item in value.items()
        )
    if isinstance(value, list):
        return depth < MAX_DEPTH and all(_is_plain(item, depth + 1) for item in value)
    if isinstance(value, int):
        return -MAX_INTEGER <= value <= MAX_INTEGER
    return value is None or (isinstance(value, float) and math.isfinite(value))


def _check(value: object, pointer: str, depth: int) -> None:
    match value:
        case None | bool():
            pass
        case str():
            check_text(value, pointer)
        case int():
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise InvalidPayload(pointer, "integer beyond ±(2^53 - 1): send it as a string")
        case float():
            if not math.isfinite(value):
                raise InvalidPayload(pointer, f"{value} is not a JSON number")
        case dict():
            _check_depth(pointer, depth)
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidPayload(pointer, f"object key {key!r} is not a string")
                check_text(key, pointer)
                _check(item, f"{pointer}/{escaped(key)}", depth + 1)
        case list() | tuple():
            _check_depth(pointer, depth)
            for index, item in enumerate(value):
                _check(item, f"{pointer}/{index}", depth + 1)
        case _Repeated():
            raise InvalidPayload(pointer, f"object key {value.key!r} stands there twice")
        case _:
            raise InvalidPayload(pointer, f"{type(value).__name__} is not a JSON value")


def _check_depth(pointer: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise InvalidPayload(pointer, f"nested deeper than {MAX_DEPTH}")


def check_text(text: str, pointer: str = "") -> None:
    if "\0" in text:
        raise InvalidPayload(pointer, "text holds a NUL character")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidPayload(pointer, "text holds a lone surrogate") from error


def _check_size(text: bytes | str) -> None:
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidPayload("", f"{size} bytes are over the bound of {MAX_BYTES}")


def _object(pairs: list[tuple[str, object]]) -> object:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return _Repeated(repeated)


def escaped(key: str) -> str:
    """A key as a JSON pointer writes it."""
    return key.replace("~", "~0").replace("/", "~1")


def _pointer_of(error: Exception) -> str:
    """msgspec says `… - at `$.a[0].b``; a JSON pointer says `/a/0/b`. Beyond `[...]` it does not know."""
    _, found, path = str(error).rpartition("at `$")
    if not found:
        return ""
    known, _, _ = path.rstrip("`").partition("[...]")
    return known.replace("[", ".").replace("]", "").replace(".", "/")
