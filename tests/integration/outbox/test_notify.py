"""`NOTIFY_USER`: Apprise against real servers on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runstone.core.effect_specs import NotifyUser, SecretRef
from runstone.outbox.executors.gate import Gate
from runstone.outbox.executors.notify import NotifyConfig, NotifyExecutor
from tests.integration.outbox.calls import KEY, call_of, done, not_done
from tests.servers.http_receiver import HttpReceiver, Reply
from tests.servers.smtp import SmtpSink

HELLO = NotifyUser(user_id="ann@example.org", message="Your <b>order</b> & more: grüße", title="Hello")


@asynccontextmanager
async def executor_of(secrets: dict[str, str] | None = None, **fields: Any) -> AsyncIterator[NotifyExecutor]:
    executor = NotifyExecutor(NotifyConfig(**fields), gate=Gate(secrets))
    try:
        yield executor
    finally:
        await executor.aclose()
        await executor.aclose()


def hook(receiver: HttpReceiver, path: str = "/hush-token/{user_id}") -> str:
    return f"json://127.0.0.1:{receiver.port}{path}"


async def test_a_notice_arrives_with_its_key() -> None:
    async with HttpReceiver() as receiver, executor_of(channels={"hook": hook(receiver)}) as executor:
        outcome = await done(executor, call_of(HELLO))
        assert executor.target(HELLO) is None
    (request,) = receiver.requests
    assert request.path == "/hush-token/ann@example.org"
    assert request.headers["idempotency-key"] == request.headers["x-idempotency-key"] == KEY
    said = request.json()
    assert (said["title"], said["message"]) == (HELLO.title, HELLO.message)
    assert outcome.result == {"service": "JSON"}


async def test_a_notice_by_mail() -> None:
    async with SmtpSink() as sink:
        mailbox = f"mailto://127.0.0.1:{sink.port}?from=shop@example.org&to={{user_id}}&mode=insecure"
        async with executor_of(channels={"mail": mailbox}) as executor:
            await done(executor, call_of(HELLO))
    (taken,) = sink.mails
    assert taken.recipients == ["ann@example.org"]
    assert taken.message["Subject"] == "Hello"
    assert "grüße" in taken.message.as_string() or "gr=C3=BC" in taken.content.decode()


async def test_a_person_s_own_ways_come_first() -> None:
    async with (
        HttpReceiver() as receiver,
        executor_of(
            {"bob": hook(receiver, "/bob")},
            channels={"hook": hook(receiver, "/all"), "other": hook(receiver, "/other")},
            users={"bob": {"pager": SecretRef("bob")}},
        ) as executor,
    ):
        for user, channel in [
            ("bob", None),
            ("bob", "hook"),
            ("ann", None),
            ("ann", "other"),
            ("bob", "pager"),
        ]:
            await done(executor, call_of(NotifyUser(user_id=user, message="m", channel=channel)))
    assert [request.path for request in receiver.requests] == ["/bob", "/all", "/all", "/other", "/bob"]


@pytest.mark.parametrize("channel", [None, "pager"])
async def test_a_way_that_is_not_configured_is_named(channel: str | None) -> None:
    async with executor_of(channels={} if channel is None else {"hook": "json://127.0.0.1:9"}) as executor:
        failure = await not_done(executor, call_of(NotifyUser(user_id="ann", message="m", channel=channel)))
    assert failure.error.code == "CHANNEL_UNKNOWN"
    assert repr(channel) in failure.error.message
    assert (failure.retryable, failure.nothing_sent) == (False, True)


async def test_a_secret_that_is_not_configured_is_named() -> None:
    async with executor_of(channels={"hook": SecretRef("hook")}) as executor:
        failure = await not_done(executor, call_of(HELLO))
    assert failure.error.code == "SECRET_MISSING"


@pytest.mark.parametrize("address", ["no-such-service://x", "json://", "nonsense"])
async def test_an_address_that_apprise_does_not_know(address: str) -> None:
    async with executor_of(channels={"hook": address}) as executor:
        failure = await not_done(executor, call_of(HELLO))
    assert failure.error.code == "CHANNEL_INVALID"
    assert (failure.retryable, failure.nothing_sent) == (False, True)


async def test_a_notice_that_was_not_taken_is_a_failure_with_its_reason() -> None:
    """§PAY-29: without the tokens in the address."""
    refuses = Reply(status=500, body=b"not now")
    async with HttpReceiver(refuses) as receiver, executor_of(channels={"hook": hook(receiver)}) as executor:
        failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == "NOTIFY_FAILED"
        assert failure.error.message.startswith("JSON did not take the notice: ")
        assert "500" in failure.error.message
        assert "hush-token" not in failure.error.message
        assert (failure.retryable, failure.nothing_sent) == (True, False)
        await done(executor, call_of(HELLO, attempt=2))
    first, second = receiver.requests
    assert first.body == second.body


async def test_nobody_there() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        async with executor_of(channels={"hook": f"json://127.0.0.1:{port}"}) as executor:
            failure = await not_done(executor, call_of(HELLO))
    assert failure.error.code == "NOTIFY_FAILED"
    assert failure.retryable


@pytest.mark.parametrize(
    ("configured", "given"), [(0.2, 30), (30, 0.2)], ids=["configured", "the call's own"]
)
async def test_a_slow_one_is_not_waited_for(configured: float, given: float) -> None:
    """§OUT-11: and nobody knows whether it arrives."""
    async with (
        HttpReceiver(Reply(delay=1)) as receiver,
        executor_of(channels={"hook": hook(receiver)}, timeout=configured) as executor,
    ):
        failure = await not_done(executor, call_of(HELLO, seconds=given))
    assert (failure.error.category, failure.error.code) == ("TIMEOUT", "NOTIFY_TIMEOUT")
    assert (failure.retryable, failure.nothing_sent) == (True, False)


async def test_the_loop_goes_on_meanwhile_and_reasons_are_not_mixed_up() -> None:
    async with (
        HttpReceiver(otherwise=Reply(status=503, delay=0.2)) as busy,
        HttpReceiver(otherwise=Reply(status=404, delay=0.1)) as gone,
    ):
        channels = {"busy": hook(busy, "/b"), "gone": hook(gone, "/g")}
        async with executor_of(channels=channels) as executor:
            calls = [call_of(NotifyUser(user_id="u", message="m", channel=name)) for name in ("busy", "gone")]
            first, second = await asyncio.gather(*(not_done(executor, call) for call in calls))
    assert "503" in first.error.message
    assert "404" not in first.error.message
    assert "404" in second.error.message
    assert not [handler for handler in logging.getLogger("apprise").handlers if "Overheard" in repr(handler)]


def test_a_configuration_can_be_shown() -> None:
    shown = repr(NotifyConfig(channels={"hook": "json://hush"}, users={"bob": {"x": "json://hush"}}))
    assert "hush" not in shown
    assert "'hook'" in shown
