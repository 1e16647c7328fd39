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


def is_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _FORM.match(text) is not None


def check_id(text: str) -> None:
    """Refuses what is no id."""
    if not is_id(text):
        raise InvalidPayload("", f"{text!r} is no UUID in its lower-case form")


def uuid7(unix_ms: int, entropy: bytes) -> str:
    """A UUIDv7 from a time and ten random bytes."""
    if len(entropy) != 10:
        raise ValueError("a UUIDv7 takes ten random bytes")
    time, tail = f"{unix_ms & 0xFFFF_FFFF_FFFF:012x}", entropy.hex()
    return f"{time[:8]}-{time[8:]}-7{tail[:3]}-{_VARIANT[tail[4]]}{tail[5:8]}-{tail[8:]}"


_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The two highest bits of this digit are the variant's, the others random."""
