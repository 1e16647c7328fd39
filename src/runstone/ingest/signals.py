"""Signals as a handler sees them: one typed struct per kind of input (§ENT-9)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from runstone.core.payloads import RunType, SignalType


class SignalSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Input of one kind. Users' own kinds are subclasses, with the `SIGNAL_TYPE` that is nearest."""

    SIGNAL_TYPE: ClassVar[SignalType] = "API_CALL"
    RUN_TYPE: ClassVar[RunType] = "SIGNAL_PROCESSING"


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came with a mail; its bytes are in blob storage."""

    name: str
    blob_id: str
    size_bytes: int


class MailHeaders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What tells one mail from another."""

    message_id: str = ""
    in_reply_to: str | None = None


class Email(SignalSpec, frozen=True, kw_only=True):
    """A mail."""

    SIGNAL_TYPE: ClassVar[SignalType] = "EMAIL"

    sender: str = msgspec.field(name="from")
    to: list[str] = []
    subject: str = ""
    body: str = ""
    attachments: list[Attachment] = []
    headers: MailHeaders = MailHeaders()

    @property
    def thread(self) -> str:
        """The conversation it belongs to: the mail that it answers, or its own id."""
        return self.headers.in_reply_to or self.headers.message_id


class Webhook(SignalSpec, frozen=True, kw_only=True):
    """A call from another system."""

    SIGNAL_TYPE: ClassVar[SignalType] = "WEBHOOK"

    webhook_id: str
    event_type: str
    payload: Any
    signature_valid: bool = False


class ChatMessage(SignalSpec, frozen=True, kw_only=True):
    """A message in a channel."""

    SIGNAL_TYPE: ClassVar[SignalType] = "CHAT_MESSAGE"

    channel_id: str
    user_id: str
    text: str
    thread_ts: str | None = None
    mentions: list[str] = []


class ApiRequest(SignalSpec, frozen=True, kw_only=True):
    """A call of our own API, or of `app.start`."""

    SIGNAL_TYPE: ClassVar[SignalType] = "API_CALL"
    RUN_TYPE: ClassVar[RunType] = "HUMAN_TRIGGERED"

    operation: str
    arguments: Any = None
    request_id: str | None = None
    caller: str | None = None


class ScheduledTask(SignalSpec, frozen=True, kw_only=True):
    """A time that has come."""

    SIGNAL_TYPE: ClassVar[SignalType] = "SCHEDULED_TASK"
    RUN_TYPE: ClassVar[RunType] = "SCHEDULED_TASK"

    schedule_id: str
    task: str
    scheduled_for: datetime
    arguments: Any = None


class HumanCommand(SignalSpec, frozen=True, kw_only=True):
    """Something a person wants done."""

    SIGNAL_TYPE: ClassVar[SignalType] = "HUMAN_COMMAND"
    RUN_TYPE: ClassVar[RunType] = "HUMAN_TRIGGERED"

    command: str
    user_id: str
    arguments: Any = None
    comment: str | None = None
