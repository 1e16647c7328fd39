"""Executors of users' own: functions, classes, and what is refused when the app is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from msgspec import Raw

import runstone as rs
from runstone.core.retry import RetryPolicy
from runstone.outbox.builtin import LazyExecutor, built_in_services, email_table
from runstone.outbox.policy import Policy, policy_of
from runstone.outbox.services import Service, as_executor, checked_spec
from tests.unit.core.build import NOON, Story, raw


class Ring(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "RING"

    door: str


class Keyed(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "KEYED"
    RETRIES: ClassVar[RetryPolicy | None] = RetryPolicy(7, timedelta(seconds=3))

    idempotency_key: str


def call(spec: rs.EffectSpec) -> rs.EffectCall:
    return rs.EffectCall(
        effect_id="e",
        tenant_id="t",
        run_id="r",
        effect_type=spec.EFFECT_TYPE,
        spec=spec,
        key="k",
        attempt=1,
        timeout=timedelta(seconds=1),
        correlation_id="c",
        requested_at=NOON,
    )


async def test_a_function_takes_the_spec_and_the_call_if_it_wants_it() -> None:
    async def short(spec: Ring) -> str:
        return spec.door

    def long(spec: Ring, call: rs.EffectCall) -> str:
        return f"{spec.door} {call.key}"

    assert await as_executor(short).execute(call(Ring(door="a"))) == rs.Succeeded("a")
    assert await as_executor(long).execute(call(Ring(door="a"))) == rs.Succeeded("a k")
    assert as_executor(short).target(Ring(door="a")) is None
    await as_executor(short).aclose()


async def test_an_outcome_passes_as_it_is() -> None:
    done = rs.Succeeded([1])

    async def rings(spec: Ring) -> rs.Succeeded:
        return done

    assert await as_executor(rings).execute(call(Ring(door="a"))) is done


async def test_a_class_needs_only_execute() -> None:
    class Bare:
        async def execute(self, call: rs.EffectCall) -> str:
            return "done"

    class Full(Bare):
        closed = False

        def target(self, spec: rs.EffectSpec) -> str:
            return "host"

        async def aclose(self) -> None:
            Full.closed = True

    bare, full = as_executor(Bare), as_executor(Full())
    assert await bare.execute(call(Ring(door="a"))) == rs.Succeeded("done")
    assert (bare.target(Ring(door="a")), full.target(Ring(door="a"))) == (None, "host")
    await bare.aclose()
    await full.aclose()
    assert Full.closed


class Plain:
    def execute(self, call: rs.EffectCall) -> None: ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Plain, "async def"),
        (5, "takes a function"),
        (lambda: 1, "effect's spec"),
        (lambda a, b, c: 1, "spec"),
    ],
)
def test_what_is_no_executor(given: Any, message: str) -> None:
    with pytest.raises(rs.RunstoneError, match=message):
        as_executor(given)


@pytest.mark.parametrize("given", [str, "RING", rs.EffectSpec])
def test_what_is_no_type_of_effect(given: Any) -> None:
    with pytest.raises(rs.RunstoneError):
        checked_spec(given)


def test_a_type_has_one_executor() -> None:
    app = rs.App("app")
    app.executor(Ring)(lambda spec: None)
    with pytest.raises(rs.RunstoneError, match="two executors"):
        app.executor(Ring)(lambda spec: None)
    assert [service.effect_type for service in app.services] == ["RING"]


def test_the_key_stays_out_of_a_spec_that_has_no_field_for_it() -> None:
    plain = Service(spec=Ring, executor=as_executor(lambda spec: None))
    keyed = Service(spec=Keyed, executor=as_executor(lambda spec: None))
    assert plain.read(Raw(b'{"door":"a","idempotency_key":"k"}')) == Ring(door="a")
    assert keyed.read(Raw(b'{"idempotency_key":"k"}')) == Keyed(idempotency_key="k")
    assert (plain.retries.max_retries, keyed.retries.max_retries) == (3, 7)


@pytest.mark.parametrize(
    ("metadata", "policy"),
    [
        (None, Policy()),
        ({"mine": 1}, Policy(None, None)),
        ({"retry": 5}, Policy()),
        ({"timeout_ms": 1500}, Policy(None, timedelta(seconds=1.5))),
        ({"retry": {"base_ms": 10}}, Policy(RetryPolicy(3, timedelta(milliseconds=10)))),
        ({"retry": {"cap_ms": 10}}, Policy(RetryPolicy(3, timedelta(seconds=1), timedelta(milliseconds=10)))),
    ],
)
def test_an_effect_may_have_a_policy_of_its_own(metadata: Any, policy: Policy) -> None:
    """§OUT-49"""
    story = Story.running()
    given: dict[str, Any] = {} if metadata is None else {"metadata": raw(metadata)}
    row = story.effect_row(story.effect(effect_type="RING", **given))
    assert policy_of(row, Service(spec=Ring, executor=as_executor(lambda spec: None))) == policy


class TestBuiltIn:
    def test_http_needs_no_settings_and_others_do(self) -> None:
        free = [one.effect_type for one in built_in_services({}, {})]
        assert free == ["SOR_UPDATE", "SCHEDULE_TASK", "API_CALL", "WEBHOOK_CALL"]
        tables = {"chat": {"token": "x"}, "email": {"sender": "a@example.org"}, "notify": {}}
        served = {one.effect_type for one in built_in_services(tables, {})}
        assert served == {*free, "SEND_CHAT_MESSAGE", "SEND_EMAIL", "NOTIFY_USER"}

    def test_a_wrong_setting_is_named(self) -> None:
        (service,) = [
            one
            for one in built_in_services({"email": {"sender": "a@example.org", "smell": 1}}, {})
            if one.effect_type == "SEND_EMAIL"
        ]
        assert service.outer is not None
        with pytest.raises(rs.RunstoneError, match=r"effects\.email sets 'smell'"):
            service.outer.target(rs.SendEmail(to=["b@example.org"], subject="x", body_html="y"))

    def test_what_is_not_installed_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert [one.effect_type for one in built_in_services({}, {})] == ["SOR_UPDATE", "SCHEDULE_TASK"]
        with pytest.raises(rs.RunstoneError, match=r"runstone\[effects\]"):
            built_in_services({"email": {}}, {})

    async def test_an_executor_is_made_when_it_is_needed(self) -> None:
        made: list[int] = []

        class Noting:
            async def execute(self, call: rs.EffectCall) -> rs.Succeeded:
                return rs.Succeeded("done")

            def target(self, spec: rs.EffectSpec) -> None:
                return None

            async def aclose(self) -> None:
                made.append(-1)

        def make() -> Any:
            made.append(1)
            return Noting()

        lazy = LazyExecutor(make)
        await lazy.aclose()
        assert made == []
        assert lazy.target(Ring(door="a")) is None
        assert await lazy.execute(call(Ring(door="a"))) == rs.Succeeded("done")
        await lazy.aclose()
        assert made == [1, -1]

    def test_an_smtp_url_says_it_all(self) -> None:
        url = "smtp+starttls://ada:se%40cret@mail.example.org:2525?sender=desk@example.org"
        assert email_table(url) == {
            "host": "mail.example.org",
            "security": "starttls",
            "port": 2525,
            "username": "ada",
            "password": "se@cret",
            "sender": "desk@example.org",
        }

    @pytest.mark.parametrize(
        "url", ["http://host?sender=a@b", "smtp://?sender=a@b", "smtp://host", "smtp://host:x?sender=a@b"]
    )
    def test_one_that_does_not_is_refused(self, url: str) -> None:
        with pytest.raises(rs.RunstoneError, match="SMTP URL"):
            email_table(url)
