"""What a tool or a specialist can know of the step it carries out, and when its clock starts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import runstone as rs
from tests.integration.engine.lab import FAST, data, has, process, until, within

SOON = rs.seconds(0)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_step_knows_itself_however_it_is_called(path: str, plain: bool) -> None:
    app = rs.App("desk")
    seen: list[tuple[str, str, int, int, str]] = []

    def look() -> None:
        """Deep inside, where nobody hands anything down."""
        step = rs.current_step()
        seen.append(
            (step.run_id, step.step_key, step.logical_attempt, step.engine_attempt, step.idempotency_key)
        )
        if len(seen) == 1:
            raise OSError("the first time")

    if plain:

        @app.tool(retry=rs.Retry(max_attempts=2, initial=SOON), name="charge")
        def charge_plain() -> str:
            look()
            return threading.current_thread().name

        charge: Any = charge_plain
    else:

        @app.specialist(retry=rs.Retry(max_attempts=2, initial=SOON), name="charge")
        async def charge_async() -> str:
            await asyncio.sleep(0)
            look()
            return threading.current_thread().name

        charge = charge_async

    @app.on()
    async def handle(run: rs.Run) -> str:
        await run.call(charge)
        name: str = await run.call(charge)
        return name

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        name = await within(handle_.result())
        assert name.startswith("runstone-step") == plain
    assert [(run_id, key, attempt, engine) for run_id, key, attempt, engine, _ in seen] == [
        (handle_.id, "charge#1", 1, 1),
        (handle_.id, "charge#1", 2, 1),
        (handle_.id, "charge#2", 1, 1),
    ]
    first, again, other = (entry[-1] for entry in seen)
    assert first == again, "a second attempt must not charge a second time"
    assert first != other


async def test_after_a_crash_the_key_is_the_same(path: str) -> None:
    app = rs.App("desk")
    seen: list[tuple[int, int, str]] = []
    gate = asyncio.Event()

    @app.tool
    async def charge() -> None:
        step = rs.current_step()
        seen.append((step.logical_attempt, step.engine_attempt, step.idempotency_key))
        await gate.wait()

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.call(charge)

    async with process(app, path) as first:
        handle_ = await app.start(handle)
        await until(lambda: seen)
        await first.crash()
        gate.set()
        async with process(app, path) as second:
            await within(second.handle(handle_).result())
    (attempt, engine, key), (later, later_engine, later_key) = seen
    assert (attempt, engine) == (1, 1)
    assert (later, later_engine, later_key) == (1, 2, key)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_step_shows_its_progress_to_followers(path: str, plain: bool) -> None:
    app = rs.App("desk")

    def show() -> None:
        for part in range(3):
            rs.current_step().emit({"part": part})

    @app.tool
    def write_plain() -> None:
        show()

    @app.tool
    async def write_async() -> None:
        show()

    @app.on()
    async def handle(run: rs.Run) -> None:
        await run.wait("go")
        await run.call(write_plain if plain else write_async)

    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle)
        emitted = handle_.emitted()
        await handle_.answer("go")
        assert await within(_all(emitted)) == [{"part": 0}, {"part": 1}, {"part": 2}]


async def _all(emitted: Any) -> list[Any]:
    return [value async for value in emitted]


async def test_outside_of_a_step_there_is_none(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def inner(run: rs.Run) -> str:
        with pytest.raises(rs.RunstoneError, match="for tools and specialists"):
            rs.current_step()
        return "none"

    @app.tool
    async def start() -> str:
        rs.current_step()
        return await (await app.start(inner)).result()

    @app.on()
    async def outer(run: rs.Run) -> str:
        with pytest.raises(rs.RunstoneError, match="for tools and specialists"):
            rs.current_step()
        return await run.call(start)

    async with app.running(path, poll=FAST):
        assert await within((await app.start(outer)).result()) == "none"
    with pytest.raises(rs.RunstoneError):
        rs.current_step()


async def test_waiting_for_a_thread_uses_up_no_timeout(path: str) -> None:
    """Two functions, one thread: the second may take as long as the first did, and more."""
    app = rs.App("desk")
    entered, gate = threading.Event(), threading.Event()

    @app.tool
    def hold() -> str:
        entered.set()
        assert gate.wait(60)
        return "held"

    @app.tool(timeout=rs.seconds(1))
    def quick() -> str:
        return "quick"

    @app.tool(timeout=rs.seconds(0.05))
    def slow() -> str:
        assert gate.wait(60)
        return "slow"

    @app.on()
    async def holding(run: rs.Run) -> str:
        return await run.call(hold)

    @app.on()
    async def queuing(run: rs.Run) -> str:
        return await run.call(quick)

    @app.on()
    async def sleeping(run: rs.Run) -> str:
        return await run.call(slow)

    async with app.running(path, poll=FAST, threads=1):
        first = await app.start(holding)
        await until(entered.is_set)
        second = await app.start(queuing)
        await until(lambda: has(second, "STEP_STARTED"))
        over = asyncio.get_running_loop().time() + 1
        await until(lambda: asyncio.get_running_loop().time() > over)
        assert await data(second, "STEP_FAILED") == []
        gate.set()
        assert await within(first.result()) == "held"
        assert await within(second.result()) == "quick"
        gate.clear()
        with pytest.raises(rs.RunFailed, match="longer than it may"):
            await within((await app.start(sleeping)).result())  # its own time does count
        gate.set()


async def test_a_timeout_can_be_taken_away_for_one_call(path: str) -> None:
    app = rs.App("desk")

    @app.tool(timeout=rs.seconds(0.01), cache_ttl=rs.minutes(1))
    async def slow() -> str:
        await asyncio.sleep(0.1)
        return "slow"

    @app.on()
    async def handle(run: rs.Run) -> str:
        return await run.call(slow.options(timeout=None, cache_ttl=None))

    async with app.running(path, poll=FAST):
        assert await within((await app.start(handle)).result()) == "slow"
        with pytest.raises(rs.RunstoneError, match=r"is no rs\.Retry"):
            slow.options(retry=None)  # type: ignore[arg-type]
