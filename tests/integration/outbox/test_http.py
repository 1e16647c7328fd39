"""`API_CALL` and `WEBHOOK_CALL` against a server on loopback."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import standardwebhooks

from runstone.core.effect_specs import ApiCall, SecretRef, WebhookCall
from runstone.outbox.executors.gate import Gate
from runstone.outbox.executors.http import HttpConfig, HttpExecutor
from runstone.outbox.executors.wire import host_of, new_client, retry_after
from runstone.testing.clock import VirtualClock
from tests.integration.outbox.calls import KEY, NOON, call_of, done, not_done
from tests.servers.http_receiver import HttpReceiver, Reply

SECRET = "whsec_" + base64.b64encode(b"a secret of some length!").decode()
OTHER = "whsec_" + base64.b64encode(b"another one, just as long").decode()


@asynccontextmanager
async def executor_of(
    config: HttpConfig | None = None, secrets: dict[str, str] | None = None, clock: VirtualClock | None = None
) -> AsyncIterator[HttpExecutor]:
    executor = HttpExecutor(config, gate=Gate(secrets), clock=clock)
    try:
        yield executor
    finally:
        await executor.aclose()
        await executor.aclose()


def post(receiver: HttpReceiver, path: str = "/orders", **fields: Any) -> ApiCall:
    return ApiCall(method="POST", url=receiver.url + path, **{"body": {"b": [1, "ü"], "a": None}, **fields})


@contextmanager
def deaf_port() -> Iterator[int]:
    """One that nobody listens at, and nobody else can have meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


