"""`SEND_EMAIL`: mail over SMTP.

A server takes a mail with its answer to the last line of it; until then nothing was sent. So a mail that is
refused for one of several recipients for a time only is held back for all: nobody gets it twice (§OUT-54).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiosmtplib

from runstone.core.effect_checks import parse_address
from runstone.core.effect_specs import EffectSpec, SendEmail
from runstone.errors import InvalidPayload, SettingsInvalid
from runstone.outbox.executors.failures import excerpt, failed, patience, reason
from runstone.outbox.executors.gate import Gate
from runstone.outbox.executors.letter import Letter, compose
from runstone.outbox.executors.smtp import Connections, EmailConfig
from runstone.ports.executor import EffectCall, Failed, Outcome, Succeeded

__all__ = ["EmailConfig", "EmailExecutor"]

_CANNOT: Final = (aiosmtplib.SMTPException, aiosmtplib.SMTPNotSupported, UnicodeEncodeError, ValueError)
"""What aiosmtplib raises, by exact type, for what the server or SMTP has no way to do."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class _Mailing:
    """How far one mail has come."""

    def __init__(self, letter: Letter) -> None:
        self.letter = letter
        self.accepted: list[str] = []
        self.refused: dict[str, aiosmtplib.SMTPRecipientRefused] = {}
        self.handed_over = False
        """Whether its text is on the way: from here on, silence is no answer."""


class EmailExecutor:
    """Sends mail through one server."""

    def __init__(self, config: EmailConfig, *, gate: Gate | None = None) -> None:
        _check(config)
        self._config = config
        self._gate = gate or Gate()
        self._connections = Connections(config)

    def target(self, spec: EffectSpec) -> str | None:
        return f"{self._config.host}:{self._config.actual_port}"

    async def execute(self, call: EffectCall) -> Outcome:
        config = self._config
        try:
            mailing = _Mailing(self._compose(call))
        except ValueError as error:  # a domain that is not one, once it is written for the network
            return failed("VALIDATION", "INVALID_ADDRESS", reason(error), nothing_sent=True)
        if refused := await self._gate.objection(call, config.host):
            return refused
        password = None if config.password is None else await self._gate.secret(call, config.password)
        if isinstance(password, Failed):
            return password
        return await self._send(mailing, password, patience(config.timeout, call.timeout))

    def _compose(self, call: EffectCall) -> Letter:
        assert isinstance(call.spec, SendEmail)
        return compose(
            call.spec,
            sender=self._config.sender,
            domain=self._config.message_id_domain,
            tenant_id=call.tenant_id,
            key=call.key,
            requested_at=call.requested_at,
        )

    async def _send(self, mailing: _Mailing, password: str | None, seconds: float) -> Outcome:
        try:
            async with asyncio.timeout(seconds), self._connections.borrow(password) as client:
                return await _deliver(client, mailing)
        except (aiosmtplib.SMTPException, OSError, TimeoutError, ValueError) as error:
            return self._failure(mailing, error)

    def _failure(self, mailing: _Mailing, error: Exception) -> Failed:
        where = f"{self._config.host}:{self._config.actual_port}"
        nothing_sent = not mailing.handed_over
        match error:
            case ValueError() | aiosmtplib.SMTPException() if type(error) in _CANNOT:
                return failed(
                    "VALIDATION", "SMTP_NOT_SUPPORTED", f"{where}: {reason(error)}", nothing_sent=nothing_sent
                )
            case aiosmtplib.SMTPResponseException(code=code):
                return failed(
                    "EXTERNAL",
                    f"SMTP_{code}",
                    f"{where} answered {code}: {excerpt(error.message)}",
                    retryable=_temporary(code),
                    nothing_sent=True,
                    target_down=code == 421,
                )
            case TimeoutError():
                return failed(
                    "TIMEOUT",
                    "SMTP_TIMEOUT",
                    f"{where}: {'no answer to the mail' if mailing.handed_over else 'not ready'} in time",
                    retryable=True,
                    nothing_sent=nothing_sent,
                    target_down=True,
                )
            case _:
                return failed(
                    "EXTERNAL",
                    "SMTP_CONNECTION_LOST" if mailing.handed_over else "SMTP_CONNECT_FAILED",
                    f"{where}: {reason(error)}",
                    retryable=True,
                    nothing_sent=nothing_sent,
                    target_down=True,
                )

    async def aclose(self) -> None:
        await self._connections.aclose()


async def _deliver(client: aiosmtplib.SMTP, mailing: _Mailing) -> Outcome:
    """MAIL, RCPT for each recipient, DATA."""
    letter = mailing.letter
    encoding = "utf-8" if letter.international else "ascii"
    if letter.international:
        if client.is_ehlo_or_helo_needed:
            await client.ehlo()
        if not client.supports_extension("smtputf8"):
            raise aiosmtplib.SMTPNotSupported("an address is not ASCII, and the server lacks SMTPUTF8")
    options = ["SMTPUTF8", "BODY=8BITMIME"] if letter.international else []
    await client.mail(letter.sender, options=options, encoding=encoding)
    for recipient in letter.recipients:
        try:
            await client.rcpt(recipient, encoding=encoding)
            mailing.accepted.append(recipient)
        except aiosmtplib.SMTPRecipientRefused as refused:
            mailing.refused[recipient] = refused
    if held_back := _held_back(mailing):
        await client.rset()
        return held_back
    mailing.handed_over = True
    answer = await client.data(letter.content)
    return Succeeded(_result(mailing, answer))


def _held_back(mailing: _Mailing) -> Failed | None:
    """Nobody gets the mail if nobody may, or if somebody may later."""
    later = any(_temporary(refused.code) for refused in mailing.refused.values())
    if mailing.accepted and not later:
        return None
    said = "; ".join(f"{recipient}: {_said(refused)}" for recipient, refused in mailing.refused.items())
    whom = "some recipients for now, so nobody was sent it" if mailing.accepted else "every recipient"
    return failed(
        "EXTERNAL",
        "SMTP_RECIPIENTS_REFUSED",
        f"The server refused {whom}: {said}",
        retryable=later,
        nothing_sent=True,
    )


def _result(mailing: _Mailing, answer: aiosmtplib.SMTPResponse) -> dict[str, Any]:
    result: dict[str, Any] = {
        "message_id": mailing.letter.message_id,
        "accepted": mailing.accepted,
        "answer": excerpt(f"{answer.code} {answer.message}"),
    }
    if mailing.refused:
        result["refused"] = {recipient: _said(refused) for recipient, refused in mailing.refused.items()}
    return result


def _said(refused: aiosmtplib.SMTPRecipientRefused) -> str:
    return excerpt(f"{refused.code} {refused.message}")


def _temporary(code: int) -> bool:
    return 400 <= code < 500


def _check(config: EmailConfig) -> None:
    """What would fail for every mail is said at once."""
    try:
        parse_address(config.sender, "/sender")
    except InvalidPayload as error:
        raise SettingsInvalid(f"The sender of mail: {error.reason}") from error
    if config.username and config.security == "none" and config.host not in _LOOPBACK:
        raise SettingsInvalid(
            f"A password would go to {config.host} for everybody to read: set security to starttls or tls"
        )
