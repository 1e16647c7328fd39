"""What the types of a spec's fields cannot say: lines, addresses, URLs, headers, secrets (§ENT-22, §PAY-28).

Each check raises `InvalidPayload` with the place. None repeats the value it refuses: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from runstone.core.codec import escaped
from runstone.errors import InvalidPayload

_BREAKS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
"""Whatever some program takes for the end of a line, and the other control characters; a tab may stand."""

_SPEC: Final = r"[^\s@<>()\[\],;:\\\"]+@[^\s@<>()\[\],;:\\\"]+"
_ADDRESS: Final = re.compile(rf"(?:(?P<name>[^<>@]*?)\s*<(?P<framed>{_SPEC})>|(?P<bare>{_SPEC}))")

_URL: Final = re.compile(
    r"https?://(?P<user>[^/?#@]*@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?([/?#]\S*)?"
)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

FORM: Final = "application/x-www-form-urlencoded"

_OURS: Final = frozenset(
    (
        *("idempotency-key", "x-idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature"),
        *("host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"),
        "accept-encoding",
    )
)
"""Headers that the executor or its HTTP client writes itself."""

_SECRET_HEADERS: Final = frozenset(("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"))

_SECRET: Final = re.compile(
    r"^\s*bearer\s+\S+\s*$"
    r"|\bbearer\s+(?=\S*\d)[\w.~+/=-]{16,}"
    r"|\bsk_\w{8,}|\bsk-(?:proj|ant|live|test)-[\w-]{12,}|\bsk-[a-z0-9]{32,}"
    r"|\b(?:rk_live|rk_test|whsec|ghp|gho|ghs|github_pat|glpat)[_-]\w{16,}"
    r"|\bxox[abeoprs]-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.IGNORECASE,
)
"""Literals that are keys for all the world to see; a bearer of bad news is none."""

_REFERENCE: Final = 'keep it in the configuration, and name it here: SecretRef("its-name")'


def check_line(text: str, pointer: str) -> None:
    """Refuses text that would become two lines, and so a header of somebody else's."""
    if _BREAKS.search(text):
        raise InvalidPayload(pointer, "a line break or another control character in text that is one line")


def parse_address(text: str, pointer: str = "") -> tuple[str, str]:
    """The name and the address of `Ann <ann@example.org>` or `ann@example.org`."""
    check_line(text, pointer)
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise InvalidPayload(pointer, "not one mail address: write ann@example.org or Ann <ann@example.org>")
    return (found["name"] or "").strip().strip('"'), found["framed"] or found["bare"]


def check_moment(moment: datetime, pointer: str) -> None:
    """Refuses a time that lies beyond the calendar in UTC, as all times are kept."""
    try:
        moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidPayload(pointer, "a time that lies beyond the calendar in UTC") from error


def check_url(url: str, pointer: str) -> None:
    """Refuses what is not an absolute http(s) URL, and one that carries a password."""
    check_line(url, pointer)
    found = _URL.fullmatch(url)
    if found is None:
        raise InvalidPayload(pointer, "not an absolute URL that begins with http:// or https://")
    if found["user"]:
        raise InvalidPayload(pointer, f"a URL with a user and a password in it: {_REFERENCE}, in a header")


def check_headers(headers: Mapping[str, object], pointer: str) -> None:
    """Refuses headers that are no headers, that the executor writes itself, or that hold a secret."""
    for name, value in headers.items():
        place = f"{pointer}/{escaped(name)}"
        if not _TOKEN.fullmatch(name):
            raise InvalidPayload(place, "not the name of a header")
        if name.lower() in _OURS:
            raise InvalidPayload(place, f"{name} is written by the executor: leave it out")
        if isinstance(value, str):
            check_line(value, place)
            if name.lower() in _SECRET_HEADERS:
                raise InvalidPayload(place, f"{name} holds a secret: {_REFERENCE}")


def media_type(headers: Mapping[str, object]) -> str:
    """The `Content-Type` among them, without its parameters; JSON if there is none."""
    for name, value in headers.items():
        if name.lower() == "content-type" and isinstance(value, str):
            return value.partition(";")[0].strip().lower()
    return "application/json"


def is_json(media: str) -> bool:
    return media.endswith(("/json", "+json"))


def check_body(headers: Mapping[str, object], body: object, pointer: str) -> None:
    """Refuses a body that cannot be written as its headers say."""
    media = media_type(headers)
    if body is None or is_json(media) or isinstance(body, str):
        return
    if media != FORM:
        raise InvalidPayload(pointer, f"a body of type {media} is given as text")
    if not isinstance(body, dict) or not all(isinstance(item, str | int | float) for item in body.values()):
        raise InvalidPayload(pointer, "a form is given as an object of texts and numbers, or as text")


def check_no_secret(value: Any, pointer: str = "") -> None:
    """Refuses texts, anywhere in a value, that look like an API key, a bearer token or a private key."""
    match value:
        case str():
            if _SECRET.search(value):
                raise InvalidPayload(pointer, f"this looks like a secret: {_REFERENCE}")
        case dict():
            for key, item in value.items():
                check_no_secret(item, f"{pointer}/{escaped(key)}")
        case list():
            for index, item in enumerate(value):
                check_no_secret(item, f"{pointer}/{index}")