class TestRequest:
    async def test_the_key_goes_along_and_the_body_is_canonical_json(self) -> None:
        """§OUT-19"""
        async with HttpReceiver() as receiver, executor_of() as executor:
            await done(executor, call_of(post(receiver, "/orders?x=1", headers={"X-Shop": "ü"})))
            (request,) = receiver.requests
        assert (request.method, request.path) == ("POST", "/orders?x=1")
        assert request.headers["idempotency-key"] == request.headers["x-idempotency-key"] == KEY
        assert request.headers["content-type"] == "application/json"
        assert request.headers["x-shop"].encode("latin-1").decode() == "ü"
        assert request.body == '{"a":null,"b":[1,"ü"]}'.encode()

    async def test_what_a_header_is_if_nobody_says(self) -> None:
        async with HttpReceiver() as receiver, executor_of(HttpConfig(user_agent="shop/1")) as executor:
            await done(executor, call_of(post(receiver)))
            await done(
                executor, call_of(post(receiver, headers={"USER-agent": "mine", "accept": "text/csv"}))
            )
        first, second = (request.headers for request in receiver.requests)
        assert (first["user-agent"], first["accept"], first["accept-encoding"]) == (
            "shop/1",
            "*/*",
            "identity",
        )
        assert (second["user-agent"], second["accept"]) == ("mine", "text/csv")

    async def test_every_attempt_sends_the_same_bytes_over_one_connection(self) -> None:
        async with HttpReceiver(Reply(status=503)) as receiver, executor_of() as executor:
            await not_done(executor, call_of(post(receiver)))
            await done(executor, call_of(post(receiver), attempt=2))
        first, second = receiver.requests
        assert first == second

    @pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH"])
    async def test_no_body_is_no_body(self, method: Any) -> None:
        async with HttpReceiver() as receiver, executor_of() as executor:
            await done(executor, call_of(ApiCall(method=method, url=receiver.url)))
        (request,) = receiver.requests
        assert request.method == method
        assert request.body == b""
        assert "content-type" not in request.headers

    @pytest.mark.parametrize(
        ("media", "body", "sent"),
        [
            ("application/x-www-form-urlencoded", {"amount": 5, "to": "a&b"}, b"amount=5&to=a%26b"),
            ("text/plain; charset=utf-8", "grüß\n", "grüß\n".encode()),
            ("application/vnd.api+json", "text", b'"text"'),
        ],
        ids=["form", "text", "json"],
    )
    async def test_a_body_is_what_its_type_says(self, media: str, body: Any, sent: bytes) -> None:
        async with HttpReceiver() as receiver, executor_of() as executor:
            await done(executor, call_of(post(receiver, body=body, headers={"content-TYPE": media})))
        (request,) = receiver.requests
        assert request.headers["content-type"] == media
        assert request.body == sent

    @pytest.mark.parametrize("key", ["a key\r\nX-Evil: 1", "schlüssel", " padded "])
    async def test_a_key_of_any_characters_is_one_header(self, key: str) -> None:
        async with HttpReceiver() as receiver, executor_of() as executor:
            await done(executor, call_of(post(receiver), key=key))
        (request,) = receiver.requests
        assert "x-evil" not in request.headers
        assert request.headers["idempotency-key"].isascii()
        assert "%" in request.headers["idempotency-key"]

    async def test_cookies_do_not_go_from_one_call_to_the_next(self) -> None:
        cookie = Reply(headers={"Set-Cookie": "session=1; Path=/"})
        async with HttpReceiver(cookie) as receiver, executor_of() as executor:
            await done(executor, call_of(post(receiver)))
            await done(executor, call_of(post(receiver)))
        assert all("cookie" not in request.headers for request in receiver.requests)

    async def test_a_shared_client_is_left_open(self) -> None:
        client = new_client(HttpConfig())
        async with HttpReceiver() as receiver:
            for _ in range(2):
                executor = HttpExecutor(client=client)
                await done(executor, call_of(post(receiver)))
                await executor.aclose()
            await client.aclose()
        assert len({request.connection for request in receiver.requests}) == 1

    async def test_no_more_connections_than_calls_at_once(self) -> None:
        async with HttpReceiver() as receiver, executor_of(HttpConfig(max_connections=3)) as executor:
            for _ in range(3):
                await asyncio.gather(*(done(executor, call_of(post(receiver))) for _ in range(9)))
        assert len(receiver.requests) == 27
        assert len({request.connection for request in receiver.requests}) <= 3

    async def test_the_connection_that_was_used_last_is_used_next(self) -> None:
        async with HttpReceiver() as receiver, executor_of() as executor:
            await asyncio.gather(*(done(executor, call_of(post(receiver))) for _ in range(5)))
            for _ in range(5):
                await done(executor, call_of(post(receiver)))
        assert len({request.connection for request in receiver.requests[5:]}) == 1

    async def test_an_idle_connection_is_not_kept_for_ever(self) -> None:
        async with HttpReceiver() as receiver, executor_of(HttpConfig(keep_alive=0.0)) as executor:
            for _ in range(3):
                await done(executor, call_of(post(receiver)))
        assert len({request.connection for request in receiver.requests}) == 3

    async def test_a_connection_that_the_server_has_closed_is_not_used(self) -> None:
        async with HttpReceiver(Reply(cut_after=10_000)) as receiver, executor_of() as executor:
            await done(executor, call_of(post(receiver)))
            await asyncio.sleep(0.05)
            await done(executor, call_of(post(receiver), key="next"))
        assert len({request.connection for request in receiver.requests}) == 2

    def test_the_target_is_host_and_port(self) -> None:
        executor = HttpExecutor()
        assert (
            executor.target(ApiCall(method="GET", url="https://API.example.org:8443/x?y"))
            == "api.example.org:8443"
        )
        assert executor.target(WebhookCall(url="http://example.org?y", body=1)) == "example.org"
        assert host_of("http://[::1]:80/") == "[::1]:80"


