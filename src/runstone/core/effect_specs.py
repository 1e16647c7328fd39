"""Effects as a handler states them: one typed struct per kind, checked when it is asked for (§ENT-22)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runstone.core import codec, effect_checks
from runstone.core.payloads import Moment
from runstone.core.retry import RetryPolicy
from runstone.errors import InvalidPayload


class SecretRef(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Stands for a secret: its name. Only an executor learns its value (§PAY-26, §PAY-27)."""

    name: Annotated[str, Meta(min_length=1, max_length=200)] = msgspec.field(name="$secret")
    prefix: str = ""
    """What stands before it where it is used, such as `Bearer `."""


Headers: TypeAlias = dict[str, str | SecretRef]


class EffectSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something to be done outside. Users' own kinds are subclasses with an `EFFECT_TYPE`."""

    EFFECT_TYPE: ClassVar[str] = ""
    RETRIES: ClassVar[RetryPolicy | None] = None
    """How its type is retried; none: as the table says (§OUT-21)."""
    DEMANDED: ClassVar[tuple[str, ...]] = ()
    """Fields that `check` wants though they have a default: it says better than Python what is missing."""

    @classmethod
    def effect_name(cls) -> str:
        """The name of the step that asks for it."""
        return cls.EFFECT_TYPE.lower()

    def check(self) -> None:
        """Raises `InvalidPayload` for what is wrong beyond the types of its fields, which are right here."""

    def checked(self) -> dict[str, Any]:
        """The spec as JSON, or the place where it is wrong."""
        if not self.EFFECT_TYPE:
            raise InvalidPayload("", f"{type(self).__name__} names no EFFECT_TYPE")
        encoded = codec.canonical(self)
        codec.decode_as(encoded, type(self)).check()
        plain: dict[str, Any] = msgspec.json.decode(encoded)
        effect_checks.check_no_secret(plain)
        return plain


class SendEmail(EffectSpec, frozen=True, kw_only=True):
    """A mail. An address is `ann@example.org` or `Ann <ann@example.org>`."""

    EFFECT_TYPE: ClassVar[str] = "SEND_EMAIL"

    to: Annotated[list[str], Meta(min_length=1, description="Who it is for.")]
    subject: Annotated[str, Meta(description="One line.")]
    body_html: Annotated[str | None, Meta(description="The mail as HTML.")] = None
    body_text: Annotated[
        str | None, Meta(description="The mail as plain text, beside the HTML or alone.")
    ] = None
    cc: Annotated[list[str], Meta(description="Who gets a copy.")] = []
    bcc: Annotated[list[str], Meta(description="Who gets a copy without the others seeing it.")] = []
    reply_to: Annotated[str | None, Meta(description="Where answers go.")] = None
    sender: Annotated[str | None, Meta(description="Who it is from; the configured sender if not given.")] = (
        None
    )

    def check(self) -> None:
        effect_checks.check_line(self.subject, "/subject")
        for field, addresses in (("to", self.to), ("cc", self.cc), ("bcc", self.bcc)):
            for index, address in enumerate(addresses):
                effect_checks.parse_address(address, f"/{field}/{index}")
        for field, single in (("reply_to", self.reply_to), ("sender", self.sender)):
            if single is not None:
                effect_checks.parse_address(single, f"/{field}")
        if self.body_html is None and self.body_text is None:
            raise InvalidPayload("/body_html", "a mail has a `body_html`, a `body_text`, or both")


class SendChatMessage(EffectSpec, frozen=True, kw_only=True):
    """A message in a channel."""

    EFFECT_TYPE: ClassVar[str] = "SEND_CHAT_MESSAGE"

    channel_id: Annotated[str, Meta(min_length=1, description="The channel, as the chat service calls it.")]
    text: Annotated[str, Meta(min_length=1, description="What to say.")]
    thread_ts: Annotated[str | None, Meta(description="The message that this one answers.")] = None

    def check(self) -> None:
        effect_checks.check_line(self.channel_id, "/channel_id")


class ApiCall(EffectSpec, frozen=True, kw_only=True):
    """A call of somebody's API.

    The body is sent as JSON unless a `Content-Type` says something else: an object as a form
    (`application/x-www-form-urlencoded`), or text as it stands.
    """

    EFFECT_TYPE: ClassVar[str] = "API_CALL"

    method: Annotated[Literal["GET", "POST", "PUT", "PATCH", "DELETE"], Meta(description="The HTTP method.")]
    url: Annotated[str, Meta(description="An absolute http or https URL.")]
    headers: Annotated[Headers, Meta(description="Headers; a secret one as a reference.")] = {}
    body: Annotated[Any, Meta(description="What to send; null is no body.")] = None

    def check(self) -> None:
        effect_checks.check_url(self.url, "/url")
        effect_checks.check_headers(self.headers, "/headers")
        effect_checks.check_body(self.headers, self.body, "/body")


