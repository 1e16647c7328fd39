"""Ids: lower-case hyphenated UUIDs, kept as strings.

Whatever is indexed gets a UUIDv7, so that new rows land beside each other (§ENT-5). A string
costs no conversion on its way between JSON, SQL and Python; decoding checks its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from runstone.errors import InvalidPayload

# Python's `$` also matches before a final newline; a JSON Schema's does not.
UUID_PATTERN: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)"

Id: TypeAlias = Annotated[str, Meta(pattern=UUID_PATTERN, extra_json_schema={"format": "uuid"})]
"""A UUID in its canonical text form."""

Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
"""A SHA-256 in hexadecimal."""

NewId: TypeAlias = Callable[[], str]
"""Where new ids come from: the system's entropy, or a seed in simulation."""

DEFAULT_TENANT: Final = "00000000-0000-7000-8000-000000000001"
"""The one tenant of an embedded store that nobody divided (its name is `default`)."""


_FORM: Final = re.compile(UUID_PATTERN)


def check_id(text: str) -> None:
    """Refuses what is no id."""
    if not _FORM.match(text):
        raise InvalidPayload("", f"{text!r} is no UUID in its lower-case form")


def uuid7(unix_ms: int, entropy: bytes) -> str:
    """A UUIDv7 from a time and ten random bytes."""
    if len(entropy) != 10:
        raise ValueError("a UUIDv7 takes ten random bytes")
    tail = int.from_bytes(entropy, "big")
    value = (
        (unix_ms & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (tail >> 68 & 0xFFF) << 64
        | 0b10 << 62
        | tail & 0x3FFF_FFFF_FFFF_FFFF
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