class TestSuccess:
    @pytest.mark.parametrize("status", [200, 201, 202, 204])
    async def test_any_2xx_is_success_without_a_body(self, status: int) -> None:
        """§OUT-14"""
        async with HttpReceiver(Reply(status=status)) as receiver, executor_of() as executor:
            outcome = await done(executor, call_of(post(receiver)))
        assert outcome.result == {"status": status}

    @pytest.mark.parametrize(
        ("media", "body", "recorded"),
        [
            ("application/json", b'{"id": 7}', {"body": {"id": 7}}),
            ("application/json", b'{"a": NaN}', {"body": '{"a": NaN}'}),
            ("text/plain", b"thanks", {"body": "thanks"}),
            ("image/png", b"\x89PNG\0", {"body_base64": "iVBORwA="}),
            ("text/plain", b"a\0b", {"body_base64": "YQBi"}),
        ],
        ids=["json", "broken json", "text", "bytes", "nul"],
    )
    async def test_what_was_answered_is_the_result(self, media: str, body: bytes, recorded: Any) -> None:
        """§PAY-14"""
        answer = Reply(headers={"Content-Type": media, "X-Request-Id": "r1", "X-Other": "o"}, body=body)
        async with HttpReceiver(answer) as receiver, executor_of() as executor:
            outcome = await done(executor, call_of(post(receiver)))
        assert outcome.result == {
            "status": 200,
            "headers": {"content-type": media, "x-request-id": "r1"},
            **recorded,
        }

    async def test_a_huge_answer_is_cut_off_and_says_so(self) -> None:
        """What was done stays done (§OUT-14); the rest of the answer is not read."""
        config = HttpConfig(max_response_bytes=1000)
        async with HttpReceiver(Reply(body=b"x" * 5_000_000)) as receiver, executor_of(config) as executor:
            outcome = await done(executor, call_of(post(receiver)))
            await done(executor, call_of(post(receiver)))
        assert outcome.result == {
            "status": 200,
            "cut_off": "The body is not recorded: it is larger than 1000 bytes",
        }

    async def test_a_huge_failure_is_a_short_message(self) -> None:
        async with (
            HttpReceiver(Reply(status=500, body=b"x" * 5_000_000)) as receiver,
            executor_of() as executor,
        ):
            failure = await not_done(executor, call_of(post(receiver)))
        assert len(failure.error.message) < 1000


class TestRefusal:
    @pytest.mark.parametrize(
        ("status", "again", "down"),
        [
            *((status, False, False) for status in (400, 401, 403, 404, 410, 422)),
            *((status, True, False) for status in (408, 409, 425, 429)),
            *((status, True, True) for status in (500, 502, 503, 504)),
        ],
    )
    async def test_a_status_says_whether_trying_again_can_help(
        self, status: int, again: bool, down: bool
    ) -> None:
        """§OUT-15"""
        async with HttpReceiver(Reply(status=status, body=b"no\nway")) as receiver, executor_of() as executor:
            failure = await not_done(executor, call_of(post(receiver, "/orders?token=1")))
        assert failure.error.code == f"HTTP_{status}"
        assert failure.error.category == "EXTERNAL"
        assert failure.error.message == f"POST {receiver.url}/orders answered {status} Said: no way"
        assert (failure.retryable, failure.target_down) == (again, down)
        assert not failure.nothing_sent, "it was sent"
        assert failure.retry_after is None

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_redirects_are_not_followed(self, status: int) -> None:
        async with HttpReceiver() as elsewhere, executor_of() as executor:
            there = Reply(status=status, headers={"Location": elsewhere.url})
            async with HttpReceiver(there) as receiver:
                failure = await not_done(executor, call_of(post(receiver)))
        assert failure.error.code == "HTTP_REDIRECT"
        assert f"to {elsewhere.url}: redirects are not followed" in failure.error.message
        assert not failure.retryable
        assert not elsewhere.requests

    @pytest.mark.parametrize(
        ("value", "seconds"), [("120", 120), ("Sun, 01 Mar 2026 12:02:00 GMT", 120), ("soon", None)]
    )
    @pytest.mark.parametrize("status", [429, 503])
    async def test_retry_after_is_passed_on(self, status: int, value: str, seconds: int | None) -> None:
        """§OUT-16"""
        busy = Reply(status=status, headers={"Retry-After": value})
        async with HttpReceiver(busy) as receiver, executor_of(clock=VirtualClock(NOON)) as executor:
            failure = await not_done(executor, call_of(post(receiver)))
        assert failure.retryable
        assert failure.retry_after == (None if seconds is None else timedelta(seconds=seconds))

    def test_retry_after_at_its_edges(self) -> None:
        assert retry_after("0", NOON) == timedelta(0)
        assert retry_after("Sun, 01 Mar 2026 11:00:00 GMT", NOON) == timedelta(0), "it is over"
        assert retry_after("Sun, 01 Mar 2026 12:00:09 -0000", NOON) == timedelta(seconds=9)
        assert (
            retry_after("9" * 400, NOON)
            == retry_after("Sun, 01 Mar 9026 11:00:00 GMT", NOON)
            == timedelta(365)
        )
        assert retry_after("-5", NOON) is None
        assert retry_after("٣", NOON) is None
        assert retry_after(None, NOON) is None


