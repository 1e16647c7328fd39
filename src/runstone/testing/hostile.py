"""Texts and payloads that are legal and that somebody's storage gets wrong (§PAY-15)."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from runstone.core.codec import MAX_DEPTH
from runstone.core.fold import INLINE_BYTES

EVERY_PLANE: Final = "".join(chr(plane << 16 | offset) for plane in range(17) for offset in (0xA1, 0xFFFD))
"""Characters of all seventeen planes of Unicode."""

TEXTS: Final = (
    "plain",
    "größer, naïve, Ελληνικά, 日本語",
    "👩‍👩‍👧 e\u0301 \u202eright to left\u202c \u2028\u2029\ufeff\ufffe\uffff",
    EVERY_PLANE,
    "'; DROP TABLE runs; -- \" \\ / \\u0000 %s {} $1 :name ?",
    "\x01\x08\t\n\x0b\x0c\r\x1f\x7f\x85",
)
"""For columns of text: no empty text, no NUL, none longer than a hundred characters."""


def _deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def _text(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


PAYLOADS: Final = tuple(
    map(
        Raw,
        (
            b"null",
            b"{}",
            b'{"b":true,"a":[1,2.5,"three"]}',
            # Numbers that a JSON reader would write differently.
            *(b"1e2", b"1E+2", b"-0", b"-0.0", b"1.0", b"0.1", b"100000000000000000000.0"),
            # Numbers at the edges.
            *(b"9007199254740991", b"-9007199254740991", b"5e-324", b"1.7976931348623157e308"),
            # White space, order of keys and escapes that a JSON column would change.
            b'{ "z" : 1,\t"a":[ ] , "":{"":""}}',
            b'"\\u00e9\\ud83d\\ude00\\/\\u2028"',
            b'"' + EVERY_PLANE.encode() + b'"',
            # What looks like a reference to an event and is none.
            b'{"$event":"00000000-0000-7000-8000-000000000000","field":"result"}',
            b'{"$event":null}',
            _deep(MAX_DEPTH),
            b'{"a":' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1),
            # Around the size over which a row holds a reference, and far beyond it.
            *(_text(INLINE_BYTES), _text(INLINE_BYTES + 1), _text(64 * 1024)),
        ),
    )
)
"""JSON whose exact bytes have to come back; the simplest first."""
