"""Effects as a handler states them: one typed struct per kind, checked when it is asked for (§ENT-22)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from runstone.core import codec
from runstone.core.payloads import Moment
from runstone.errors import InvalidPayload


class EffectSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something to be done outside. Users' own kinds are subclasses with an `EFFECT_TYPE`."""

    EFFECT_TYPE: ClassVar[str] = ""

    @classmethod
    def effect_name(cls) -> str:
        """The name of the step that asks for it."""
        return cls.EFFECT_TYPE.lower()

    def problem(self) -> str | None:
        """What is wrong with it beyond the types of its fields."""
        return None

    def checked(self) -> dict[str, Any]:
        """The spec as JSON, or the place where it is wrong."""
        if not self.EFFECT_TYPE:
            raise InvalidPayload("", f"{type(self).__name__} names no EFFECT_TYPE")
        if problem := self.problem():
            raise InvalidPayload("", problem)
        encoded = codec.canonical(self)
        codec.decode_as(encoded, type(self))
        plain: dict[str, Any] = msgspec.json.decode(encoded)
        return plain


class SendEmail(EffectSpec, frozen=True, kw_only=True):
    """A mail."""

    EFFECT_TYPE: ClassVar[str] = "SEND_EMAIL"

    to: list[str]
    subject: str
    body_html: str
    reply_to: str | None = None


class SendChatMessage(EffectSpec, frozen=True, kw_only=True):
    """A message in a channel."""

    EFFECT_TYPE: ClassVar[str] = "SEND_CHAT_MESSAGE"

    channel_id: str
    text: str
    thread_ts: str | None = None


class ApiCall(EffectSpec, frozen=True, kw_only=True):
    """A call of somebody's API."""

    EFFECT_TYPE: ClassVar[str] = "API_CALL"

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    url: str
    headers: dict[str, str] = {}
    body: Any = None


class WebhookCall(EffectSpec, frozen=True, kw_only=True):
    """A webhook of ours to somebody."""

    EFFECT_TYPE: ClassVar[str] = "WEBHOOK_CALL"

    url: str
    body: Any
    method: Literal["POST", "PUT"] = "POST"
    headers: dict[str, str] = {}


class NotifyUser(EffectSpec, frozen=True, kw_only=True):
    """A notice to a person."""

    EFFECT_TYPE: ClassVar[str] = "NOTIFY_USER"

    user_id: str
    message: str
    channel: str | None = None


class SorUpdate(EffectSpec, frozen=True, kw_only=True):
    """A change of a record in the system of record."""

    EFFECT_TYPE: ClassVar[str] = "SOR_UPDATE"

    entity_type: str
    entity_id: str
    change: dict[str, Any]
    evidence_pack: dict[str, Any] = {}


class ScheduleTask(EffectSpec, frozen=True, kw_only=True):
    """A task for later, once or again and again."""

    EFFECT_TYPE: ClassVar[str] = "SCHEDULE_TASK"

    task: str
    run_at: Moment | None = None
    cron: str | None = None
    arguments: dict[str, Any] = {}

    def problem(self) -> str | None:
        if (self.run_at is None) == (self.cron is None):
            return "a task is scheduled by `run_at` or by `cron`: name one of the two"
        return None