class WebhookCall(EffectSpec, frozen=True, kw_only=True):
    """A webhook of ours to somebody, signed as Standard Webhooks has it."""

    EFFECT_TYPE: ClassVar[str] = "WEBHOOK_CALL"

    url: Annotated[str, Meta(description="An absolute http or https URL.")]
    body: Annotated[Any, Meta(description="What to send, as JSON.")]
    method: Annotated[Literal["POST", "PUT"], Meta(description="The HTTP method.")] = "POST"
    headers: Annotated[Headers, Meta(description="Headers; a secret one as a reference.")] = {}
    secret: Annotated[
        SecretRef | None, Meta(description="What it is signed with; the configured one if not given.")
    ] = None

    def check(self) -> None:
        effect_checks.check_url(self.url, "/url")
        effect_checks.check_headers(self.headers, "/headers")
        effect_checks.check_body(self.headers, self.body, "/body")


class NotifyUser(EffectSpec, frozen=True, kw_only=True):
    """A notice to a person."""

    EFFECT_TYPE: ClassVar[str] = "NOTIFY_USER"

    user_id: Annotated[str, Meta(min_length=1, description="Who is told.")]
    message: Annotated[str, Meta(min_length=1, description="What they are told.")]
    channel: Annotated[
        str | None, Meta(description="By which configured way; the first one if not given.")
    ] = None
    title: Annotated[str, Meta(description="One line above it, where the way has that.")] = ""

    def check(self) -> None:
        effect_checks.check_line(self.user_id, "/user_id")
        effect_checks.check_line(self.title, "/title")


class SorUpdate(EffectSpec, frozen=True, kw_only=True):
    """A change of an entity in the system of record, which is made with its outcome: exactly once."""

    EFFECT_TYPE: ClassVar[str] = "SOR_UPDATE"
    DEMANDED: ClassVar[tuple[str, ...]] = ("evidence_pack",)

    entity_type: Annotated[str, Meta(min_length=1, max_length=100, description="What kind of thing it is.")]
    entity_id: Annotated[str, Meta(min_length=1, max_length=255, description="Which one, in your own words.")]
    change: Annotated[
        dict[str, Any],
        Meta(min_length=1, description="A JSON merge patch: what it names is set, null removes."),
    ]
    evidence_pack: Annotated[
        dict[str, Any], Meta(min_length=1, description="What the change rests on; it must not be empty.")
    ] = {}
    expected_version: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The version that it has to have; 0: it must not be there yet."),
    ] = None

    def check(self) -> None:
        effect_checks.check_line(self.entity_type, "/entity_type")
        effect_checks.check_line(self.entity_id, "/entity_id")
        if not self.evidence_pack:
            raise InvalidPayload(
                "/evidence_pack", "a change of an entity names the evidence that it rests on"
            )


class ScheduleTask(EffectSpec, frozen=True, kw_only=True):
    """A task for later, once or again and again; it is scheduled with its outcome: exactly once."""

    EFFECT_TYPE: ClassVar[str] = "SCHEDULE_TASK"

    task: Annotated[str, Meta(min_length=1, max_length=200, description="The name of a handler.")]
    run_at: Annotated[Moment | None, Meta(description="When to start it, once.")] = None
    cron: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="When to start it, again and again: five fields as cron has them."),
    ] = None
    timezone: Annotated[
        str, Meta(min_length=1, max_length=100, description="Whose clock `cron` is read by.")
    ] = "UTC"
    arguments: Annotated[
        dict[str, Any] | None, Meta(description="What the handler is started with; null is nothing.")
    ] = None
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255)] | None,
        Meta(description="What it is known by: the same name again replaces it. Its own key if not given."),
    ] = None

    def check(self) -> None:
        for field in ("task", "cron", "timezone", "name"):
            effect_checks.check_line(getattr(self, field) or "", f"/{field}")
        if (self.run_at is None) == (self.cron is None):
            raise InvalidPayload("", "a task is scheduled by `run_at` or by `cron`: name one of the two")
        if self.cron is None and self.timezone != "UTC":
            raise InvalidPayload("/timezone", "it is for `cron`: a `run_at` has a zone of its own")
        if self.run_at is not None:
            effect_checks.check_moment(self.run_at, "/run_at")


BUILT_IN: Final[tuple[type[EffectSpec], ...]] = (
    *(SendEmail, SendChatMessage, ApiCall, WebhookCall),
    *(NotifyUser, SorUpdate, ScheduleTask),
)
"""The kinds that come with the package."""
