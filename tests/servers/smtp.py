"""An SMTP server that keeps every mail, and answers as it is told to: aiosmtpd, in the test's own loop."""

from __future__ import annotations

import asyncio
import email
import email.policy
import shutil
import ssl
import subprocess
from email.message import EmailMessage
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """One mail as it came in."""

    sender: str
    recipients: list[str]
    content: bytes
    user: str | None
    encrypted: bool
    connection: int

    @property
    def message(self) -> EmailMessage:
        parsed = email.message_from_bytes(self.content, policy=email.policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


class SmtpSink:
    """Takes any mail, unless `refusals` says something else for a recipient, or `answers` for a mail.

    Both are used up from the front: `["451 later", "250 OK"]` refuses the first time only.
    """

    def __init__(
        self,
        *,
        answers: list[str] | None = None,
        refusals: dict[str, list[str]] | None = None,
        users: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        utf8: bool = True,
        delay: float = 0.0,
        hang_up: bool = False,
    ) -> None:
        self.answers = answers or []
        self.refusals = refusals or {}
        self.mails: list[Mail] = []
        self.connections = 0
        self._users = users
        self._tls = tls
        self._implicit = implicit
        self._utf8 = utf8
        self._delay = delay
        self._hang_up = hang_up
        self._protocols: list[SMTP] = []
        self._arrival = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol, "127.0.0.1", 0, ssl=self._tls if self._implicit else None
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.hang_up()
        await asyncio.sleep(0)

    def _protocol(self) -> SMTP:
        self.connections += 1
        made = SMTP(
            self,
            hostname="sink.example.org",
            enable_SMTPUTF8=self._utf8,
            tls_context=None if self._implicit else self._tls,
            require_starttls=self._tls is not None and not self._implicit,
            authenticator=self._authenticate if self._users is not None else None,
            auth_required=self._users is not None,
            loop=asyncio.get_running_loop(),
        )
        self._protocols.append(made)
        return made

    async def arrival(self) -> None:
        """Until the first mail is there, taken or not."""
        await self._arrival.wait()

    def hang_up(self) -> None:
        """Closes every connection from this side."""
        for protocol in self._protocols:
            if isinstance(protocol.transport, asyncio.WriteTransport):
                protocol.transport.abort()

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        assert self._users is not None
        user = data.login.decode()
        right = self._users.get(user) == data.password.decode()
        return AuthResult(success=right, auth_data=user, handled=False)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if waiting := self.refusals.get(address):
            answer = waiting.pop(0)
            if not answer.startswith("250"):
                return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self._arrival.set()
        if self._delay:
            await asyncio.sleep(self._delay)
        answer = self.answers.pop(0) if self.answers else "250 Taken"
        if not answer.startswith("250"):
            return answer
        assert isinstance(envelope.content, bytes)
        self.mails.append(
            Mail(
                sender=envelope.mail_from or "",
                recipients=list(envelope.rcpt_tos),
                content=envelope.content,
                user=session.auth_data,
                encrypted=session.ssl is not None or self._implicit,
                connection=self.connections,
            )
        )
        if self._hang_up:
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.abort()
        return answer


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate that signed itself for 127.0.0.1, and a server's context with it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here, which makes the certificate")
    key, public = folder / "key.pem", folder / "certificate.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(public)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, key)
    return public, context
