"""A mail as bytes, the same at every attempt (§OUT-50): nothing in it is made up on the way."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

import msgspec

from runstone.core.effect_checks import parse_address
from runstone.core.effect_specs import SendEmail
from runstone.core.keys import digest

_PLAIN: Final = SMTP.clone(cte_type="7bit")
"""Everything as ASCII, which every server takes."""

_INTERNATIONAL: Final = _PLAIN.clone(utf8=True)
"""For addresses that are not ASCII before the `@`; the server has to know SMTPUTF8."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """What goes on the envelope, and what goes into it."""

    message_id: str
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    international: bool


def message_id(tenant_id: str, key: str, domain: str) -> str:
    """A `Message-ID` from the key (§OUT-19), which is unique in its tenant only."""
    return f"<{digest(tenant_id, key)[:40]}@{domain}>"


def compose(
    spec: SendEmail, *, sender: str, domain: str | None, tenant_id: str, key: str, requested_at: datetime
) -> Letter:
    """The letter of a spec; `sender` and `domain` come from the configuration."""
    origin = _address(spec.sender or sender)
    to, cc, bcc = (_addresses(given) for given in (spec.to, spec.cc, spec.bcc))
    known = message_id(tenant_id, key, domain or origin.domain)
    message = _headers(spec, origin, to, cc, known, requested_at)
    _fill(message, spec, known)
    everybody = (*to, *cc, *bcc)
    answers = (_address(spec.reply_to),) if spec.reply_to else ()
    international = not all(each.addr_spec.isascii() for each in (origin, *everybody, *answers))
    return Letter(
        message_id=known,
        sender=origin.addr_spec,
        recipients=tuple(dict.fromkeys(each.addr_spec for each in everybody)),
        content=message.as_bytes(policy=_INTERNATIONAL if international else _PLAIN),
        international=international,
    )


def _headers(
    spec: SendEmail,
    origin: Address,
    to: tuple[Address, ...],
    cc: tuple[Address, ...],
    known: str,
    requested_at: datetime,
) -> EmailMessage:
    message = EmailMessage(policy=_PLAIN)
    message["Message-ID"] = known
    message["Date"] = requested_at.replace(microsecond=0)
    message["From"] = origin
    message["To"] = to
    if cc:
        message["Cc"] = cc
    if spec.reply_to:
        message["Reply-To"] = _address(spec.reply_to)
    message["Subject"] = spec.subject
    return message


def _fill(message: EmailMessage, spec: SendEmail, known: str) -> None:
    """The text, or both forms side by side, the plain one first as the lesser (RFC 2046)."""
    if spec.body_text is None:
        message.set_content(spec.body_html or "", subtype="html")
        return
    message.set_content(spec.body_text)
    if spec.body_html is not None:
        message.add_alternative(spec.body_html, subtype="html")
        message.set_boundary(f"=_{digest(known, 'boundary')[:40]}")


def _addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    return tuple(map(_address, texts))


def _address(text: str) -> Address:
    """An address with its domain as the network writes it."""
    name, address = parse_address(text)
    local, _, domain = address.rpartition("@")
    if not domain.isascii():
        domain = domain.encode("idna").decode()
    return Address(display_name=name, username=local, domain=domain)
