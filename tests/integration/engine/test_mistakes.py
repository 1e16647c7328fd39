"""What users get wrong, and Python makes easy: an error that says what to do, never a run that hangs."""

from __future__ import annotations

import asyncio
import sys
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


@app.tool
async def leaves() -> None:
    sys.exit(4)


@app.tool
def leaves_a_thread() -> None:
    sys.exit("enough")


@app.on()
async def calls_leaves(run: rs.Run) -> None:
    await run.call(leaves)


@app.on()
async def calls_leaves_a_thread(run: rs.Run) -> None:
    await run.call(leaves_a_thread)


@app.on()
async def exits(run: rs.Run) -> None:
    sys.exit(4)


@app.on()
async def exits_in_a_branch(run: rs.Run) -> None:
    async def branch() -> None:
        sys.exit(4)

    await run.gather(branch(), run.sleep(rs.days(1)))


@app.on()
async def rude_in_a_branch(run: rs.Run) -> None:
    async def branch() -> None:
        raise Rude("get out")

    await run.gather(branch(), run.call(quick))


@app.on()
async def promises_a_number(run: rs.Run) -> int:
    return "abc"  # type: ignore[return-value]


@app.on()
async def returns_an_object(run: rs.Run) -> Any:
    return {"a": object()}


@app.tool
async def lies() -> list[int]:
    return ["x"]  # type: ignore[list-item]


@app.tool
async def needs(number: int) -> int:
    return number


@app.on()
async def calls_lies(run: rs.Run) -> None:
    await run.call(lies)


@app.on()
async def calls_with_text(run: rs.Run) -> None:
    await run.call(needs, "one")  # type: ignore[arg-type]


@app.on()
async def calls_with_too_much(run: rs.Run) -> None:
    await run.call(needs, 1, 2)  # type: ignore[call-arg]


@app.on()
async def calls_with_an_object(run: rs.Run) -> None:
    await run.call(needs, object())  # type: ignore[arg-type]


@app.on()
async def waits_for_nobody(run: rs.Run) -> None:
    await run.wait("tracking", timeout=rs.seconds(0.01))


@app.on()
async def asks_nobody(run: rs.Run) -> None:
    await run.effect(rs.NotifyUser(user_id="u", message="m"), wait=True, timeout=rs.seconds(0.01))


@app.on()
async def waits_a_number(run: rs.Run) -> None:
    await run.wait("tracking", timeout=5)  # type: ignore[call-overload]


@app.on()
async def sleeps_for_none(run: rs.Run) -> None:
    await run.sleep(None)  # type: ignore[arg-type]


@app.on()
async def starts_without_a_key(run: rs.Run) -> None:
    await app.start(is_rude)


@app.on()
async def starts_beside_itself(run: rs.Run) -> None:
    await asyncio.gather(app.start(is_rude))


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
        (calls_leaves, "SystemExit", "sys.exit(4)"),
        (calls_leaves_a_thread, "SystemExit", "sys.exit(enough)"),
        (exits, "SystemExit", "sys.exit(4)"),
        (exits_in_a_branch, "SystemExit", "sys.exit(4)"),
        (rude_in_a_branch, "Rude", "get out"),
        (promises_a_number, "INVALID_PAYLOAD", "the result of promises_a_number -> int: Expected `int`"),
        (returns_an_object, "INVALID_PAYLOAD", "the result of returns_an_object: not storable as JSON"),
        (calls_lies, "INVALID_PAYLOAD", "the result of lies -> list[int]: Expected `int`, got `str`"),
        (calls_with_text, "INVALID_PAYLOAD", "needs(number): Expected `int`, got `str`"),
        (calls_with_too_much, "TypeError", "needs(number: 'int'): too many positional arguments"),
        (calls_with_an_object, "INVALID_PAYLOAD", "an argument of needs: "),
        (waits_for_nobody, "WAIT_TIMEOUT", "Nobody answered 'tracking' within 0.01 s"),
        (asks_nobody, "WAIT_TIMEOUT", "NOTIFY_USER has no outcome after 0.01 s"),
        (waits_a_number, "RegistrationError", "run.wait('tracking'): timeout=5 is no duration"),
        (sleeps_for_none, "RegistrationError", "run.sleep(None): give a duration"),
        (starts_without_a_key, "UseRunCall", "from a tool"),
        (starts_beside_itself, "UseRunCall", "from a tool"),
        (sleeps_five, "RegistrationError", "run.sleep(5): give a duration, such as rs.seconds(5)"),
        (gathers_a_list, "RegistrationError", "run.gather(*branches)"),
        (names_by_number, "RegistrationError", "the name of a variable is no text: 5"),
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

    def test_options_that_a_decorator_does_not_have(self) -> None:
        with pytest.raises(RegistrationError, match=r"@app\.on has no option 'aproval'; it has approval, "):
            rs.App("x").on(aproval=True)  # type: ignore[call-overload]
        with pytest.raises(RegistrationError, match=r"@app\.tool has no option 'retrys'; .* retry, "):
            rs.App("x").tool(retrys=3)  # type: ignore[call-overload]
        with pytest.raises(RegistrationError, match=r"@app\.specialist has no option 'retrys'"):
            rs.App("x").specialist(retrys=3)  # type: ignore[call-overload]
        with pytest.raises(RegistrationError, match=r"@app\.specialist has no option 'cache_ttl'; it has at"):
            rs.App("x").specialist(cache_ttl=rs.minutes(1))  # type: ignore[call-overload]
        with pytest.raises(RegistrationError, match="cache_ttl is for tools"):
            rs.App("x").specialist(name="one")(lambda: 1).options(cache_ttl=rs.minutes(1))

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

    async def test_a_key_that_is_too_long(self, tmp_path: Path) -> None:
        async with app.running(str(tmp_path / "store.db"), worker=False):
            with pytest.raises(RegistrationError, match=r"^app.start\(key='k{20}'…\): .* at most 255 char"):
                await app.start(calls_shy, key="k" * 256)
            longest = await app.start(calls_shy, key="k" * 255)
            assert (await longest.status()).key == "k" * 255


async def test_a_lane_is_chosen_by_what_the_handler_sees(tmp_path: Path) -> None:
    async with app.running(str(tmp_path / "store.db")), asyncio.timeout(60):
        handle = await app.start(by_thread, {"from": "ada", "headers": {"message_id": "m1"}})  # type: ignore[misc]
        assert await handle.result() == "m1"
