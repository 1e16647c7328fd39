"""The alarm rings at the times it was set to, and at no other."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from runstone.testing.alarm import Alarm
from runstone.testing.loop import LoopClock, Node, virtual_loop, virtual_time

DAY = timedelta(days=1)


class Desk:
    """An alarm that notes when it rang for whom."""

    def __init__(self) -> None:
        loop = virtual_loop()
        self.clock = LoopClock(loop, jumped=lambda: self.alarm.reset())
        self.alarm = Alarm(loop, self.clock)
        self.began = self.clock.now()
        self.rung: list[tuple[str, timedelta]] = []

    def set(self, name: str, after: timedelta | None) -> None:
        at = None if after is None else self.began + after
        self.alarm.set(name, at, lambda: self.rung.append((name, self.clock.now() - self.began)))


@virtual_time
async def test_it_rings_in_the_order_of_time() -> None:
    desk = Desk()
    for days in (400, 1, 30):
        desk.set(f"{days}", DAY * days)
    await asyncio.sleep(DAY.total_seconds() * 401)
    assert desk.rung == [("1", DAY), ("30", DAY * 30), ("400", DAY * 400)]


@virtual_time
async def test_what_is_due_already_rings_without_time_passing() -> None:
    desk = Desk()
    desk.set("late", -DAY)
    await virtual_loop().calm()
    assert desk.rung == [("late", timedelta(0))]


@virtual_time
async def test_a_name_has_one_time_or_none() -> None:
    desk = Desk()
    desk.set("moved", DAY)
    desk.set("moved", DAY * 3)
    desk.set("taken back", DAY)
    desk.set("taken back", None)
    desk.set("stopped", DAY)
    desk.alarm.stop("stopped")
    desk.alarm.stop("never set")
    await asyncio.sleep(DAY.total_seconds() * 5)
    assert desk.rung == [("moved", DAY * 3)]
    desk.set("last", DAY * 9)
    desk.alarm.stop_all()
    await asyncio.sleep(DAY.total_seconds() * 5)
    assert len(desk.rung) == 1


@virtual_time
async def test_it_never_rings_early() -> None:
    """Timers less than a microsecond apart fire together; the log's times are whole microseconds."""
    desk = Desk()
    spans = [timedelta(seconds=1, microseconds=step) for step in range(20)]
    for span in spans:
        desk.set(f"{span}", span)
        asyncio.get_running_loop().call_later(span.total_seconds() - 4e-7, lambda: None)
    await asyncio.sleep(2)
    assert desk.rung == [(f"{span}", span) for span in spans]


@virtual_time
async def test_it_goes_with_the_hands_of_the_clock() -> None:
    desk = Desk()
    desk.set("soon", DAY)
    desk.set("later", DAY * 3)
    desk.clock.jump(DAY * 2)
    await virtual_loop().calm()
    assert desk.rung == [("soon", DAY * 2)]
    desk.clock.jump(-DAY * 2)
    await asyncio.sleep(DAY.total_seconds() * 4)
    assert desk.rung[1:] == [("later", DAY * 3)]


@virtual_time
async def test_it_outlives_whoever_set_it() -> None:
    desk = Desk()

    async def set_it() -> None:
        desk.set("kept", DAY)
        await asyncio.Event().wait()

    node = Node("worker")
    task = node.spawn(set_it())
    await virtual_loop().calm()
    node.kill()
    await asyncio.sleep(DAY.total_seconds() * 2)
    assert desk.rung == [("kept", DAY)]
    await node.bury()
    with suppress(asyncio.CancelledError):
        await task
