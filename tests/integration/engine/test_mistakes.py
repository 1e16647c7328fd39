"""What users get wrong, and Python makes easy: an error that says what to do, never a run that hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.errors import InvalidPayload, RegistrationError

app = rs.App("mistakes", version="1")


@app.tool
async def slow() -> int:
    await asyncio.sleep(30)
    return 1


@app.tool
async def quick() -> int:
    return 1


class Shy(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Rude(BaseException):
    pass


@app.tool(retry=rs.Retry(max_attempts=2, on=ConnectionError))
async def shy() -> None:
    raise Shy


@app.tool
async def rude() -> None:
    raise Rude("get out")


@app.tool(retry=rs.Retry(max_attempts=2))
async def hasty() -> None:
    raise rs.RetryableError("busy", retry_after=30)  # type: ignore[arg-type]


@app.on()
async def timed_by_asyncio(run: rs.Run) -> str:
    try:
        async with asyncio.timeout(0.05):
            await run.call(slow)
    except rs.UseRunFirst:
        return f"told so, and {await run.call(quick)} goes on"
    return "never"


@app.on()
async def gathered_under_a_clock(run: rs.Run) -> str:
    try:
        async with asyncio.timeout(0.05):
            await run.gather(run.call(slow), run.wait("never"))
    except rs.UseRunFirst:
        return f"told so, and {await run.call(quick)} goes on"
    return "never"


@app.on()
async def task_group(run: rs.Run) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.call(quick))


@app.on()
async def after_a_task_group(run: rs.Run) -> None:
    async def broken() -> None:
        raise ValueError("inside")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(broken())
    except* ValueError:
        pass
    raise RuntimeError("outside")


@app.on()
async def calls_shy(run: rs.Run) -> None:
    await run.call(shy)


@app.on()
async def calls_rude(run: rs.Run) -> None:
    await run.call(rude)


@app.on()
async def calls_hasty(run: rs.Run) -> None:
    await run.call(hasty)


@app.on()
async def is_rude(run: rs.Run) -> None:
    raise Rude("get out")


@app.on()
async def sleeps_five(run: rs.Run) -> None:
    await run.sleep(5)  # type: ignore[arg-type]


@app.on()
async def gathers_a_list(run: rs.Run) -> None:
    await run.gather(run.call(quick), [])  # type: ignore[call-overload]


@app.on()
async def names_by_number(run: rs.Run) -> None:
    run.set(5, 5)  # type: ignore[arg-type]


@app.on()
async def names_with_nul(run: rs.Run) -> None:
    await run.decide("a\0b", 1)


@app.on()
async def reasons_with_nul(run: rs.Run) -> None:
    await run.skip("a", "what they wrote: \0")


@app.on()
async def keys_with_nul(run: rs.Run) -> None:
    await run.effect(rs.NotifyUser(user_id="u", message="m"), key="a\0b")


@app.on()
async def asks_with_text(run: rs.Run) -> None:
    await run.effect("send a mail")  # type: ignore[call-overload]


@app.on()
async def makes_good_with_text(run: rs.Run) -> None:
    await run.compensate("undo it")  # type: ignore[arg-type]


@app.on()
async def waits_for_five(run: rs.Run) -> None:
    await run.wait(5)  # type: ignore[call-overload]


@app.on()
async def sleeps_beyond_the_calendar(run: rs.Run) -> None:
    await run.sleep(rs.days(10_000_000))


@app.on()
async def calls_a_function(run: rs.Run) -> None:
    await run.call(print)  # type: ignore[arg-type]


@app.on(rs.Email, key=lambda mail: mail.thread, concurrency=1)
async def by_thread(run: rs.Run, mail: rs.Email) -> str:
    return mail.thread


@app.on()
async def first_of_none(run: rs.Run) -> None:
    await run.first()


@pytest.mark.parametrize("handler", [timed_by_asyncio, gathered_under_a_clock], ids=lambda one: one.name)
async def test_a_clock_around_a_durable_call(handler: rs.Handler[None, str], tmp_path: Path) -> None:
    async with app.running(str(tmp_path / "store.db")), asyncio.timeout(60):
        handle = await app.start(handler)
        assert await handle.result() == "told so, and 1 goes on"


@pytest.mark.parametrize(
    ("handler", "exit_reason", "message"),
    [
        (task_group, "UseRunGather", "run.gather"),
        (after_a_task_group, "RuntimeError", "outside"),
        (calls_shy, "Shy", "cannot be shown"),
        (calls_rude, "Rude", "get out"),
        (calls_hasty, "TypeError", "rs.seconds(30)"),
        (is_rude, "Rude", "get out"),
        (sleeps_five, "RegistrationError", "rs.seconds(5)"),
        (gathers_a_list, "RegistrationError", "run.gather(*branches)"),
        (names_by_number, "RegistrationError", "the name of a variable=5 is no text"),
        (names_with_nul, "INVALID_PAYLOAD", "NUL"),
        (reasons_with_nul, "INVALID_PAYLOAD", "NUL"),
        (keys_with_nul, "INVALID_PAYLOAD", "NUL"),
        (asks_with_text, "RegistrationError", "rs.SendEmail"),
        (makes_good_with_text, "RegistrationError", "rs.SendEmail"),
        (waits_for_five, "RegistrationError", "5 cannot be a name"),
        (sleeps_beyond_the_calendar, "RegistrationError", "beyond the calendar"),
        (calls_a_function, "RegistrationError", "@app.tool"),
        (first_of_none, "RegistrationError", "one branch or more"),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
async def test_it_fails_the_run_and_says_why(
    handler: rs.Handler[None, None], exit_reason: str, message: str, tmp_path: Path
) -> None:
    async with app.running(str(tmp_path / "store.db")), asyncio.timeout(60):
        handle = await app.start(handler)
        with pytest.raises(rs.RunFailed) as failed:
            await handle.result()
    assert failed.value.exit_reason == exit_reason
    assert message in failed.value.reason


class TestRegistration:
    def test_a_version_without_an_order(self) -> None:
        for version in ("1.0-rc1", 3):
            with pytest.raises(RegistrationError, match="no order"):
                rs.App("x", version=version)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("signal", "given", "message"),
        [
            (None, {"concurrency": 0}, "1 or more"),
            (None, {"concurrency": "1"}, "1 or more"),
            (None, {"key": "thread", "concurrency": 1}, "no function"),
            (None, {"key": len}, "concurrency=1"),
            ("Email", {}, "no kind of signal"),
            (int, {}, "no kind of signal"),
            (slow, {}, r"write `@app.on\(\)`"),
        ],
        ids=["no place", "text", "no function", "no lane", "its name", "a number", "a tool"],
    )
    def test_handlers_that_could_not_work(self, signal: Any, given: dict[str, Any], message: str) -> None:
        async def handler(run: rs.Run, value: str) -> None: ...

        with pytest.raises(RegistrationError, match=message):
            rs.App("x").on(signal, **given)(handler)

    def test_a_handler_without_its_run(self) -> None:
        async def handler() -> None: ...

        with pytest.raises(RegistrationError, match=r"handler\(run: rs.Run\)"):
            rs.App("x").on()(handler)  # type: ignore[arg-type]

    def test_options_of_the_wrong_kind(self) -> None:
        with pytest.raises(RegistrationError, match=r"no rs\.Retry"):
            quick.options(retry=3)  # type: ignore[arg-type]
        with pytest.raises(RegistrationError, match=r"rs\.seconds\(5\)"):
            quick.options(timeout=5)  # type: ignore[arg-type]
        with pytest.raises(RegistrationError, match="leaves no time"):
            quick.options(timeout=rs.seconds(0))
        with pytest.raises(RegistrationError, match="neither 'fail' nor 'park'"):
            quick.options(on_exhausted="parked")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"max_attempts": 0}, "max_attempts=0 is no count"),
            ({"max_attempts": "3"}, "max_attempts='3' is no count"),
            ({"factor": 1e10}, "up to 1000"),
            ({"factor": 0}, "above 0"),
            ({"factor": "2"}, "above 0"),
            ({"initial": 5}, r"rs\.seconds\(5\)"),
            ({"longest": rs.seconds(-1)}, "is no wait"),
            ({"longest": None}, "is no wait"),
            ({"on": "ValueError"}, "'ValueError', which is no exception"),
            ({"never": [ValueError, int]}, "int.*, which is no exception"),
        ],
        ids=repr,
    )
    def test_retries_that_could_not_be_made(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(RegistrationError, match=message):
            quick.options(retry=rs.Retry(**given))

    async def test_starting_what_is_no_handler(self, tmp_path: Path) -> None:
        async with app.running(str(tmp_path / "store.db")):
            with pytest.raises(RegistrationError, match="takes a handler"):
                await app.start(quick)  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        ("handler", "value", "message"),
        [
            (by_thread, None, "by_thread cannot be started with None: Expected `object`, got `null`"),
            (by_thread, "a mail", "by_thread cannot be started with 'a mail'"),
            (by_thread, {"to": []}, "missing required field `from`"),
            (by_thread, object(), "object has no JSON form"),
            (is_rude, 1, "is_rude takes no value"),
        ],
        ids=["nothing", "text", "no sender", "an object", "too much"],
    )
    async def test_starting_with_what_the_handler_does_not_take(
        self, handler: rs.Handler[Any, Any], value: Any, message: str, tmp_path: Path
    ) -> None:
        async with app.running(str(tmp_path / "store.db"), worker=False):
            with pytest.raises(InvalidPayload, match=message):
                await app.start(handler, value)

    @pytest.mark.parametrize("key", [42, "", b"order"])
    async def test_keys_that_are_no_text(self, key: Any, tmp_path: Path) -> None:
        async with app.running(str(tmp_path / "store.db"), worker=False):
            with pytest.raises(RegistrationError, match="a key is a text"):
                await app.start(calls_shy, key=key)


async def test_a_lane_is_chosen_by_what_the_handler_sees(tmp_path: Path) -> None:
    async with app.running(str(tmp_path / "store.db")), asyncio.timeout(60):
        handle = await app.start(by_thread, {"from": "ada", "headers": {"message_id": "m1"}})  # type: ignore[misc]
        assert await handle.result() == "m1"
