"""`SEND_CHAT_MESSAGE`: a Slack-compatible web API, or an incoming webhook for channels that have one.

The web API answers 200 whatever happened, and says in the body whether it did. It knows no idempotency key;
the key goes along as the message's metadata, where a person or a program can find it.
"""

from __future__ import annotations

from typing import Any, Final

import httpx2
import msgspec

from runstone.core import codec
from runstone.core.effect_specs import EffectSpec, SecretRef, SendChatMessage
from runstone.errors import InvalidPayload
from runstone.outbox.executors.failures import excerpt, failed
from runstone.outbox.executors.gate import Gate, hide
from runstone.outbox.executors.wire import (
    Answer,
    Wire,
    WireConfig,
    header_value,
    host_of,
    refusal,
    retry_after,
)
from runstone.ports.clock import Clock, SystemClock
from runstone.ports.executor import EffectCall, Failed, Outcome, Succeeded

_PASSING: Final = frozenset(
    ("ratelimited", "rate_limited", "internal_error", "fatal_error", "request_timeout", "service_unavailable")
)
"""Errors of the web API that may be over the next time."""


class ChatConfig(WireConfig, frozen=True, kw_only=True):
    """Which chat, and how we may speak there."""

    api_url: str = "https://slack.com/api"
    token: str | SecretRef | None = None
    """For the web API."""
    webhooks: dict[str, str | SecretRef] = msgspec.field(default_factory=dict)
    """Incoming webhooks by channel; other channels are spoken to through the web API."""

    def __repr__(self) -> str:
        return f"ChatConfig(api_url={self.api_url!r}, webhooks={sorted(self.webhooks)!r})"


class ChatExecutor:
    """Posts messages."""

    def __init__(
        self,
        config: ChatConfig,
        *,
        gate: Gate | None = None,
        client: httpx2.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._gate = gate or Gate()
        self._wire = Wire(config, client)
        self._clock = clock or SystemClock()

    def target(self, spec: EffectSpec) -> str | None:
        assert isinstance(spec, SendChatMessage)
        webhook = self._config.webhooks.get(spec.channel_id)
        if isinstance(webhook, SecretRef):
            return None
        return host_of(webhook or self._config.api_url)

    async def execute(self, call: EffectCall) -> Outcome:
        spec = call.spec
        assert isinstance(spec, SendChatMessage)
        if (webhook := self._config.webhooks.get(spec.channel_id)) is not None:
            return await self._by_webhook(call, spec, webhook)
        if self._config.token is None:
            return failed(
                "VALIDATION",
                "CHANNEL_UNKNOWN",
                f"Channel {spec.channel_id!r} has no webhook, and there is no token for the web API",
                nothing_sent=True,
            )
        return await self._by_api(call, spec, self._config.token)

    async def _by_api(self, call: EffectCall, spec: SendChatMessage, token: str | SecretRef) -> Outcome:
        known = await self._gate.secret(call, token)
        if isinstance(known, Failed):
            return known
        body: dict[str, Any] = _message(spec) | {
            "channel": spec.channel_id,
            "metadata": {
                "event_type": "runstone_effect",
                "event_payload": {"effect_id": call.effect_id, "idempotency_key": call.key},
            },
        }
        url = self._config.api_url.rstrip("/") + "/chat.postMessage"
        answer = await self._post(call, url, body, {"Authorization": f"Bearer {known}"})
        if isinstance(answer, Failed):
            return answer
        answer = msgspec.structs.replace(answer, content=hide(answer.content, [known]))
        if not answer.succeeded:
            return refusal("chat.postMessage", answer, self._clock.now())
        return self._said(answer)

    def _said(self, answer: Answer) -> Outcome:
        """What the body of a 200 means."""
        try:
            said = codec.parse(answer.content)
        except InvalidPayload:
            said = None
        if not isinstance(said, dict) or "ok" not in said:
            return failed(
                "EXTERNAL", "CHAT_UNREADABLE", f"chat.postMessage answered no JSON: {excerpt(answer.content)}"
            )
        if said["ok"]:
            return Succeeded({name: said[name] for name in ("channel", "ts") if name in said})
        error = excerpt(str(said.get("error", "unknown_error")))
        return failed(
            "EXTERNAL",
            f"CHAT_{error.upper()}",
            f"chat.postMessage was refused: {error}",
            retryable=error in _PASSING,
            retry_after=retry_after(answer.headers.get("retry-after"), self._clock.now()),
        )

    async def _by_webhook(self, call: EffectCall, spec: SendChatMessage, webhook: str | SecretRef) -> Outcome:
        url = await self._gate.secret(call, webhook)
        if isinstance(url, Failed):
            return url
        answer = await self._post(call, url, _message(spec), {})
        if isinstance(answer, Failed):
            return _unnamed(answer, url)
        what = f"The webhook of channel {spec.channel_id!r}"
        if not answer.succeeded:
            return refusal(what, answer, self._clock.now())
        return Succeeded({"status": answer.status})

    async def _post(
        self, call: EffectCall, url: str, body: dict[str, Any], headers: dict[str, str]
    ) -> Answer | Failed:
        if refused := await self._gate.objection(call, host_of(url)):
            return refused
        key = header_value(call.key)
        ours = {
            "Idempotency-Key": key,
            "X-Idempotency-Key": key,
            "Content-Type": "application/json; charset=utf-8",
        }
        return await self._wire.exchange("POST", url, ours | headers, codec.encode(body), call.timeout)

    async def aclose(self) -> None:
        await self._wire.aclose()


def _message(spec: SendChatMessage) -> dict[str, Any]:
    thread = {"thread_ts": spec.thread_ts} if spec.thread_ts is not None else {}
    return {"text": spec.text, **thread}


def _unnamed(failure: Failed, url: str) -> Failed:
    """A webhook's address is a secret: whoever has it can post."""
    message = failure.error.message.replace(url, f"https://{host_of(url)}/…")
    return msgspec.structs.replace(failure, error=msgspec.structs.replace(failure.error, message=message))
