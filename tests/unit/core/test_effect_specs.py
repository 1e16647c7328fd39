"""Effects as a handler states them: typed, and checked when they are asked for (§ENT-22)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec
import pytest

from runstone.core import effect_specs
from runstone.core.effect_specs import (
    ApiCall,
    EffectSpec,
    NotifyUser,
    ScheduleTask,
    SecretRef,
    SendChatMessage,
    SendEmail,
    SorUpdate,
    WebhookCall,
)
from runstone.errors import InvalidPayload
from tests.unit.core.build import NOON

FIELDS = {
    "SEND_EMAIL": {"to", "subject", "body_html", "body_text", "cc", "bcc", "reply_to", "sender"},
    "SEND_CHAT_MESSAGE": {"channel_id", "text", "thread_ts"},
    "API_CALL": {"method", "url", "headers", "body"},
    "WEBHOOK_CALL": {"method", "url", "headers", "body", "secret"},
    "SOR_UPDATE": {"entity_type", "entity_id", "change", "evidence_pack", "expected_version"},
    "NOTIFY_USER": {"user_id", "message", "channel", "title"},
    "SCHEDULE_TASK": {"task", "run_at", "cron", "timezone", "arguments", "name"},
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


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, "/evidence_pack"),
        ({"evidence_pack": {}}, "/evidence_pack"),
        ({"change": {}}, "/change"),
        ({"entity_type": ""}, "/entity_type"),
        ({"entity_type": "x" * 101}, "/entity_type"),
        ({"entity_type": "a\nb"}, "/entity_type"),
        ({"entity_id": ""}, "/entity_id"),
        ({"entity_id": "x" * 256}, "/entity_id"),
        ({"entity_id": "a\x00b"}, "/entity_id"),
        ({"expected_version": -1}, "/expected_version"),
        ({"change": {"key": "sk_live_0123456789abcdef"}}, "/change/key"),
    ],
)
def test_an_update_of_an_entity_names_it_the_change_and_its_evidence(
    given: dict[str, Any], place: str
) -> None:
    """§OUT-28, §ENT-22: what is missing is said with its place."""
    fields: dict[str, Any] = {"entity_type": "CASE", "entity_id": "42", "change": {"a": None}}
    good = fields | {"evidence_pack": {"mail": 1}, "expected_version": 0}
    assert SorUpdate(**good).checked() == good
    evidence = {} if place == "/evidence_pack" else {"evidence_pack": {"mail": 1}}
    with pytest.raises(InvalidPayload) as refused:
        SorUpdate(**fields | evidence | given).checked()
    assert refused.value.pointer == place


def test_what_is_asked_for_is_plain_json_without_what_was_not_given() -> None:
    mail = SendEmail(to=["bob@example.org"], subject="hi", body_html="<p>")
    assert mail.checked() == {"to": ["bob@example.org"], "subject": "hi", "body_html": "<p>"}
    assert WebhookCall(url="http://x", body=None).checked() == {"url": "http://x", "body": None}
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


def test_every_kind_that_comes_along_is_listed() -> None:
    assert {kind.EFFECT_TYPE for kind in effect_specs.BUILT_IN} == FIELDS.keys()


def refused(spec: EffectSpec) -> tuple[str, str]:
    """Where and why."""
    with pytest.raises(InvalidPayload) as error:
        spec.checked()
    return error.value.pointer, error.value.reason


class TestSendEmail:
    def mail(self, **fields: Any) -> SendEmail:
        return SendEmail(**{"to": ["a@example.org"], "subject": "s", "body_text": "t", **fields})

    @pytest.mark.parametrize(
        "address",
        [
            "a@b",
            "Ann <ann@example.org>",
            '"Ann, B." <ann@example.org>',
            " a@b ",
            "Änne <änne@bücher.example>",
            "<a@b>",
        ],
    )
    def test_addresses(self, address: str) -> None:
        assert self.mail(to=[address]).checked()["to"] == [address]

    @pytest.mark.parametrize(
        "address",
        [
            "",
            "ann",
            "a@b, c@d",
            "a@b\r\nBcc: c@d",
            "Ann\n <a@b>",
            "a@b>\u2028",
            "a b@c",
            "<a@b",
            "a@b <c@d>",
            "a@@b",
        ],
    )
    @pytest.mark.parametrize("field", ["to", "cc", "bcc", "reply_to", "sender"])
    def test_what_is_not_one_address_is_refused_with_its_place(self, field: str, address: str) -> None:
        many = field in ("to", "cc", "bcc")
        given: Any = ["ok@example.org", address] if many else address
        pointer, reason = refused(self.mail(**{field: given}))
        assert pointer == (f"/{field}/1" if many else f"/{field}")
        assert "a@b" not in reason.replace("ann@example.org", "")

    @pytest.mark.parametrize("end", ["\n", "\r", "\r\nBcc: x@y", "\x0b", "\x85", "\u2028", "\x7f", "\x1b"])
    def test_a_subject_is_one_line(self, end: str) -> None:
        """Or it would become a header of somebody else's."""
        assert refused(self.mail(subject=f"Hi{end}"))[0] == "/subject"

    def test_a_subject_may_hold_a_tab_and_any_script(self) -> None:
        assert self.mail(subject="a\tb ✓ 日本").checked()["subject"] == "a\tb ✓ 日本"

    def test_it_is_for_somebody_and_says_something(self) -> None:
        assert refused(self.mail(to=[]))[0] == "/to"
        assert refused(self.mail(body_text=None))[0] == "/body_html"
        assert self.mail(body_text="", body_html="").checked()["body_text"] == ""


