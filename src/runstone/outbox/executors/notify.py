"""`NOTIFY_USER`: a notice by any way that Apprise knows, from mail to chat to a pager.

Apprise blocks, so it runs in threads of its own; says only whether it worked, so what it logs meanwhile is
taken for the reason; and has no word for an idempotency key, so that goes as a header where there are any.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import apprise
import msgspec

from runstone.core.effect_specs import EffectSpec, NotifyUser, SecretRef
from runstone.outbox.executors.failures import excerpt, failed, patience
from runstone.outbox.executors.gate import HIDDEN, Gate
from runstone.outbox.executors.wire import header_value, host_of
from runstone.ports.executor import EffectCall, Failed, Outcome, Succeeded

_ASSET: Final = apprise.AppriseAsset(app_id="Runstone", async_mode=False)
"""Without its own concurrency: the outbox has one notice per call."""

_SHORTEST_SECRET: Final = 6
"""Shorter parts of an address are words like `info`, which messages may hold."""


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How people are reached: Apprise URLs, by the name of the channel."""

    channels: dict[str, str | SecretRef] = msgspec.field(default_factory=dict)
    """For everybody; `{user_id}` stands for whom it is for."""
    users: dict[str, dict[str, str | SecretRef]] = msgspec.field(default_factory=dict)
    """For one person, by user id; asked before `channels`."""
    timeout: float = 30.0
    max_threads: int = 4

    def __repr__(self) -> str:
        return f"NotifyConfig(channels={sorted(self.channels)!r}, users={sorted(self.users)!r})"


class NotifyExecutor:
    """Tells people."""

    def __init__(self, config: NotifyConfig, *, gate: Gate | None = None) -> None:
        load_services()
        self._config = config
        self._gate = gate or Gate()
        self._threads = ThreadPoolExecutor(config.max_threads, thread_name_prefix="runstone-notify")

    def target(self, spec: EffectSpec) -> str | None:
        return None

    async def execute(self, call: EffectCall) -> Outcome:
        spec = call.spec
        assert isinstance(spec, NotifyUser)
        address = await self._address(call, spec)
        if isinstance(address, Failed):
            return address
        if refused := await self._gate.objection(call, host_of(address)):
            return refused
        return await self._notify(call, spec, address)

    async def _address(self, call: EffectCall, spec: NotifyUser) -> str | Failed:
        own = self._config.users.get(spec.user_id, {})
        ways = self._config.channels | own
        channel = spec.channel or next(iter(own or ways), None)
        if channel is None or channel not in ways:
            known = ", ".join(sorted(ways)) or "none"
            return failed(
                "VALIDATION",
                "CHANNEL_UNKNOWN",
                f"No channel {channel!r} to notify user {spec.user_id!r} by; configured: {known}",
                nothing_sent=True,
            )
        address = await self._gate.secret(call, ways[channel])
        return (
            address
            if isinstance(address, Failed)
            else address.replace("{user_id}", quote(spec.user_id, safe=""))
        )

    async def _notify(self, call: EffectCall, spec: NotifyUser, address: str) -> Outcome:
        seconds = patience(self._config.timeout, call.timeout)
        sending = asyncio.get_running_loop().run_in_executor(
            self._threads, notify, address, spec, header_value(call.key)
        )
        try:
            async with asyncio.timeout(seconds):
                return await sending
        except TimeoutError:
            return failed(
                "TIMEOUT",
                "NOTIFY_TIMEOUT",
                f"Not notified within {seconds:g} s, as far as is known",
                retryable=True,
            )

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def load_services() -> None:
    """Lets Apprise import its services, once, not in a thread: some import what Python is about to drop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        apprise.Apprise.instantiate("json://localhost")


def notify(address: str, spec: NotifyUser, key: str) -> Outcome:
    """Blocks until Apprise is done."""
    with _Overheard() as heard:
        service = apprise.Apprise.instantiate(address, asset=_ASSET)
        if not isinstance(service, apprise.NotifyBase):
            return failed(
                "VALIDATION",
                "CHANNEL_INVALID",
                f"Apprise cannot use the address of this channel: {_reason(heard, address)}",
                nothing_sent=True,
            )
        if isinstance(headers := getattr(service, "headers", None), dict):
            headers |= {"Idempotency-Key": key, "X-Idempotency-Key": key}
        told = apprise.Apprise(service, asset=_ASSET).notify(
            body=spec.message, title=spec.title, body_format=apprise.NotifyFormat.TEXT
        )
    if told:
        return Succeeded({"service": str(service.service_name)})
    return failed(
        "EXTERNAL",
        "NOTIFY_FAILED",
        f"{service.service_name} did not take the notice: {_reason(heard, address)}",
        retryable=True,
    )


class _Overheard(logging.Handler):
    """What Apprise logs about one notice: it has threads of its own, and takes the context into them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if _listening.get() is self:
            self.said.append(record.getMessage())

    def __enter__(self) -> _Overheard:
        self._token = _listening.set(self)
        logging.getLogger("apprise").addHandler(self)
        return self

    def __exit__(self, *failure: object) -> None:
        logging.getLogger("apprise").removeHandler(self)
        _listening.reset(self._token)


_listening: ContextVar[_Overheard | None] = ContextVar("listening", default=None)


def _reason(heard: _Overheard, address: str) -> str:
    """What was heard, without what the address holds: user, password and tokens (§PAY-29)."""
    said = "; ".join(heard.said) or "it does not say why"
    parts = urlsplit(address)
    words = {address, parts.username, parts.password, *parts.path.split("/"), *parts.query.split("&")}
    for word in sorted(filter(None, words), key=len, reverse=True):
        for form in (word, unquote(word)):
            if len(form) >= _SHORTEST_SECRET:
                said = said.replace(form, HIDDEN)
    return excerpt(said)