class TestTransport:
    async def test_a_refused_connection_sent_nothing(self) -> None:
        """§OUT-23"""
        with deaf_port() as port:
            async with executor_of() as executor:
                call = call_of(ApiCall(method="POST", url=f"http://127.0.0.1:{port}/", body=1))
                failure = await not_done(executor, call)
        assert failure.error.code == "CONNECT_FAILED"
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, True, True)

    async def test_a_connection_that_is_not_accepted_sent_nothing(self) -> None:
        """A full queue of connections: the kernel lets newcomers wait."""
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(8)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            async with executor_of(HttpConfig(connect_timeout=0.3)) as executor:
                spec = ApiCall(method="GET", url=f"http://127.0.0.1:{full.getsockname()[1]}/")
                failure = await not_done(executor, call_of(spec))
            for each in waiting:
                each.close()
        assert failure.error.code == "CONNECT_TIMEOUT"
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, True, True)

    @pytest.mark.parametrize(
        ("config", "seconds"),
        [(HttpConfig(read_timeout=0.5), 60), (HttpConfig(timeout=4), 60), (HttpConfig(), 4)],
        ids=["silence", "configured", "the call's own"],
    )
    async def test_a_slow_answer_may_have_been_acted_on(self, config: HttpConfig, seconds: float) -> None:
        """§OUT-11"""
        async with HttpReceiver(Reply(delay=600)) as receiver, executor_of(config) as executor:
            failure = await not_done(executor, call_of(post(receiver), seconds=seconds))
            assert len(receiver.requests) == 1
        assert (failure.error.category, failure.error.code) == ("TIMEOUT", "HTTP_TIMEOUT")
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, False, True)

    @pytest.mark.parametrize("sent", [0, 20, 60], ids=["no answer", "half a header", "half a body"])
    async def test_a_connection_that_is_cut_may_have_been_acted_on(self, sent: int) -> None:
        async with (
            HttpReceiver(Reply(body=b"x" * 1000, cut_after=sent)) as receiver,
            executor_of() as executor,
        ):
            failure = await not_done(executor, call_of(post(receiver)))
            assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, False, True)
            assert failure.error.code == "CONNECTION_LOST"
            await done(executor, call_of(post(receiver), attempt=2))
        first, second = receiver.requests
        assert first.body == second.body

    async def test_something_else_than_http_is_a_failure(self) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"220 mail.example.org ESMTP\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        async with server, executor_of() as executor:
            spec = ApiCall(method="GET", url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            failure = await not_done(executor, call_of(spec))
        assert failure.error.code == "CONNECTION_LOST"

    async def test_no_free_connection_sent_nothing(self) -> None:
        config = HttpConfig(max_connections=1, connect_timeout=0.5)
        async with HttpReceiver(Reply(delay=60)) as receiver, executor_of(config) as executor:
            first = asyncio.create_task(executor.execute(call_of(post(receiver))))
            await receiver.arrival()
            failure = await not_done(executor, call_of(post(receiver)))
            first.cancel()
        assert len(receiver.requests) == 1
        assert failure.error.code == "NO_FREE_CONNECTION"
        assert (failure.retryable, failure.nothing_sent, failure.target_down) == (True, True, False)

    async def test_a_call_that_is_cancelled_leaves_the_executor_usable(self) -> None:
        async with HttpReceiver(Reply(delay=60)) as receiver, executor_of() as executor:
            call = asyncio.create_task(executor.execute(call_of(post(receiver))))
            await receiver.arrival()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await done(executor, call_of(post(receiver)))


class TestSecrets:
    async def test_a_reference_is_resolved_on_the_way_out(self) -> None:
        """§PAY-27"""
        spec_headers = {"Authorization": SecretRef("shop", prefix="Bearer "), "X-Api-Key": SecretRef("shop")}
        async with HttpReceiver() as receiver, executor_of(secrets={"shop": "sk_123"}) as executor:
            await done(executor, call_of(post(receiver, headers=spec_headers)))
        (request,) = receiver.requests
        assert request.headers["authorization"] == "Bearer sk_123"
        assert request.headers["x-api-key"] == "sk_123"

    async def test_one_that_nobody_configured_is_named_and_nothing_is_sent(self) -> None:
        async with HttpReceiver() as receiver, executor_of() as executor:
            failure = await not_done(
                executor, call_of(post(receiver, headers={"X-Api-Key": SecretRef("shop")}))
            )
        assert failure.error.code == "SECRET_MISSING"
        assert "'shop'" in failure.error.message
        assert (failure.retryable, failure.nothing_sent) == (False, True)
        assert not receiver.requests

    @pytest.mark.parametrize("status", [200, 400])
    async def test_a_peer_that_repeats_it_does_not_bring_it_into_the_log(self, status: int) -> None:
        """§PAY-29"""
        echo = Reply(
            status=status,
            headers={"Content-Type": "text/plain", "Location": "/?k=hush123"},
            body=b"you sent hush123",
        )
        async with HttpReceiver(echo) as receiver, executor_of(secrets={"shop": "hush123"}) as executor:
            outcome = await executor.execute(
                call_of(post(receiver, headers={"X-Api-Key": SecretRef("shop")}))
            )
        assert "hush123" not in repr(outcome)
        assert "[secret]" in repr(outcome)


class TestWebhook:
    async def test_a_receiver_can_verify_it(self) -> None:
        config = HttpConfig(webhook_secret=SecretRef("hooks"))
        async with HttpReceiver() as receiver, executor_of(config, {"hooks": SECRET}) as executor:
            await done(executor, call_of(WebhookCall(url=receiver.url, body={"order": "ü"})))
        (request,) = receiver.requests
        assert request.headers["webhook-id"] == request.headers["idempotency-key"] == KEY
        assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers) == {"order": "ü"}
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(OTHER).verify(request.body, request.headers)

    async def test_attempts_share_id_and_body_and_not_the_time(self) -> None:
        clock = VirtualClock(datetime(2026, 3, 1, 12, tzinfo=UTC))
        own = executor_of(secrets={"theirs": SECRET}, clock=clock)
        async with HttpReceiver(Reply(status=500)) as receiver, own as executor:
            spec = WebhookCall(url=receiver.url, body=[1], method="PUT", secret=SecretRef("theirs"))
            await not_done(executor, call_of(spec))
            clock.advance(90)
            await done(executor, call_of(spec, attempt=2))
        first, second = receiver.requests
        assert (first.method, first.body) == (second.method, second.body) == ("PUT", b"[1]")
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        times = [int(request.headers["webhook-timestamp"]) for request in receiver.requests]
        assert times[1] - times[0] == 90

    async def test_with_two_secrets_it_is_signed_twice_so_that_a_receiver_can_change_over(self) -> None:
        config = HttpConfig(webhook_secret=SecretRef("hooks"))
        async with (
            HttpReceiver() as receiver,
            executor_of(config, {"hooks": f"{SECRET} {OTHER}"}) as executor,
        ):
            await done(executor, call_of(WebhookCall(url=receiver.url, body=None)))
        (request,) = receiver.requests
        for secret in (SECRET, OTHER):
            assert standardwebhooks.Webhook(secret).verify(request.body, request.headers) is None

    async def test_without_a_secret_it_is_not_signed(self) -> None:
        async with HttpReceiver() as receiver, executor_of() as executor:
            await done(executor, call_of(WebhookCall(url=receiver.url, body={})))
        assert "webhook-signature" not in receiver.requests[0].headers

    @pytest.mark.parametrize("secret", ["", "whsec_", "whsec_ä", "whsec_a"])
    async def test_a_secret_that_cannot_sign_is_refused_before_anything_is_sent(self, secret: str) -> None:
        config = HttpConfig(webhook_secret=SecretRef("hooks"))
        async with HttpReceiver() as receiver, executor_of(config, {"hooks": secret}) as executor:
            failure = await not_done(executor, call_of(WebhookCall(url=receiver.url, body={})))
        assert failure.error.code == "SECRET_INVALID"
        assert failure.nothing_sent
        assert not receiver.requests