class TestHttp:
    @pytest.mark.parametrize(
        "url",
        [
            "http://a",
            "https://a.example.org:8443/x?y=z#f",
            "http://127.0.0.1:1/",
            "http://[::1]:8/x",
            "https://bücher.example/ü",
        ],
    )
    def test_urls(self, url: str) -> None:
        assert ApiCall(method="GET", url=url).checked()["url"] == url
        assert WebhookCall(url=url, body=1).checked()["url"] == url

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "x",
            "/x",
            "ftp://a",
            "http://",
            "http:///x",
            "file:///etc/passwd",
            "http://a b",
            "http://a/\nb",
            "http://a:x/",
        ],
    )
    def test_what_is_not_one_is_refused(self, url: str) -> None:
        assert refused(ApiCall(method="GET", url=url))[0] == "/url"
        assert refused(WebhookCall(url=url, body=1))[0] == "/url"

    def test_a_url_with_a_password_is_refused_and_not_repeated(self) -> None:
        pointer, reason = refused(ApiCall(method="GET", url="https://user:hush@a/"))
        assert pointer == "/url"
        assert "SecretRef" in reason
        assert "hush" not in reason

    @pytest.mark.parametrize(
        ("name", "value", "pointer"),
        [
            ("X A", "1", "/headers/X A"),
            ("", "1", "/headers/"),
            ("X/~", "1", "/headers/X~1~0"),
            ("X-A", "1\r\nX-B: 2", "/headers/X-A"),
            ("Idempotency-Key", "mine", "/headers/Idempotency-Key"),
            ("content-length", "0", "/headers/content-length"),
            ("Webhook-Signature", "v1,x", "/headers/Webhook-Signature"),
            ("Authorization", "anything", "/headers/Authorization"),
            ("cookie", "a=b", "/headers/cookie"),
        ],
    )
    def test_headers_that_are_refused(self, name: str, value: str, pointer: str) -> None:
        assert refused(ApiCall(method="GET", url="http://a", headers={name: value}))[0] == pointer
        assert refused(WebhookCall(url="http://a", body=1, headers={name: value}))[0] == pointer

    def test_a_secret_is_named_and_not_given(self) -> None:
        """§PAY-26"""
        spec = ApiCall(
            method="GET",
            url="http://a",
            headers={"Authorization": SecretRef("shop", prefix="Bearer "), "X-A": "1"},
        )
        plain = spec.checked()
        assert plain["headers"] == {"Authorization": {"$secret": "shop", "prefix": "Bearer "}, "X-A": "1"}
        assert msgspec.convert(plain, ApiCall) == spec
        hook = WebhookCall(url="http://a", body=1, secret=SecretRef("hooks"))
        assert hook.checked()["secret"] == {"$secret": "hooks"}
        assert refused(WebhookCall(url="http://a", body=1, secret=SecretRef("")))[0] == "/secret/$secret"

    @pytest.mark.parametrize(
        ("media", "body", "fits"),
        [
            ("application/json; charset=utf-8", {"a": [1]}, True),
            ("application/problem+json", [1], True),
            ("application/x-www-form-urlencoded", {"a": "b", "n": 1}, True),
            ("application/x-www-form-urlencoded", "a=b", True),
            ("application/x-www-form-urlencoded", {"a": {"b": 1}}, False),
            ("application/x-www-form-urlencoded", [1], False),
            ("text/xml", "<a/>", True),
            ("text/xml", {"a": 1}, False),
            ("text/xml", None, True),
        ],
    )
    def test_a_body_fits_its_type(self, media: str, body: Any, fits: bool) -> None:
        spec = ApiCall(method="POST", url="http://a", headers={"X": "1", "CONTENT-type": media}, body=body)
        if fits:
            assert spec.checked()["headers"]["CONTENT-type"] == media
        else:
            assert refused(spec)[0] == "/body"


