"""Replay: an app that is stopped in the middle goes on where its log ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import msgspec

import runstone as rs
from tests.integration.engine.lab import FAST, NOW, data, has, log, suspended, types, until, within


class Point(msgspec.Struct):
    x: int


async def test_finished_steps_are_never_done_again(path: str) -> None:
    app = rs.App("desk")
    calls: Counter[str] = Counter()
    gate = asyncio.Event()

    @app.tool
    async def quick(number: int) -> Point:
        calls[f"quick {number}"] += 1
        return Point(number)

    @app.specialist
    def thread(number: int) -> int:
        calls["thread"] += 1
        return number

    @app.tool
    async def gated() -> str:
        calls["gated"] += 1
        await gate.wait()
        return "through"

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        calls["handler"] += 1
        points = [await run.call(quick, number) for number in range(3)]
        await run.effect(rs.NotifyUser(user_id="u", message="hi"))
        number = await run.call(thread, 7)
        return [[point.x for point in points], number, await run.call(gated)]

    async with app.running(path, grace=NOW):
        handle_ = await app.start(handle, key="k")
        await until(lambda: calls["gated"] == 1)
    gate.set()
    async with app.running(path, poll=FAST):
        again = await app.start(handle, key="k")
        assert again.id == handle_.id
        assert await within(again.result()) == [[0, 1, 2], 7, "through"]
        assert (await types(again)).count("EFFECT_REQUESTED") == 1
    assert calls == {"quick 0": 1, "quick 1": 1, "quick 2": 1, "thread": 1, "gated": 2, "handler": 2}


async def test_every_prefix_of_the_log_leads_to_the_same_end(path: str) -> None:
    """Stopped after each of its steps in turn, a run ends as if it had never been stopped."""
    app = rs.App("desk")
    done: list[str] = []
    stop_after = [0]
    reached = asyncio.Event()

    @app.tool
    async def step(name: str) -> int:
        if len(done) >= stop_after[0]:
            reached.set()
            await asyncio.Event().wait()
        done.append(name)
        return len(done)

    @app.on()
    async def handle(run: rs.Run) -> list[Any]:
        async def branch(name: str) -> list[int]:
            return [await run.call(step, f"{name}{number}") for number in range(2)]

        first = await run.call(step, "a")
        both = await run.gather(branch("b"), branch("c"))
        return [first, *both, run.random(), str(run.uuid())]

    handle_: rs.Handle[Any] | None = None
    for stop in range(1, 5):
        stop_after[0] = stop
        reached.clear()
        async with app.running(path, grace=NOW, poll=FAST):
            handle_ = await app.start(handle, key="k")
            await within(reached.wait())
            await until(partial(_completed, handle_, len(done)))
    stop_after[0] = 99
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        result = await within(handle_.result())
    assert sorted(done) == ["a", "b0", "b1", "c0", "c1"]
    assert result[0] == 1
    assert sorted(result[1] + result[2]) == [2, 3, 4, 5]


async def _completed(handle: Any, wanted: int) -> bool:
    return (await types(handle)).count("STEP_COMPLETED") == wanted


async def test_branches_interleave_on_replay_as_they_did_live(path: str) -> None:
    app = rs.App("desk")
    orders: list[list[str]] = []
    gates = {name: asyncio.Event() for name in "abc"}

    @app.tool
    async def gated(name: str) -> str:
        await gates[name].wait()
        return name

    @app.on()
    async def handle(run: rs.Run) -> str:
        order: list[str] = []
        orders.append(order)

        async def branch(name: str) -> None:
            await run.call(gated, name)
            order.append(f"{name} {run.random():.6f} {run.now().isoformat()}")
            await run.decide("seen", len(order))
            order.append(f"{name} again")

        await run.gather(*(branch(name) for name in "abc"))
        await run.wait("go")
        return "done"

    async with app.running(path, grace=NOW):
        handle_ = await app.start(handle, key="k")
        for place, name in ((2, "c"), (0, "a"), (1, "b")):
            gates[name].set()
            await until(partial(has, handle_, "STEP_COMPLETED", f"gather#1.{place}/seen#1"))
        await suspended(app, handle_)
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await handle_.answer("go")
        assert await within(handle_.result()) == "done"
    assert len(orders) == 2
    assert orders[0] == orders[1]
    assert [entry[0] for entry in orders[0]] == ["c", "c", "a", "a", "b", "b"]


async def test_time_chance_ids_and_decisions_are_the_same_again(path: str) -> None:
    app = rs.App("desk")
    seen: list[list[Any]] = []
    say: list[Any] = ["refund"]

    @app.on()
    async def handle(run: rs.Run) -> Any:
        mine: list[Any] = [run.now(), run.random(), run.uuid(), run.random()]
        decided = await run.decide("kind", say[0])
        mine += [decided, run.now(), run.uuid()]
        seen.append(mine)
        await run.wait("go")
        return decided

    async with app.running(path, grace=NOW, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await suspended(app, handle_)
    say[0] = 17
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await handle_.answer("go")
        assert await within(handle_.result()) == "refund"
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_variables_are_set_once_and_read_back(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> int:
        run.set("count", 1)
        await run.decide("x", 1)
        run.set("count", run.get("count", int) + 1)
        await run.wait("go")
        run.set("count", run.get("count", int) + 1)
        return run.get("count", int)

    async with app.running(path, grace=NOW, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await suspended(app, handle_)
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await handle_.answer("go")
        assert await within(handle_.result()) == 3
        assert [change["value"] for change in await data(handle_, "RUN_VARIABLE_SET")] == [1, 2, 3]


async def test_replay_emits_nothing_again_and_goes_on_emitting(path: str) -> None:
    app = rs.App("desk")

    @app.on()
    async def handle(run: rs.Run) -> str:
        run.emit("before")
        await run.decide("x", 1)
        run.emit("between")
        await run.wait("go")
        run.emit("after")
        return "done"

    async with app.running(path, grace=NOW, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await suspended(app, handle_)
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        emitted = handle_.emitted()
        await handle_.answer("go")
        assert [value async for value in emitted] == ["after"]


async def test_losers_do_nothing_again_on_replay(path: str) -> None:
    """A loser that was to be tried again, or waited too long, stays lost while the winner is replayed."""
    app = rs.App("desk")
    calls: list[str] = []

    @app.tool(retry=rs.Retry(max_attempts=9))
    async def failing() -> None:
        calls.append("failing")
        raise rs.RetryableError(retry_after=rs.seconds(2))

    @app.on()
    async def handle(run: rs.Run) -> str:
        async def tries() -> None:
            await run.call(failing)

        async def waits() -> None:
            await run.wait("never", timeout=rs.seconds(2))

        async def wins() -> None:
            await run.sleep(rs.seconds(0.05))
            for number in range(5):
                await run.decide("x", number)

        await run.first(tries(), waits(), wins())
        await run.wait("go")
        return "done"

    async with app.running(path, grace=NOW, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await suspended(app, handle_)
        before = [event.id for event in await log(handle_)]
        moment = asyncio.get_running_loop().time() + 2
        await until(lambda: asyncio.get_running_loop().time() > moment)
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        await handle_.answer("go")
        assert await within(handle_.result()) == "done"
        after = [event for event in await log(handle_) if event.id not in before]
    assert calls == ["failing"]
    assert [event.event_type for event in after] == [
        "SIGNAL_ACCEPTED",
        "STEP_COMPLETED",
        "RUN_HANDLER_RETURNED",
        "RUN_COMPLETED",
    ]


async def test_a_step_under_way_is_done_again_with_the_next_engine_attempt(path: str) -> None:
    app = rs.App("desk")
    calls: list[int] = []
    gate = asyncio.Event()

    @app.tool
    async def gated() -> int:
        calls.append(1)
        await gate.wait()
        return len(calls)

    @app.on()
    async def handle(run: rs.Run) -> int:
        return await run.call(gated)

    async with app.running(path, grace=NOW):
        handle_ = await app.start(handle, key="k")
        await until(lambda: has(handle_, "STEP_STARTED"), "the flush of a start")
    gate.set()
    async with app.running(path, poll=FAST):
        handle_ = await app.start(handle, key="k")
        assert await within(handle_.result()) == 2
        events = await log(handle_)
    started = [event for event in events if event.event_type == "STEP_STARTED"]
    assert len(started) == 1, "the same attempt goes on; nothing failed that the plan knows of"
    assert started[0].logical_attempt == 1
