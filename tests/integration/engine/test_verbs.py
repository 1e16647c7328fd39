"""Every verb of a run, once, on a real store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import runstone as rs
from tests.integration.engine.lab import data, log, status, steps, suspended, types, until, within


class Order(msgspec.Struct):
    id: str
    total: float = 1.0


class Approval(msgspec.Struct):
    approved: bool


async def test_calls_of_all_kinds_are_steps_of_their_types(path: str) -> None:
    app = rs.App("desk", version="3")

    @app.tool
    async def look_up(order_id: str) -> Order:
        return Order(order_id, 19.9)

    @app.tool(name="plain")
    def in_a_thread(order: Order) -> str:
        return threading.current_thread().name

    @app.specialist
    async def triage(text: str, mood: str = "calm") -> dict[str, str]:
        return {"text": text, "mood": mood}

    @app.specialist
    def slow_expert(number: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return number + 1

    @app.on()
    async def handle(run: rs.Run, text: str) -> list[Any]:
        order = await run.call(look_up, text)
        assert isinstance(order, Order)
        return [
            order.total,
            await run.call(in_a_thread, order),
            await run.call(triage, text=text),
            await run.call(triage, text, mood="angry"),
            await run.call(slow_expert, 41),
        ]

    async with app.running(path):
        handle_ = await app.start(handle, "o-1")
        total, thread, calm, angry, number = await within(handle_.result())
        rows = await steps(app, handle_)
        started = await data(handle_, "STEP_STARTED")
        run = await handle_.status()

    assert (total, calm, angry, number) == (
        19.9,
        {"text": "o-1", "mood": "calm"},
        {"text": "o-1", "mood": "angry"},
        42,
    )
    assert thread.startswith("runstone-step")
    assert [(step.step_key, step.step_type, step.specialist_id) for step in rows] == [
        ("look_up#1", "TOOL_SEQUENCE", None),
        ("plain#1", "TOOL_SEQUENCE", None),
        ("triage#1", "SPECIALIST_CALL", "triage"),
        ("triage#2", "SPECIALIST_CALL", "triage"),
        ("slow_expert#1", "SPECIALIST_CALL", "slow_expert"),
    ]
    assert started[1]["input_context"]["arguments"] == {"order": {"id": "o-1", "total": 19.9}}
    assert (run.status, run.run_type, run.orchestrator_version) == ("COMPLETED", "HUMAN_TRIGGERED", "3")
    assert run.plan_id == "handle"


async def test_tools_record_their_calls(path: str) -> None:
    app = rs.App("desk")

    @app.tool
    async def look_up(order_id: str) -> str:
        if order_id == "bad":
            raise ValueError("no such order")
        return order_id

    @app.on()
    async def handle(run: rs.Run) -> str:
        with pytest.raises(rs.StepFailed) as caught:
            await run.call(look_up, "bad")
        failure = caught.value
        assert (failure.step_key, failure.category, failure.code) == (
            "look_up#1",
            "APPLICATION",
            "ValueError",
        )
        return await run.call(look_up, "good")

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "good"
        assert [call["tool_args"] for call in await data(handle_, "TOOL_CALLED")] == [
            {"order_id": "bad"},
            {"order_id": "good"},
        ]
        assert (await data(handle_, "TOOL_FAILED"))[0]["error"]["message"] == "no such order"
        assert (await data(handle_, "TOOL_COMPLETED"))[0]["result"] == "good"


async def test_options_make_another_step_of_the_same_function(path: str) -> None:
    app = rs.App("desk")
    tries: list[str] = []

    @app.tool
    async def flaky(name: str) -> int:
        tries.append(name)
        if tries.count(name) < 2:
            raise OSError("not yet")
        return len(tries)

    @app.on()
    async def handle(run: rs.Run) -> int:
        patient = flaky.options(name="patient", retry=rs.Retry(max_attempts=2, initial=rs.seconds(0)))
        return await run.call(patient, "a")

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == 2
        assert {event.step_key for event in await log(handle_) if event.step_key} == {"patient#1"}
    assert flaky.call_options.retry.max_attempts == 1


async def test_decide_skip_set_and_get(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        run.set("order", Order("o-1"))
        nothing: str | None = None
        decided = [
            await run.decide("flag", True),
            await run.decide("kind", "refund"),
            (await run.decide("order", Order("o-2"))).id,
            await run.decide("nothing", nothing),
        ]
        await run.skip("mail", "nobody wants it")
        run.set("order", Order("o-3"))
        assert run.get("order", Order) == Order("o-3")
        assert run.get("order") == {"id": "o-3", "total": 1.0}
        with pytest.raises(KeyError):
            run.get("missing")
        return decided

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == [True, "refund", "o-2", None]
        snapshot = await handle_.snapshot()
        assert snapshot is not None
        assert [(step.step_id, step.status) for step in snapshot.steps] == [
            ("flag#1", "SUCCESS"),
            ("kind#1", "SUCCESS"),
            ("order#1", "SUCCESS"),
            ("nothing#1", "SUCCESS"),
            ("mail#1", "SKIPPED"),
        ]
        assert (await data(handle_, "STEP_SKIPPED"))[0]["reason"] == "nobody wants it"
        assert [change["value"]["id"] for change in await data(handle_, "RUN_VARIABLE_SET")] == ["o-1", "o-3"]


async def test_effects_leave_the_run_open_and_go_to_the_outbox(path: str) -> None:
    app = rs.App("desk")
    found: list[str] = []

    @app.on()
    async def handle(run: rs.Run) -> str:
        mail = rs.SendEmail(to=["a@example.org"], subject="Hello", body_html="<p>Hi</p>")
        found.append(await run.effect(mail))
        found.append(await run.effect(mail, key="welcome", critical=False, at_most_once=True))
        found.append(await run.effect(mail, key="welcome", critical=False, at_most_once=True))
        return "asked"

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "asked"
        requested = [event for event in await log(handle_) if event.event_type == "EFFECT_REQUESTED"]
        first, second = (msgspec.json.decode(event.event_data) for event in requested)
        assert (await handle_.status()).status == "RUNNING"
        rows = await steps(app, handle_)
    assert [event.aggregate_id for event in requested] == found[:2]
    assert found[2] == found[1]
    assert first["effect_spec"]["to"] == ["a@example.org"]
    assert first["effect_spec"]["idempotency_key"] == first["effect_key"]
    assert (second["effect_key"], second["critical"], second["delivery"]) == (
        "welcome",
        False,
        "at_most_once",
    )
    assert [row.step_type for row in rows] == ["EFFECT_REQUEST"] * 3


async def test_an_effect_key_for_another_effect_fails_only_its_step(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, text: str) -> str:
        try:
            await run.effect(rs.NotifyUser(user_id="u", message=text), key="note")
            await run.effect(rs.NotifyUser(user_id="u", message="something else"), key="note")
        except rs.StepFailed as failure:
            return f"{failure.step_key} {failure.code}"
        return "asked"

    async with app.running(path):
        same_run = await app.start(handle, "a")
        assert await within(same_run.result()) == "notify_user#2 EFFECT_KEY_TAKEN"
        other_run = await app.start(handle, "b")
        assert await within(other_run.result()) == "notify_user#1 EFFECT_KEY_TAKEN"


@pytest.mark.parametrize("own", [True, False], ids=["of this run", "of another run"])
async def test_of_many_effects_at_once_only_the_one_whose_key_is_taken_fails(path: str, own: bool) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, taken: str) -> list[str]:
        async def ask(key: str, message: str = "new") -> str:
            try:
                await run.effect(rs.NotifyUser(user_id="u", message=message), key=key, critical=False)
            except rs.StepFailed as failure:
                return failure.code
            return "asked"

        if own or taken:
            await ask("c", "old")
        if taken:
            return []
        return list(await run.gather(*(ask(f"{taken}{key}") for key in "abcde")))

    async with app.running(path):
        if not own:
            await within((await app.start(handle, "elsewhere")).result())
        handle_ = await app.start(handle, "")
        assert await within(handle_.result()) == ["asked", "asked", "EFFECT_KEY_TAKEN", "asked", "asked"]
        (failed,) = await data(handle_, "STEP_FAILED")
        assert "'c' stands for another effect" in failed["error"]["message"]


async def test_waits_with_and_without_a_type(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        typed = await run.wait("approval", Approval, timeout=rs.days(2))
        assert isinstance(typed, Approval)
        return [typed.approved, await run.wait("anything")]

    async with app.running(path, poll=0.02):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        (rests,) = await data(handle_, "RUN_SUSPENDED")
        assert rests["waiting"] == ["approval#1"]
        await handle_.answer("approval", Approval(True))
        await until(lambda: _count(handle_, "RUN_SUSPENDED", 2))
        assert "wake_at" not in (await data(handle_, "RUN_SUSPENDED"))[1]
        await handle_.answer("anything", {"a": [1, None]})
        assert await within(handle_.result()) == [True, {"a": [1, None]}]
        assert (await data(handle_, "STEP_STARTED"))[0]["wait"]["name"] == "approval"


async def _count(handle: rs.Handle[Any], event_type: str, wanted: int) -> bool:
    return (await types(handle)).count(event_type) == wanted


async def test_a_wait_that_nobody_answers_times_out(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        try:
            await run.wait("approval", Approval, timeout=rs.seconds(0.02))
        except rs.WaitTimeout as timeout:
            return f"{timeout.step_key} {timeout.category}"
        return "answered"

    async with app.running(path):
        handle_ = await app.start(handle)
        assert await within(handle_.result()) == "approval#1 TIMEOUT"
        assert (await data(handle_, "STEP_FAILED"))[0]["error"]["code"] == "WAIT_TIMEOUT"


async def test_a_short_sleep_is_spent_in_memory_and_a_long_one_is_not(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run, seconds: float) -> str:
        before = run.now()
        await run.sleep(rs.seconds(seconds))
        assert (run.now() - before).total_seconds() >= seconds
        return "slept"

    async with app.running(path):
        short = await app.start(handle, 0.03)
        long = await app.start(handle, 3600.0)
        assert await within(short.result()) == "slept"
        assert "RUN_SUSPENDED" not in await types(short)
        await suspended(app, long)
        (rests,) = await data(long, "RUN_SUSPENDED")
        wake_at = datetime.fromisoformat(rests["wake_at"])
        assert 3500 < (wake_at - datetime.now(UTC)).total_seconds() <= 3600


async def test_what_a_run_emits_reaches_its_followers(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.wait("go")
        for token in ("to", "ken"):
            run.emit(token)
        return "done"

    async with app.running(path, poll=0.02):
        handle_ = await app.start(handle)
        await suspended(app, handle_)
        emitted = handle_.emitted()
        await handle_.answer("go")
        assert [token async for token in emitted] == ["to", "ken"]
        await status(handle_, "COMPLETED")


async def test_now_random_and_uuid_say_something_sensible(path: str) -> None:
    app = rs.App("desk")
    seen: list[Any] = []

    @app.on()
    async def handle(run: rs.Run) -> None:
        seen.append((run.now(), run.random(), run.random(), run.uuid(), run.uuid()))
        await run.decide("x", 1)
        seen.append(run.now())

    async with app.running(path):
        handle_ = await app.start(handle)
        await within(handle_.result())
        events = await log(handle_)
    now, one, two, first_id, second_id = seen[0]
    assert now == events[0].occurred_at
    assert 0 <= one < 1
    assert one != two
    assert first_id != second_id
    assert first_id.version == 4
    decided = next(event for event in events if event.event_type == "STEP_COMPLETED")
    assert seen[1] == decided.occurred_at
