"""Signals as handlers see them, and as the log keeps them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from runstone.engine.values import Shape, write
from runstone.errors import InvalidPayload
from runstone.ingest.signals import (
    ApiRequest,
    Attachment,
    ChatMessage,
    Email,
    HumanCommand,
    MailHeaders,
    ScheduledTask,
    SignalSpec,
    Webhook,
)

SIGNALS: list[tuple[SignalSpec, str, str]] = [
    (
        Email(
            sender="a@example.org",
            to=["b@example.org"],
            subject="s",
            body="b",
            attachments=[Attachment(name="n", blob_id="x", size_bytes=3)],
            headers=MailHeaders(message_id="<1>"),
        ),
        "EMAIL",
        "SIGNAL_PROCESSING",
    ),
    (Webhook(webhook_id="w", event_type="e", payload={"a": 1}), "WEBHOOK", "SIGNAL_PROCESSING"),
    (ChatMessage(channel_id="c", user_id="u", text="t"), "CHAT_MESSAGE", "SIGNAL_PROCESSING"),
    (ApiRequest(operation="o", arguments=[1]), "API_CALL", "HUMAN_TRIGGERED"),
    (
        ScheduledTask(schedule_id="s", task="t", scheduled_for=datetime(2024, 2, 29, tzinfo=UTC)),
        "SCHEDULED_TASK",
        "SCHEDULED_TASK",
    ),
    (HumanCommand(command="c", user_id="u"), "HUMAN_COMMAND", "HUMAN_TRIGGERED"),
]


@pytest.mark.parametrize(("signal", "signal_type", "run_type"), SIGNALS)
def test_every_kind_comes_back_as_it_was(signal: SignalSpec, signal_type: str, run_type: str) -> None:
    assert Shape(type(signal), "it").read(write(signal)) == signal
    assert (signal_type, run_type) == (signal.SIGNAL_TYPE, signal.RUN_TYPE)


def test_a_mail_is_stored_by_the_names_of_its_schema() -> None:
    stored = msgspec.json.decode(write(SIGNALS[0][0]))
    assert stored["from"] == "a@example.org"
    assert stored["headers"] == {"message_id": "<1>"}
    assert "sender" not in stored


@pytest.mark.parametrize(
    ("headers", "thread"),
    [
        (MailHeaders(message_id="<2>", in_reply_to="<1>"), "<1>"),
        (MailHeaders(message_id="<1>"), "<1>"),
        (MailHeaders(), ""),
    ],
)
def test_a_mail_belongs_to_the_thread_it_answers(headers: MailHeaders, thread: str) -> None:
    assert Email(sender="a@example.org", headers=headers).thread == thread


def test_what_is_missing_is_refused() -> None:
    with pytest.raises(InvalidPayload, match="from"):
        Shape(Email, "a mail").read(write({"subject": "s"}))
