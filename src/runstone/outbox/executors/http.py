"""`API_CALL` and `WEBHOOK_CALL`: requests with their key, webhooks signed as Standard Webhooks has it.

The bytes of a body are made from its canonical JSON, so they are the same at every attempt (§OUT-50).
What changes is the time of a webhook's signature: receivers refuse old ones. Its id is the key (§OUT-53).
"""

from __future__ import annotations

import base64
import contextlib
import math
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import httpx2
import msgspec
import standardwebhooks
from standardwebhooks.webhooks import EmptyWebhookSecretError

from runstone.core import codec
from runstone.core.effect_checks import FORM, is_json, media_type
from runstone.core.effect_specs import ApiCall, EffectSpec, SecretRef, WebhookCall
from runstone.errors import InvalidPayload
from runstone.outbox.executors.failures import failed
from runstone.outbox.executors.gate import Gate, hide
from runstone.outbox.executors.wire import (
    Answer,
    Wire,
    WireConfig,
    header_value,
    host_of,
    refusal,
    shown,
)
from runstone.ports.clock import Clock, SystemClock
from runstone.ports.executor import EffectCall, Failed, Outcome, Succeeded

_KEPT: Final = ("content-type", "etag", "location", "request-id", "x-request-id")
"""Headers of an answer that go into the result."""


class HttpConfig(WireConfig, frozen=True, kw_only=True):
    """How to call APIs and webhooks."""

    webhook_secret: SecretRef | None = None
    """What webhooks are signed with that name no secret of their own."""


class HttpExecutor:
    """Calls APIs and webhooks."""

    def __init__(
        self,
        config: HttpConfig | None = None,
        *,
        gate: Gate | None = None,
        client: httpx2.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config or HttpConfig()
        self._gate = gate or Gate()
        self._wire = Wire(self._config, client)
        self._clock = clock or SystemClock()

    def target(self, spec: EffectSpec) -> str | None:
        assert isinstance(spec, ApiCall | WebhookCall)
        return host_of(spec.url)

    async def execute(self, call: EffectCall) -> Outcome:
        spec = call.spec
        assert isinstance(spec, ApiCall | WebhookCall)
        content = body_of(spec)
        secrets: list[str] = []
        headers = await self._headers(call, spec, content, secrets)
        if isinstance(headers, Failed):
            return headers
        if refused := await self._gate.objection(call, host_of(spec.url)):
            return refused
        answer = await self._wire.exchange(spec.method, spec.url, headers, content, call.timeout)
        if isinstance(answer, Failed):
            return answer
        return self._outcome(spec, _without(answer, secrets))

    async def _headers(
        self, call: EffectCall, spec: ApiCall | WebhookCall, content: bytes | None, secrets: list[str]
    ) -> dict[str, str] | Failed:
        """All headers; `secrets` collects what must not be seen in the answer."""
        key = header_value(call.key)
        headers = {"Idempotency-Key": key, "X-Idempotency-Key": key}
        if content is not None:
            headers["Content-Type"] = "application/json"
        for name, value in spec.headers.items():
            known = await self._gate.secret(call, value)
            if isinstance(known, Failed):
                return known
            if isinstance(value, SecretRef):
                secrets.append(known)
            _put(headers, name, known)
        if isinstance(spec, WebhookCall) and (reference := spec.secret or self._config.webhook_secret):
            return await self._signed(call, headers, content or b"", reference)
        return headers

    async def _signed(
        self, call: EffectCall, headers: dict[str, str], content: bytes, reference: SecretRef
    ) -> dict[str, str] | Failed:
        value = await self._gate.secret(call, reference)
        if isinstance(value, Failed):
            return value
        try:
            return headers | signature(value, headers["Idempotency-Key"], content, self._clock.now())
        except (ValueError, EmptyWebhookSecretError):  # binascii's own error is a ValueError
            return failed(
                "VALIDATION",
                "SECRET_INVALID",
                f"The secret {reference.name!r} cannot sign webhooks: it has to be whsec_ and base64",
                nothing_sent=True,
            )

    def _outcome(self, spec: ApiCall | WebhookCall, answer: Answer) -> Outcome:
        if answer.succeeded:
            return Succeeded(self._result(answer))
        return refusal(f"{spec.method} {shown(spec.url)}", answer, self._clock.now())

    def _result(self, answer: Answer) -> dict[str, Any]:
        """What is recorded of a success (§OUT-14, §OUT-52): with a body or not, whole or not at all."""
        result: dict[str, Any] = {"status": answer.status}
        if kept := {name: answer.headers[name] for name in _KEPT if name in answer.headers}:
            result["headers"] = kept
        if answer.cut_off:
            most = self._config.max_response_bytes
            result["cut_off"] = f"The body is not recorded: it is larger than {most} bytes"
        elif answer.content:
            result |= _body(answer)
        return result

    async def aclose(self) -> None:
        await self._wire.aclose()


def body_of(spec: ApiCall | WebhookCall) -> bytes | None:
    """The bytes to send, the same for the same spec."""
    if spec.body is None and isinstance(spec, ApiCall):
        return None
    media = media_type(spec.headers)
    if is_json(media):
        return codec.encode(spec.body)
    if media == FORM and isinstance(spec.body, dict):
        return urlencode(spec.body).encode()
    return str(spec.body or "").encode()


def signature(secrets: str, key: str, content: bytes, now: datetime) -> dict[str, str]:
    """The headers of Standard Webhooks; one signature for each secret, so that a receiver can change over."""
    text = content.decode()
    signed = [standardwebhooks.Webhook(secret).sign(key, now, text) for secret in secrets.split()]
    if not signed:
        raise ValueError("no secret to sign with")
    return {
        "Webhook-Id": key,
        "Webhook-Timestamp": str(math.floor(now.timestamp())),
        "Webhook-Signature": " ".join(signed),
    }


def _put(headers: dict[str, str], name: str, value: str) -> None:
    """Sets a header in place of one that differs in case only."""
    for known in [known for known in headers if known.lower() == name.lower()]:
        del headers[known]
    headers[name] = value


def _without(answer: Answer, secrets: list[str]) -> Answer:
    """An answer that repeats none of the secrets it was asked with."""
    if not secrets:
        return answer
    return msgspec.structs.replace(
        answer,
        content=hide(answer.content, secrets),
        headers={name: hide(value.encode(), secrets).decode() for name, value in answer.headers.items()},
    )


def _body(answer: Answer) -> dict[str, Any]:
    """JSON as its value, text as text, anything else as base64."""
    if is_json(media_type(answer.headers)):
        with contextlib.suppress(InvalidPayload):
            return {"body": codec.parse(answer.content)}
    try:
        text = answer.content.decode()
        codec.check_text(text)
    except (UnicodeDecodeError, InvalidPayload):
        return {"body_base64": base64.b64encode(answer.content).decode()}
    return {"body": text}
