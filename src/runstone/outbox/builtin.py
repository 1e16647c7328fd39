"""The executors that come with Runstone, as the settings have them; loaded when their first effect goes out.

`SOR_UPDATE`, `SCHEDULE_TASK`, `API_CALL` and `WEBHOOK_CALL` need no settings. Mail, chat and notices are
served where their part of the settings says how.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from runstone.core.effect_specs import (
    ApiCall,
    EffectSpec,
    NotifyUser,
    ScheduleTask,
    SendChatMessage,
    SendEmail,
    SorUpdate,
    WebhookCall,
)
from runstone.errors import SettingsInvalid
from runstone.outbox.alerts import Notify
from runstone.outbox.executors.entities import EntityUpdates
from runstone.outbox.executors.schedules import TaskSchedules
from runstone.outbox.services import TIMEOUT, Service
from runstone.ports.executor import EffectCall, Executor, Outcome

INSTALL: Final = "pip install 'runstone[effects]'"
_SECURITY: Final = {"smtp": "none", "smtp+starttls": "starttls", "smtps": "tls"}

_log = logging.getLogger("runstone.outbox")


class LazyExecutor:
    """An executor that is made when it is first needed."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make
        self._made: Executor | None = None

    def _executor(self) -> Executor:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def execute(self, call: EffectCall) -> Outcome:
        return await self._executor().execute(call)

    def target(self, spec: EffectSpec) -> str | None:
        return self._executor().target(spec)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()


def inner_services() -> list[Service]:
    """What is done in our own store, wherever effects are: it needs neither settings nor an outside."""
    return [
        Service(spec=SorUpdate, executor=EntityUpdates()),
        Service(spec=ScheduleTask, executor=TaskSchedules()),
    ]


def built_in_services(settings: Mapping[str, Any], secrets: Mapping[str, str]) -> list[Service]:
    """Everything that these settings serve: the tables `http`, `email`, `chat` and `notify`."""
    services = inner_services()
    if _installed("httpx2", needed="http" in settings or "chat" in settings):
        http = LazyExecutor(lambda: _http(settings.get("http", {}), secrets))
        services += [_service(kind, http, settings.get("http")) for kind in (ApiCall, WebhookCall)]
    if "chat" in settings:
        chat = LazyExecutor(lambda: _chat(settings["chat"], secrets))
        services.append(_service(SendChatMessage, chat, settings["chat"]))
    if "email" in settings and _installed("aiosmtplib", needed=True):
        email = LazyExecutor(lambda: _email(settings["email"], secrets))
        services.append(_service(SendEmail, email, settings["email"]))
    if "notify" in settings and _installed("apprise", needed=True):
        notify = LazyExecutor(lambda: _notify(settings["notify"], secrets))
        services.append(_service(NotifyUser, notify, settings["notify"]))
    return services


def _service(spec: type[EffectSpec], executor: Executor, table: Mapping[str, Any] | None) -> Service:
    """The dispatcher's own limit is a little longer: the executor's says better what took so long."""
    limit = (table or {}).get("timeout", 60.0)
    return Service(spec=spec, executor=executor, timeout=max(TIMEOUT, timedelta(seconds=float(limit) + 5.0)))


def _installed(module: str, *, needed: bool) -> bool:
    if importlib.util.find_spec(module) is not None:
        return True
    if needed:
        raise SettingsInvalid(f"The settings of effects need {module}, which is not installed: {INSTALL}")
    _log.info("API_CALL and WEBHOOK_CALL are not executed here: %s", INSTALL)
    return False


def _read(table: Mapping[str, Any], kind: Any, name: str) -> Any:
    known = set(kind.__struct_fields__)
    unknown = sorted(table.keys() - known)
    if unknown:
        raise SettingsInvalid(
            f"effects.{name} sets {unknown[0]!r}, which is no setting: use {', '.join(sorted(known))}"
        )
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(f"effects.{name}: {error}") from error


def _http(table: Mapping[str, Any], secrets: Mapping[str, str]) -> Executor:
    from runstone.outbox.executors.gate import Gate
    from runstone.outbox.executors.http import HttpConfig, HttpExecutor

    return HttpExecutor(_read(table, HttpConfig, "http"), gate=Gate(secrets))


def _chat(table: Mapping[str, Any], secrets: Mapping[str, str]) -> Executor:
    from runstone.outbox.executors.chat import ChatConfig, ChatExecutor
    from runstone.outbox.executors.gate import Gate

    return ChatExecutor(_read(table, ChatConfig, "chat"), gate=Gate(secrets))


def _email(table: Mapping[str, Any], secrets: Mapping[str, str]) -> Executor:
    from runstone.outbox.executors.email import EmailExecutor
    from runstone.outbox.executors.gate import Gate
    from runstone.outbox.executors.smtp import EmailConfig

    return EmailExecutor(_read(table, EmailConfig, "email"), gate=Gate(secrets))


def _notify(table: Mapping[str, Any], secrets: Mapping[str, str]) -> Executor:
    from runstone.outbox.executors.gate import Gate
    from runstone.outbox.executors.notify import NotifyConfig, NotifyExecutor

    return NotifyExecutor(_read(table, NotifyConfig, "notify"), gate=Gate(secrets))


def email_table(url: str) -> dict[str, Any]:
    """`smtp://user:password@host:port?sender=…` as the table that says the same.

    The scheme says how it is secured: `smtps`, `smtp+starttls`, or `smtp` for a server next door.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsInvalid(f"The SMTP URL is none: {error}") from error
    if parts.scheme not in _SECURITY or not parts.hostname:
        raise SettingsInvalid(
            "The SMTP URL begins with smtp://, smtp+starttls:// or smtps://, and a host comes next"
        )
    table: dict[str, Any] = {"host": parts.hostname, "security": _SECURITY[parts.scheme]}
    table |= {} if port is None else {"port": port}
    table |= {} if parts.username is None else {"username": unquote(parts.username)}
    table |= {} if parts.password is None else {"password": unquote(parts.password)}
    table |= dict(parse_qsl(parts.query))
    if "sender" not in table:
        raise SettingsInvalid("The SMTP URL has to say who mail is from: add ?sender=desk@example.org")
    return table


def alert_by_apprise(urls: Sequence[str]) -> Notify:
    """Sends alerts to all of these Apprise URLs, from a thread of their own."""
    _installed("apprise", needed=True)

    async def notify(title: str, text: str) -> None:
        import apprise

        def send() -> bool:
            with warnings.catch_warnings():  # its plugins are loaded here, and some use what Python will drop
                warnings.simplefilter("ignore")
                sender = apprise.Apprise(asset=apprise.AppriseAsset(app_id="Runstone", async_mode=False))
                for url in urls:
                    if not sender.add(url):
                        _log.warning("an alert URL that Apprise does not understand is passed over")
            return bool(sender.notify(title=title, body=text))

        if not await asyncio.to_thread(send):
            raise RuntimeError("not every alert went out")

    return notify
