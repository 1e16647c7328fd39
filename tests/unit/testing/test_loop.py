"""Virtual time, and processes that can be frozen and killed."""

import asyncio
import gc
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from runstone.errors import RunstoneError
from runstone.testing.clock import START
from runstone.testing.loop import LoopClock, Node, Stuck, run_virtual, virtual_loop, virtual_time


@virtual_time
async def test_time_passes_at_once_and_exactly() -> None:
    loop = virtual_loop()
    clock = LoopClock(loop)
    await asyncio.sleep(timedelta(days=365).total_seconds())
    assert clock.now() == START + timedelta(days=365)
    clock.jump(timedelta(hours=-1))
    assert clock.now() == START + timedelta(days=365, hours=-1)


@virtual_time
async def test_asyncio_timeouts_obey_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()
    assert virtual_loop().time() == pytest.approx(3600)


@virtual_time
async def test_calm_comes_before_time_moves() -> None:
    seen: list[str] = []
    asyncio.get_running_loop().call_later(1, seen.append, "later")
    asyncio.get_running_loop().call_soon(seen.append, "soon")
    await virtual_loop().calm()
    assert seen == ["soon"]


@virtual_time
async def test_timers_for_the_same_moment_fire_in_the_order_in_which_they_were_set() -> None:
    loop = virtual_loop()
    fired: list[int] = []
    for number in range(50):
        loop.call_at(5.0, fired.append, number)
        loop.call_at(float(number % 4), lambda: None)
    await asyncio.sleep(6)
    assert fired == list(range(50))


@virtual_time
async def test_time_gets_to_the_very_moment_of_a_timer() -> None:
    """Whoever sets a timer again that fired a little early must not do so for ever."""
    loop = virtual_loop()
    moments = [(0.1 + 0.7 * number) * (1 + 1e-15) for number in range(200)]
    reached: list[float] = []
    turns = 0

    def look(moment: float) -> None:
        nonlocal turns
        turns += 1
        if loop.time() < moment:
            loop.call_at(moment, look, moment)
        else:
            reached.append(loop.time())

    for moment in moments:
        loop.call_at(moment, look, moment)
        loop.call_at(moment - 1e-7, lambda: None)
    await asyncio.sleep(200)
    assert reached == moments
    assert turns <= 2 * len(moments)


def test_waiting_for_nothing_is_an_error() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run_virtual(forever())


def test_it_works_in_virtual_time_only() -> None:
    async def main() -> None:
        virtual_loop()

    with pytest.raises(RunstoneError, match="virtual_time"):
        asyncio.run(main())


async def tick(log: list[str], name: str) -> None:
    try:
        while True:
            await asyncio.sleep(1)
            log.append(name)
    finally:
        log.append(f"{name} cleaned up")


@virtual_time
async def test_a_killed_process_does_nothing_any_more() -> None:
    log: list[str] = []
    node = Node("victim")
    node.spawn(tick(log, "tick"))
    await asyncio.sleep(2.5)
    node.kill()
    await asyncio.sleep(10)
    assert log == ["tick", "tick"]
    await node.bury()
    assert log == ["tick", "tick", "tick cleaned up"]


def test_what_is_sealed_does_not_even_clean_up(caplog: pytest.LogCaptureFixture) -> None:
    """Not when its loop ends, and not when nobody else knows of it any more."""
    log: list[str] = []

    async def count() -> AsyncIterator[int]:
        try:
            for number in range(99):
                yield number
                await asyncio.sleep(1)
        finally:
            log.append("the generator cleaned up")

    async def look() -> None:
        async for number in count():
            log.append(f"saw {number}")

    async def hold() -> None:
        """Has a generator in its hands that is not under way."""
        generator = count()
        await anext(generator)
        await asyncio.Event().wait()

    async def main() -> None:
        node = Node("victim")
        for work in (tick(log, "tick"), look(), hold()):
            node.spawn(work)
        await asyncio.sleep(1.5)
        node.spawn(tick(log, "too late"))
        node.kill()
        node.seal()
        await asyncio.sleep(10)

    run_virtual(main())
    gc.collect()
    assert log == ["saw 0", "tick", "saw 1"]
    assert caplog.records == []


@virtual_time
async def test_a_frozen_process_goes_on_late() -> None:
    log: list[str] = []
    node = Node("sleeper")
    task = node.spawn(tick(log, "tick"))
    await asyncio.sleep(1.5)
    node.freeze()
    await asyncio.sleep(10)
    assert log == ["tick"]
    node.thaw()
    await asyncio.sleep(1.2)
    assert log == ["tick", "tick", "tick"]
    task.cancel()


@virtual_time
async def test_a_timer_that_was_cancelled_while_frozen_does_not_fire() -> None:
    log: list[str] = []
    node = Node("sleeper")
    timers: list[asyncio.TimerHandle] = []

    async def start() -> None:
        timers.append(asyncio.get_running_loop().call_later(1, log.append, "fired"))

    await node.spawn(start())
    node.freeze()
    await asyncio.sleep(5)
    timers[0].cancel()
    node.thaw()
    await asyncio.sleep(5)
    assert log == []
