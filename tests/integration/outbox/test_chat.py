"""`SEND_CHAT_MESSAGE` against a server that speaks as the web API and as an incoming webhook do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from runstone.core.effect_specs import SecretRef, SendChatMessage
from runstone.outbox.executors.chat import ChatConfig, ChatExecutor
from runstone.outbox.executors.gate import Gate
from runstone.testing.clock import VirtualClock
from tests.integration.outbox.calls import KEY, NOON, call_of, done, not_done
from tests.servers.http_receiver import HttpReceiver, Reply

HELLO = SendChatMessage(channel_id="C1", text="Hello <@U1> & grüße")
TAKEN = Reply.of_json({"ok": True, "channel": "C1", "ts": "1503435956.000247", "message": {"text": "Hello"}})


@asynccontextmanager
async def executor_of(
    receiver: HttpReceiver, secrets: dict[str, str] | None = None, **fields: Any
) -> AsyncIterator[ChatExecutor]:
    config = ChatConfig(api_url=receiver.url + "/api/", **{"token": SecretRef("chat"), **fields})
    known = {"chat": "xoxb-0123456789-token"} if secrets is None else secrets
    executor = ChatExecutor(config, gate=Gate(known), clock=VirtualClock(NOON))
    try:
        yield executor
    finally:
        await executor.aclose()


class TestWebApi:
    async def test_a_message_is_posted(self) -> None:
        async with HttpReceiver(TAKEN) as receiver, executor_of(receiver) as executor:
            outcome = await done(executor, call_of(HELLO))
            assert executor.target(HELLO) == f"127.0.0.1:{receiver.port}"
        (request,) = receiver.requests
        assert (request.method, request.path) == ("POST", "/api/chat.postMessage")
        assert request.headers["authorization"] == "Bearer xoxb-0123456789-token"
        assert request.headers["content-type"] == "application/json; charset=utf-8"
        assert request.headers["idempotency-key"] == KEY
        assert request.json() == {
            "channel": "C1",
            "text": HELLO.text,
            "metadata": {
                "event_type": "runstone_effect",
                "event_payload": {"effect_id": "0195-effect", "idempotency_key": KEY},
            },
        }
        assert outcome.result == {"channel": "C1", "ts": "1503435956.000247"}

    async def test_an_answer_in_a_thread(self) -> None:
        async with HttpReceiver(TAKEN) as receiver, executor_of(receiver) as executor:
            await done(executor, call_of(SendChatMessage(channel_id="C1", text="Yes", thread_ts="1.2")))
        assert receiver.requests[0].json()["thread_ts"] == "1.2"

    async def test_every_attempt_sends_the_same_bytes(self) -> None:
        async with HttpReceiver(Reply(status=500), TAKEN) as receiver, executor_of(receiver) as executor:
            assert (await not_done(executor, call_of(HELLO))).retryable
            await done(executor, call_of(HELLO, attempt=2))
        first, second = receiver.requests
        assert first == second

    @pytest.mark.parametrize(
        ("error", "again"),
        [
            *(
                (error, False)
                for error in ("channel_not_found", "invalid_auth", "msg_too_long", "is_archived")
            ),
            *(
                (error, True)
                for error in ("ratelimited", "internal_error", "fatal_error", "service_unavailable")
            ),
        ],
    )
    async def test_a_200_that_says_no_is_a_failure(self, error: str, again: bool) -> None:
        no = Reply.of_json({"ok": False, "error": error})
        async with HttpReceiver(no) as receiver, executor_of(receiver) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == f"CHAT_{error.upper()}"
        assert failure.error.message == f"chat.postMessage was refused: {error}"
        assert failure.retryable == again
        assert not failure.nothing_sent

    @pytest.mark.parametrize("status", [200, 429])
    async def test_a_rate_limit_is_obeyed(self, status: int) -> None:
        """§OUT-16"""
        later = Reply.of_json({"ok": False, "error": "ratelimited"}, status, Retry_After="30")
        async with HttpReceiver(later) as receiver, executor_of(receiver) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.retryable
        assert failure.retry_after == timedelta(seconds=30)

    @pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b""])
    async def test_an_answer_that_nobody_understands_is_a_failure(self, body: bytes) -> None:
        """Whether the message stands there is not known, and asking again would not tell."""
        async with HttpReceiver(Reply(body=body)) as receiver, executor_of(receiver) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == "CHAT_UNREADABLE"
        assert not failure.retryable
        assert not failure.nothing_sent

    async def test_the_token_is_not_repeated(self) -> None:
        """§PAY-29"""
        echo = Reply(status=401, body=b"bad token xoxb-0123456789-token")
        async with HttpReceiver(echo) as receiver, executor_of(receiver) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.message.endswith("bad token [secret]")

    async def test_a_token_that_nobody_configured_is_named(self) -> None:
        async with HttpReceiver() as receiver, executor_of(receiver, {}) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == "SECRET_MISSING"
        assert not receiver.requests

    async def test_a_lost_connection(self) -> None:
        async with HttpReceiver(Reply(cut_after=0)) as receiver, executor_of(receiver) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == "CONNECTION_LOST"


class TestIncomingWebhook:
    async def test_a_channel_with_a_webhook_is_spoken_to_by_it(self) -> None:
        async with HttpReceiver(Reply(body=b"ok")) as receiver:
            address = f"{receiver.url}/services/T0/B0/hush"
            async with executor_of(
                receiver, {"hook": address}, webhooks={"C1": SecretRef("hook")}
            ) as executor:
                outcome = await done(executor, call_of(HELLO))
                assert executor.target(HELLO) is None
        (request,) = receiver.requests
        assert request.path == "/services/T0/B0/hush"
        assert "authorization" not in request.headers
        assert request.headers["x-idempotency-key"] == KEY
        assert request.json() == {"text": HELLO.text}
        assert outcome.result == {"status": 200}

    @pytest.mark.parametrize(("status", "again"), [(403, False), (404, False), (429, True), (500, True)])
    async def test_its_refusals(self, status: int, again: bool) -> None:
        async with HttpReceiver(Reply(status=status, body=b"no_service")) as receiver:
            hooks = {"C1": f"{receiver.url}/services/hush"}
            async with executor_of(receiver, webhooks=hooks) as executor:
                failure = await not_done(executor, call_of(HELLO))
                assert executor.target(HELLO) == f"127.0.0.1:{receiver.port}"
        assert failure.error.code == f"HTTP_{status}"
        assert failure.retryable == again
        assert failure.error.message == f"The webhook of channel 'C1' answered {status} Said: no_service"

    async def test_its_address_is_a_secret(self) -> None:
        async with HttpReceiver(Reply(cut_after=0)) as receiver:
            hooks = {"C1": f"{receiver.url}/services/hush"}
            async with executor_of(receiver, webhooks=hooks) as executor:
                failure = await not_done(executor, call_of(HELLO))
        assert "hush" not in failure.error.message
        assert failure.error.code == "CONNECTION_LOST"
        assert "hush" not in repr(ChatConfig(webhooks=dict(hooks), token="hush"))

    async def test_one_that_nobody_configured_is_named(self) -> None:
        async with (
            HttpReceiver() as receiver,
            executor_of(receiver, webhooks={"C1": SecretRef("x")}) as executor,
        ):
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == "SECRET_MISSING"

    async def test_a_channel_with_neither_is_unknown(self) -> None:
        async with HttpReceiver() as receiver, executor_of(receiver, token=None) as executor:
            failure = await not_done(executor, call_of(HELLO))
        assert failure.error.code == "CHANNEL_UNKNOWN"
        assert (failure.retryable, failure.nothing_sent) == (False, True)
        assert not receiver.requests
