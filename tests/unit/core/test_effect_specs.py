"""Effects as a handler states them: typed, and checked when they are asked for (§ENT-22)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from runstone.core import effect_specs
from runstone.core.effect_specs import ApiCall, EffectSpec, ScheduleTask, SendEmail, WebhookCall
from runstone.errors import InvalidPayload
from tests.unit.core.build import NOON

FIELDS = {
    "SEND_EMAIL": {"to", "subject", "body_html", "reply_to"},
    "SEND_CHAT_MESSAGE": {"channel_id", "text", "thread_ts"},
    "API_CALL": {"method", "url", "headers", "body"},
    "WEBHOOK_CALL": {"method", "url", "headers", "body"},
    "SOR_UPDATE": {"entity_type", "entity_id", "change", "evidence_pack"},
    "NOTIFY_USER": {"user_id", "message", "channel"},
    "SCHEDULE_TASK": {"task", "run_at", "cron", "arguments"},
}


class Fax(EffectSpec, frozen=True, kw_only=True):
    """A user's own kind."""

    EFFECT_TYPE: ClassVar[str] = "SEND_FAX"

    number: str
    pages: tuple[Any, ...] = ()


class Nameless(EffectSpec, frozen=True, kw_only=True):
    """A kind that forgot its type."""


def test_the_kinds_and_their_fields() -> None:
    kinds = [
        kind
        for kind in vars(effect_specs).values()
        if isinstance(kind, type) and issubclass(kind, EffectSpec) and kind is not EffectSpec
    ]
    assert {kind.EFFECT_TYPE: set(kind.__struct_fields__) for kind in kinds} == FIELDS


def test_what_is_asked_for_is_plain_json_without_what_was_not_given() -> None:
    mail = SendEmail(to=["bob"], subject="hi", body_html="<p>")
    assert mail.checked() == {"to": ["bob"], "subject": "hi", "body_html": "<p>"}
    assert WebhookCall(url="x", body=None).checked() == {"url": "x", "body": None}
    assert Fax(number="1", pages=({"n": 1},)).checked() == {"number": "1", "pages": [{"n": 1}]}


def test_the_step_that_asks_is_named_after_it() -> None:
    assert SendEmail.effect_name() == "send_email"
    assert Fax.effect_name() == "send_fax"


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        (SendEmail(to=["bob", 7], subject="x", body_html=""), "/to/1"),  # type: ignore[list-item]
        (SendEmail(to="bob", subject="x", body_html=""), "/to"),  # type: ignore[arg-type]
        (ApiCall(method="FETCH", url="x"), "/method"),  # type: ignore[arg-type]
        (ApiCall(method="GET", url="x", headers={"a": 1}), "/headers"),  # type: ignore[dict-item]
        (ApiCall(method="GET", url="x", body={"a": ["\0"]}), "/body/a/0"),
        (Fax(number="1", pages=(0, object())), "/pages/1"),
    ],
    ids=["item", "list", "choice", "map", "text", "type"],
)
def test_a_mistake_is_named_with_its_place(spec: EffectSpec, pointer: str) -> None:
    """§PAY-13: a struct is not checked when it is made, so it is when it is asked for."""
    with pytest.raises(InvalidPayload) as refused:
        spec.checked()
    assert refused.value.pointer == pointer


def test_a_kind_has_a_type() -> None:
    with pytest.raises(InvalidPayload, match="Nameless names no EFFECT_TYPE"):
        Nameless().checked()


class TestScheduleTask:
    def test_once_or_again_and_again(self) -> None:
        assert ScheduleTask(task="t", run_at=NOON).checked() == {
            "task": "t",
            "run_at": "2026-03-01T12:00:00Z",
        }
        assert ScheduleTask(task="t", cron="0 * * * *").checked() == {"task": "t", "cron": "0 * * * *"}

    def test_one_of_the_two_it_has_to_be(self) -> None:
        with pytest.raises(InvalidPayload):
            ScheduleTask(task="t").checked()

    def test_a_time_has_a_zone(self) -> None:
        """§PAY-3"""
        with pytest.raises(InvalidPayload) as refused:
            ScheduleTask(task="t", run_at=NOON.replace(tzinfo=None)).checked()
        assert refused.value.pointer == "/run_at"
