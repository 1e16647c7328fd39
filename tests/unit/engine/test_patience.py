"""Patience: a timer that is begun often and runs out seldom."""

import asyncio

import pytest

from runstone.engine.patience import Patience
from runstone.testing.loop import virtual_loop, virtual_time


class Watch:
    """Notes when patience was lost."""

    def __init__(self) -> None:
        self.lost: list[float] = []
        self.patience = Patience(10, lambda: self.lost.append(virtual_loop().time()))


@virtual_time
async def test_it_runs_out_once() -> None:
    watch = Watch()
    watch.patience.begin()
    await asyncio.sleep(100)
    assert watch.lost == [pytest.approx(10)]


@virtual_time
async def test_it_counts_from_where_it_began_first() -> None:
    watch = Watch()
    watch.patience.begin()
    await asyncio.sleep(6)
    watch.patience.begin()
    await asyncio.sleep(100)
    assert watch.lost == [pytest.approx(10)]


@virtual_time
async def test_what_ended_in_time_does_not_count() -> None:
    """The timer of the first is still standing when the second begins, and must not be taken for it."""
    watch = Watch()
    watch.patience.begin()
    await asyncio.sleep(6)
    watch.patience.end()
    watch.patience.begin()
    await asyncio.sleep(9)
    assert watch.lost == []
    await asyncio.sleep(100)
    assert watch.lost == [pytest.approx(16)]


@virtual_time
async def test_after_the_end_nothing_comes() -> None:
    watch = Watch()
    watch.patience.begin()
    watch.patience.end()
    await asyncio.sleep(100)
    assert watch.lost == []


@virtual_time
async def test_it_can_begin_again_after_it_ran_out() -> None:
    watch = Watch()
    for _ in range(2):
        watch.patience.begin()
        await asyncio.sleep(50)
    assert watch.lost == [pytest.approx(10), pytest.approx(60)]


@virtual_time
async def test_a_hundred_beginnings_set_few_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = virtual_loop(), []
    call_at = loop.call_at

    def counted(*arguments: object, **options: object) -> asyncio.TimerHandle:
        calls.append(arguments)
        return call_at(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    patience = Patience(10, lambda: None)
    for _ in range(100):
        patience.begin()
        patience.end()
    assert len(calls) == 1


@virtual_time
async def test_cancelled_it_leaves_nothing_behind() -> None:
    watch = Watch()
    watch.patience.begin()
    timer = watch.patience._timer
    watch.patience.cancel()
    watch.patience.cancel()
    assert timer is not None
    assert timer.cancelled()
    await asyncio.sleep(100)
    assert watch.lost == []
