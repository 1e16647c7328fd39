"""What users get wrong, and Python makes easy: an error that says what to do, never a run that hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import runstone as rs
from runstone.errors import RegistrationError

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
async def is_rude(run: rs.Run) -> None:
    raise Rude("get out")


@app.on()
async def sleeps_five(run: rs.Run) -> None:
    await run.sleep(5)  # type: ignore[arg-type]


@app.on()
async def calls_a_function(run: rs.Run) -> None:
    await run.call(print)  # type: ignore[arg-type]


@app.on()
async def first_of_none(run: rs.Run) -> None:
    await run.first()


@pytest.mark.parametrize("handler", [timed_by_asyncio, gathered_under_a_clock], ids=lambda one: one.name)
async def test_a_clock_around_a_durable_call(handler: rs.Handler[None, str], tmp_path: Path) -> None:
    async with app.running(str(tmp_path / "store.db")), asyncio.timeout(20):
        handle = await app.start(handler)
        assert await handle.result() == "told so, and 1 goes on"


@pytest.mark.parametrize(
    ("handler", "exit_reason", "message"),
    [
        (task_group, "UseRunGather", "run.gather"),
        (after_a_task_group, "RuntimeError", "outside"),
        (calls_shy, "Shy", "cannot be shown"),
        (calls_rude, "Rude", "get out"),
        (is_rude, "Rude", "get out"),
        (sleeps_five, "RegistrationError", "rs.seconds(5)"),
        (calls_a_function, "RegistrationError", "@app.tool"),
        (first_of_none, "RegistrationError", "one branch or more"),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
async def test_it_fails_the_run_and_says_why(
    handler: rs.Handler[None, None], exit_reason: str, message: str, tmp_path: Path
) -> None:
    async with app.running(str(tmp_path / "store.db")), asyncio.timeout(20):
        handle = await app.start(handler)
        with pytest.raises(rs.RunFailed) as failed:
            await handle.result()
    assert failed.value.exit_reason == exit_reason
    assert message in failed.value.reason


class TestRegistration:
    def test_a_version_without_an_order(self) -> None:
        with pytest.raises(RegistrationError, match="no order"):
            rs.App("x", version="1.0-rc1")

    def test_options_of_the_wrong_kind(self) -> None:
        with pytest.raises(RegistrationError, match=r"no rs\.Retry"):
            quick.options(retry=3)  # type: ignore[arg-type]
        with pytest.raises(RegistrationError, match=r"rs\.seconds\(5\)"):
            quick.options(timeout=5)  # type: ignore[arg-type]

    async def test_starting_what_is_no_handler(self, tmp_path: Path) -> None:
        async with app.running(str(tmp_path / "store.db")):
            with pytest.raises(RegistrationError, match="takes a handler"):
                await app.start(quick)  # type: ignore[call-overload]
