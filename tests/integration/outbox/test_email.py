"""`SEND_EMAIL` against a real SMTP server on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runstone.core.effect_specs import SecretRef, SendEmail
from runstone.errors import SettingsInvalid
from runstone.outbox.executors.email import EmailConfig, EmailExecutor
from runstone.outbox.executors.gate import Gate
from tests.integration.outbox.calls import call_of, done, not_done
from tests.servers.smtp import SmtpSink, certificate

ANN, BOB, CY = "ann@example.org", "bob@example.org", "cy@example.org"


@asynccontextmanager
async def executor_of(
    sink: SmtpSink | None, secrets: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[EmailExecutor]:
    port = {} if sink is None else {"port": sink.port}
    defaults = {"sender": "Shop <shop@example.org>", "host": "127.0.0.1", "security": "none", **port}
    config = EmailConfig(local_hostname="client.example.org", **{**defaults, **fields})
    executor = EmailExecutor(config, gate=Gate(secrets))
    try:
        yield executor
    finally:
        await executor.aclose()
        await executor.aclose()


def mail(**fields: Any) -> SendEmail:
    return SendEmail(**{"to": [ANN], "subject": "Your order", "body_html": "<p>Thanks</p>", **fields})


class TestLetter:
    async def test_it_arrives(self) -> None:
        async with SmtpSink() as sink, executor_of(sink) as executor:
            outcome = await done(executor, call_of(mail()))
        (taken,) = sink.mails
        assert (taken.sender, taken.recipients) == ("shop@example.org", [ANN])
        assert taken.message["From"] == "Shop <shop@example.org>"
        assert taken.message["To"] == ANN
        assert taken.message["Subject"] == "Your order"
        assert taken.message["Date"] == "Sun, 01 Mar 2026 12:00:00 +0000"
        assert taken.message.get_content_type() == "text/html"
        assert taken.message.get_content().strip() == "<p>Thanks</p>"
        assert outcome.result == {
            "message_id": taken.message["Message-ID"],
            "accepted": [ANN],
            "answer": "250 Taken",
        }

    async def test_every_attempt_sends_the_same_bytes(self) -> None:
        """§OUT-19: with the same Message-ID above all."""
        spec = mail(body_text="Thanks, grüße", cc=[BOB], reply_to="Help <help@example.org>")
        async with SmtpSink(answers=["451 later"]) as sink, executor_of(sink) as executor:
            assert (await not_done(executor, call_of(spec))).retryable
            await done(executor, call_of(spec, attempt=2))
            await done(executor, call_of(spec, attempt=3))
        second, third = sink.mails
        assert second.content == third.content
        assert second.message["Message-ID"].endswith("@example.org>")

    async def test_the_id_is_its_key_s_and_its_tenant_s(self) -> None:
        async with SmtpSink() as sink, executor_of(sink, message_id_domain="mail.example.net") as executor:
            for key, tenant in [("a", "t"), ("b", "t"), ("a", "u")]:
                await done(executor, call_of(mail(), key=key, tenant=tenant))
        ids = [taken.message["Message-ID"] for taken in sink.mails]
        assert len(set(ids)) == 3
        assert all(each.endswith("@mail.example.net>") for each in ids)

    async def test_both_forms_stand_side_by_side(self) -> None:
        async with SmtpSink() as sink, executor_of(sink) as executor:
            await done(executor, call_of(mail(body_text="Thanks.\n.\nDots stay.\n")))
        message = sink.mails[0].message
        assert message.get_content_type() == "multipart/alternative"
        plain, html = message.iter_parts()
        assert plain.get_content_type() == "text/plain"
        assert plain.get_content().splitlines() == ["Thanks.", ".", "Dots stay."]
        assert html.get_content().strip() == "<p>Thanks</p>"

    async def test_text_alone(self) -> None:
        async with SmtpSink() as sink, executor_of(sink) as executor:
            await done(executor, call_of(mail(body_html=None, body_text="Just this")))
        assert sink.mails[0].message.get_content_type() == "text/plain"

    async def test_everybody_gets_it_and_nobody_sees_who_was_blind_copied(self) -> None:
        spec = mail(to=[ANN, "Bob B. <bob@example.org>"], cc=[CY, ANN], bcc=["dee@example.org"])
        async with SmtpSink() as sink, executor_of(sink) as executor:
            await done(executor, call_of(spec))
        (taken,) = sink.mails
        assert taken.recipients == [ANN, BOB, CY, "dee@example.org"], "each once"
        assert [str(each) for each in taken.message["To"].addresses] == [ANN, '"Bob B." <bob@example.org>']
        assert taken.message["Cc"] == f"{CY}, {ANN}"
        assert b"dee@" not in taken.content

    async def test_unicode_everywhere(self) -> None:
        spec = mail(
            subject="Größe ✓ " + "lang " * 40,
            body_html="<p>日本</p>" * 200,
            to=["Änne Müller <aenne@bücher.example>"],
            sender="Ladenkönig <shop@example.org>",
        )
        async with SmtpSink(utf8=False) as sink, executor_of(sink) as executor:
            await done(executor, call_of(spec))
        (taken,) = sink.mails
        assert taken.recipients == ["aenne@xn--bcher-kva.example"]
        assert taken.content.isascii()
        assert max(map(len, taken.content.splitlines())) < 999
        assert taken.message["Subject"].split() == spec.subject.split()
        assert taken.message["To"].addresses[0].display_name == "Änne Müller"
        assert taken.message["From"].addresses[0].display_name == "Ladenkönig"
        assert taken.message.get_content().strip() == spec.body_html

    async def test_an_address_that_is_not_ascii_needs_a_server_that_knows_such(self) -> None:
        spec = mail(to=["änne@example.org"])
        async with SmtpSink() as sink, executor_of(sink) as executor:
            await done(executor, call_of(spec))
            assert sink.mails[0].recipients == ["änne@example.org"]
        async with SmtpSink(utf8=False) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(spec))
        assert failure.error.code == "SMTP_NOT_SUPPORTED"
        assert (failure.retryable, failure.nothing_sent) == (False, True)

    async def test_a_domain_that_cannot_be_one_is_refused(self) -> None:
        async with SmtpSink() as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail(to=[f"a@{'ü' * 80}.org"])))
        assert failure.error.code == "INVALID_ADDRESS"
        assert (failure.retryable, failure.nothing_sent) == (False, True)
        assert sink.connections == 0


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "again", "down"),
        [
            ("421 closing", True, True),
            ("451 later", True, False),
            ("452 full", True, False),
            ("550 no", False, False),
            ("554 spam", False, False),
        ],
    )
    async def test_a_code_says_whether_trying_again_can_help(
        self, answer: str, again: bool, down: bool
    ) -> None:
        """§OUT-15; what the server has refused it has not sent (§OUT-23)."""
        async with SmtpSink(answers=[answer]) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail()))
            code, _, said = answer.partition(" ")
            assert failure.error.code == f"SMTP_{code}"
            assert failure.error.message == f"127.0.0.1:{sink.port} answered {code}: {said}"
            assert (failure.retryable, failure.nothing_sent, failure.target_down) == (again, True, down)
            await done(executor, call_of(mail(), attempt=2))
        assert len(sink.mails) == 1

    async def test_no_recipient_is_taken(self) -> None:
        async with SmtpSink(refusals={ANN: ["550 unknown"]}) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail()))
            assert failure.error.code == "SMTP_RECIPIENTS_REFUSED"
            assert failure.error.message == f"The server refused every recipient: {ANN}: 550 unknown"
            assert (failure.retryable, failure.nothing_sent) == (False, True)
            await done(executor, call_of(mail()))
        assert sink.connections == 1, "the connection is as good as before"

    async def test_one_of_several_is_refused_for_good(self) -> None:
        """The others get it, and the result says who did not."""
        async with SmtpSink(refusals={BOB: ["550 unknown"]}) as sink, executor_of(sink) as executor:
            outcome = await done(executor, call_of(mail(to=[ANN, BOB], bcc=[CY])))
        assert sink.mails[0].recipients == [ANN, CY]
        assert outcome.result["accepted"] == [ANN, CY]
        assert outcome.result["refused"] == {BOB: "550 unknown"}

    async def test_one_of_several_is_refused_for_now(self) -> None:
        """Nobody gets it now: at the next attempt the others would have it twice."""
        async with SmtpSink(refusals={BOB: ["450 greylisted"]}) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail(to=[ANN, BOB])))
            assert (failure.retryable, failure.nothing_sent) == (True, True)
            assert f"{BOB}: 450 greylisted" in failure.error.message
            assert not sink.mails
            await done(executor, call_of(mail(to=[ANN, BOB]), attempt=2))
        assert [taken.recipients for taken in sink.mails] == [[ANN, BOB]]


class TestConnection:
    async def test_one_is_used_for_many_mails(self) -> None:
        async with SmtpSink() as sink, executor_of(sink) as executor:
            for number in range(3):
                await done(executor, call_of(mail(), key=str(number)))
        assert sink.connections == 1

    async def test_no_more_at_once_than_configured(self) -> None:
        async with SmtpSink() as sink, executor_of(sink, max_connections=2) as executor:
            calls = [executor.execute(call_of(mail(), key=str(number))) for number in range(8)]
            await asyncio.gather(*calls)
        assert len(sink.mails) == 8
        assert sink.connections <= 2

    async def test_one_that_the_server_closed_meanwhile_is_replaced(self) -> None:
        async with SmtpSink() as sink, executor_of(sink) as executor:
            await done(executor, call_of(mail()))
            sink.hang_up()
            await done(executor, call_of(mail(), key="next"))
        assert (len(sink.mails), sink.connections) == (2, 2)

    async def test_an_idle_one_is_not_kept_for_ever(self) -> None:
        async with SmtpSink() as sink, executor_of(sink, keep_alive=0.0) as executor:
            await done(executor, call_of(mail()))
            await done(executor, call_of(mail(), key="next"))
        assert sink.connections == 2

    async def test_a_refused_connection_sent_nothing(self) -> None:
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            port = deaf.getsockname()[1]
            async with executor_of(None, port=port) as executor:
                failure = await not_done(executor, call_of(mail()))
                assert executor.target(mail()) == f"127.0.0.1:{port}"
        assert failure.error.code == "SMTP_CONNECT_FAILED"
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, True, True)

    async def test_a_server_that_does_not_greet_sent_nothing(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            async with executor_of(None, port=silent.getsockname()[1], timeout=0.2) as executor:
                failure = await not_done(executor, call_of(mail()))
        assert (failure.error.category, failure.error.code) == ("TIMEOUT", "SMTP_TIMEOUT")
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, True, True)

    async def test_silence_after_the_mail_may_mean_that_it_was_taken(self) -> None:
        """§OUT-23"""
        async with SmtpSink(delay=600) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail(), seconds=4))
        assert failure.error.code == "SMTP_TIMEOUT"
        assert (failure.retryable, failure.nothing_sent) == (True, False)

    async def test_a_connection_lost_after_the_mail_may_mean_that_it_was_taken(self) -> None:
        async with SmtpSink(hang_up=True) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail()))
        assert len(sink.mails) == 1, "and here it was"
        assert failure.error.code == "SMTP_CONNECTION_LOST"
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, False, True)

    async def test_a_call_that_is_cancelled_leaves_the_executor_usable(self) -> None:
        async with SmtpSink(delay=0.2) as sink, executor_of(sink, max_connections=1) as executor:
            call = asyncio.create_task(executor.execute(call_of(mail())))
            await sink.arrival()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await done(executor, call_of(mail(), key="next"))
        assert sink.connections == 2, "what was cut short is not used again"


class TestSecurity:
    async def test_starttls_and_a_password(self, tmp_path: Path) -> None:
        trusted, context = certificate(tmp_path)
        async with SmtpSink(tls=context, users={"shop": "hush"}) as sink:
            fields: dict[str, Any] = {"security": "starttls", "ca_file": str(trusted), "username": "shop"}
            async with executor_of(sink, {"smtp": "hush"}, password=SecretRef("smtp"), **fields) as executor:
                await done(executor, call_of(mail()))
            async with executor_of(sink, password="wrong", **fields) as executor:
                failure = await not_done(executor, call_of(mail()))
        (taken,) = sink.mails
        assert taken.encrypted
        assert taken.user == "shop"
        assert failure.error.code == "SMTP_535"
        assert (failure.retryable, failure.nothing_sent) == (False, True)
        assert "wrong" not in failure.error.message

    async def test_tls_from_the_first_byte(self, tmp_path: Path) -> None:
        trusted, context = certificate(tmp_path)
        async with (
            SmtpSink(tls=context, implicit=True) as sink,
            executor_of(sink, security="tls", ca_file=str(trusted)) as executor,
        ):
            await done(executor, call_of(mail()))
        assert sink.mails[0].encrypted

    @pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "tls"])
    async def test_a_certificate_that_nobody_trusts_gets_no_mail(
        self, implicit: bool, tmp_path: Path
    ) -> None:
        _, context = certificate(tmp_path)
        async with (
            SmtpSink(tls=context, implicit=implicit) as sink,
            executor_of(sink, security="tls" if implicit else "starttls") as executor,
        ):
            failure = await not_done(executor, call_of(mail()))
        assert not sink.mails
        assert failure.nothing_sent
        assert "certificate" in failure.error.message.lower()

    async def test_a_server_without_starttls_gets_no_mail(self) -> None:
        """There is no falling back to clear text."""
        async with SmtpSink() as sink, executor_of(sink, security="starttls") as executor:
            failure = await not_done(executor, call_of(mail()))
        assert not sink.mails
        assert failure.error.code == "SMTP_NOT_SUPPORTED"
        assert (failure.retryable, failure.nothing_sent) == (False, True)

    async def test_a_server_that_wants_a_password_says_so(self) -> None:
        async with SmtpSink(users={}) as sink, executor_of(sink) as executor:
            failure = await not_done(executor, call_of(mail()))
        assert failure.error.code == "SMTP_530"
        assert (failure.retryable, failure.nothing_sent) == (False, True)

    async def test_a_password_that_nobody_configured_is_named(self) -> None:
        async with (
            SmtpSink() as sink,
            executor_of(sink, username="u", password=SecretRef("smtp")) as executor,
        ):
            failure = await not_done(executor, call_of(mail()))
        assert failure.error.code == "SECRET_MISSING"
        assert sink.connections == 0

    @pytest.mark.parametrize(
        "fields",
        [
            {"sender": "nobody"},
            {"sender": "a@example.org\r\nBcc: b@example.org"},
            {"sender": ANN, "username": "u", "password": "p", "host": "mail.example.org", "security": "none"},
        ],
        ids=["no address", "two lines", "password in clear text"],
    )
    def test_what_could_never_work_is_said_at_the_start(self, fields: dict[str, Any]) -> None:
        with pytest.raises(SettingsInvalid):
            EmailExecutor(EmailConfig(**fields))

    def test_a_configuration_can_be_shown(self) -> None:
        assert "hush" not in repr(EmailConfig(sender=ANN, username="u", password="hush"))

    @pytest.mark.parametrize(("security", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
    def test_the_usual_ports(self, security: Any, port: int) -> None:
        assert EmailExecutor(EmailConfig(sender=ANN, security=security)).target(mail()) == f"localhost:{port}"