class TestSecretsInSpecs:
    @pytest.mark.parametrize(
        "literal",
        [
            "Bearer abc",
            "Authorization: bearer 0123456789abcdef",
            "my key is sk_live_abcdefgh",
            "sk-proj-abcdefghijklmnop",
            "xoxb-1234567890-abc",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "ghp_0123456789abcdefghij",
            "AKIAIOSFODNN7EXAMPLE",
            "-----BEGIN RSA PRIVATE KEY-----\nMII",
        ],
    )
    def test_a_literal_that_looks_like_one_is_refused_and_not_repeated(self, literal: str) -> None:
        """§PAY-28, §PAY-29"""
        pointer, reason = refused(ApiCall(method="POST", url="http://a", body={"a/b": ["x", literal]}))
        assert pointer == "/body/a~1b/1"
        assert 'SecretRef("its-name")' in reason
        assert literal not in reason
        assert refused(Fax(number=literal))[0] == "/number", "users' own kinds too"

    @pytest.mark.parametrize(
        "text",
        [
            "The bearer of this letter may enter.",
            "bearer responsibilities and acknowledgements",
            "https://shop.example/sk-bratislava-region-shops",
            "ask_the_team, task_id=42, risk-free",
            "sk_",
            "AKIA",
            "",
        ],
    )
    def test_what_people_write_is_not(self, text: str) -> None:
        assert NotifyUser(user_id="u", message=text + ".").checked()["message"] == text + "."


class TestChatAndNotices:
    def test_what_is_refused(self) -> None:
        assert refused(SendChatMessage(channel_id="", text="x"))[0] == "/channel_id"
        assert refused(SendChatMessage(channel_id="C\n", text="x"))[0] == "/channel_id"
        assert refused(SendChatMessage(channel_id="C", text=""))[0] == "/text"
        assert refused(NotifyUser(user_id="", message="x"))[0] == "/user_id"
        assert refused(NotifyUser(user_id="u\n", message="x"))[0] == "/user_id"
        assert refused(NotifyUser(user_id="u", message="x", title="a\nb"))[0] == "/title"

    def test_what_is_not(self) -> None:
        said = SendChatMessage(channel_id="C", text="two\nlines", thread_ts="1.2")
        assert said.checked() == {"channel_id": "C", "text": "two\nlines", "thread_ts": "1.2"}


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

    @pytest.mark.parametrize(
        ("given", "place"),
        [
            ({"task": ""}, "/task"),
            ({"task": "a\nb"}, "/task"),
            ({"cron": ""}, "/cron"),
            ({"cron": "* * *\n* *"}, "/cron"),
            ({"timezone": "Europe/\x00"}, "/timezone"),
            ({"cron": None, "run_at": NOON, "timezone": "Europe/Berlin"}, "/timezone"),
            ({"name": ""}, "/name"),
            ({"name": "x" * 256}, "/name"),
            ({"name": "a\x00b"}, "/name"),
            ({"run_at": NOON}, ""),
            ({"cron": None, "run_at": datetime.fromisoformat("0001-01-01T00:00+05:00")}, "/run_at"),
            ({"cron": None, "run_at": datetime.fromisoformat("9999-12-31T23:59-05:00")}, "/run_at"),
            ({"arguments": {"key": "sk_live_0123456789abcdef"}}, "/arguments/key"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, given: dict[str, Any], place: str) -> None:
        fields: dict[str, Any] = {"task": "t", "cron": "0 * * * *"}
        named = {"timezone": "Europe/Berlin", "name": "nightly", "arguments": {"a": None}}
        assert ScheduleTask(**fields | named).checked() == fields | named
        with pytest.raises(InvalidPayload) as refused:
            ScheduleTask(**fields | given).checked()
        assert refused.value.pointer == place

    def test_a_time_has_a_zone(self) -> None:
        """§PAY-3"""
        with pytest.raises(InvalidPayload) as refused:
            ScheduleTask(task="t", run_at=NOON.replace(tzinfo=None)).checked()
        assert refused.value.pointer == "/run_at"
