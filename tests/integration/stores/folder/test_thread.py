"""The store's thread: one thing after the other, for any event loop, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runstone.stores.folder import FolderStore, folders
from runstone.stores.folder import thread as thread_module
from runstone.stores.folder.disk import Disk
from runstone.stores.folder.thread import NAME, PROOFS, StoreThread
from tests.integration.stores.folder.scene import EVENTS, RUN, TENANT, Writer, prove, snapshot_file


def nothing(now: float) -> None:
    """No upkeep."""


def eventually(done: Callable[[], bool]) -> bool:
    """Whether it comes true within a time that no machine is too busy for."""
    end = time.monotonic() + 30
    while not done() and time.monotonic() < end:
        time.sleep(0.005)
    return done()


def alive() -> set[threading.Thread]:
    """Those of stores. Some may be of tests before: they were told to end, and do so when they come to it."""
    return {thread for thread in threading.enumerate() if thread.name == NAME}


async def test_work_is_done_in_the_order_in_which_it_was_given() -> None:
    thread, done = StoreThread(nothing), list[int]()

    def do(number: int) -> int:
        done.append(number)
        return number

    answers = await asyncio.gather(*(thread.call(do, number) for number in range(1000)))
    assert answers == done == [*range(1000)]
    thread.end()


async def test_what_goes_wrong_is_told_and_the_next_is_done() -> None:
    class Gone(BaseException):
        pass

    def fail() -> None:
        raise Gone

    thread = StoreThread(nothing)
    with pytest.raises(Gone):
        await thread.call(fail)
    assert await thread.call(os.getpid) == os.getpid()
    thread.end()


async def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    thread, begun, go = StoreThread(nothing), list[str](), threading.Event()
    first = thread.call(go.wait)
    second = thread.call(begun.append, "second")
    second.cancel()
    first.cancel()  # it has been begun, or not: nobody is told of it either way
    third = thread.call(begun.append, "third")
    go.set()
    await third
    assert begun == ["third"]
    thread.end()


def here() -> bool:
    return threading.current_thread() is threading.main_thread()


def yes() -> bool:
    return True


async def proven(thread: StoreThread) -> StoreThread:
    """A thread whose work has been quick often enough."""
    assert not any([await thread.call_quickly(yes, here) for _ in range(PROOFS)])
    at_rest(thread)
    return thread


def at_rest(thread: StoreThread) -> None:
    """It tells what it did before it does its upkeep; until that is done too, it gets whatever comes.

    What was done elsewhere has it look later: until it has, its turn may still be to come.
    """
    desk = thread._desk
    assert eventually(lambda: desk.proofs >= PROOFS and not desk.watched and not desk.turn.locked())


async def test_what_has_been_quick_is_done_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "QUICK", 60.0)
    thread = await proven(StoreThread(nothing))
    assert await thread.call_quickly(yes, here)
    assert not await thread.call_quickly(lambda: False, here), "it would have to be opened first"
    assert not await thread.call(here)
    at_rest(thread)
    monkeypatch.setattr(thread_module, "QUICK", 0.0)
    assert await thread.call_quickly(yes, here)
    assert not await thread.call_quickly(yes, here), "it was slow the last time"
    thread.end()


async def test_nothing_overtakes_what_was_given_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "QUICK", 60.0)
    thread, go, done = await proven(StoreThread(nothing)), threading.Event(), list[str]()

    def slow() -> None:
        go.wait()
        done.append("first")

    first = thread.call(slow)
    second = asyncio.ensure_future(thread.call_quickly(yes, done.append, "second"))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, second)
    assert done == ["first", "second"]
    thread.end()


async def test_what_goes_wrong_here_is_told_and_the_next_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "QUICK", 60.0)
    thread = await proven(StoreThread(nothing))
    with pytest.raises(ZeroDivisionError):
        await thread.call_quickly(yes, divmod, 1, 0)
    at_rest(thread)
    assert await thread.call_quickly(yes, here)
    thread.end()


async def test_others_have_their_turn_between_two_that_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "QUICK", 60.0)
    thread, turns = await proven(StoreThread(nothing)), list[int]()
    loop = asyncio.get_running_loop()
    for number in range(5):
        loop.call_soon(turns.append, number)
        await thread.call_quickly(yes, here)
        assert len(turns) == number + 1
    thread.end()


async def test_the_thread_keeps_up_what_was_done_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "QUICK", 60.0)
    behind, kept_up = list[int](), list[int]()

    def upkeep(now: float) -> float | None:
        if not behind:
            return None
        kept_up.append(behind.pop())
        return None if not behind else 0.001

    thread = await proven(StoreThread(upkeep))
    for number in range(100):
        await thread.call_quickly(yes, behind.append, number)
    assert eventually(lambda: sorted(kept_up) == [*range(100)])
    thread.end()


def test_it_works_for_one_event_loop_after_another_and_for_several_at_once() -> None:
    thread = StoreThread(nothing)
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        asyncio.run(ask(thread))
    many = [threading.Thread(target=asyncio.run, args=(ask(thread, 200),)) for _ in range(4)]
    for each in many:
        each.start()
    for each in many:
        each.join(60)
        assert not each.is_alive()
    asyncio.run(end(thread))
    gc.collect()
    assert eventually(lambda: len(os.listdir("/dev/fd")) <= before)


async def ask(thread: StoreThread, times: int = 1) -> None:
    for number in range(times):
        assert await thread.call(abs, -number) == number


async def end(thread: StoreThread) -> None:
    await ask(thread)
    thread.end()


def test_an_event_loop_that_is_gone_holds_nobody_up() -> None:
    thread, go = StoreThread(nothing), threading.Event()

    async def leave() -> None:
        thread.call(go.wait)

    asyncio.run(leave())
    go.set()
    asyncio.run(end(thread))


async def test_a_store_that_is_dropped_and_not_closed_takes_its_thread_along(tmp_path: Path) -> None:
    before = alive()
    store = await FolderStore.open(tmp_path)
    (its_own,) = alive() - before
    del store
    gc.collect()
    assert eventually(lambda: not its_own.is_alive())


async def test_upkeep_that_fails_is_reported_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def fail(now: float) -> None:
        raise ValueError("upkeep")

    thread = StoreThread(fail)
    for _ in range(2):
        await thread.call(int)
    await thread.call(int)
    assert caplog.text.count("ValueError: upkeep") >= 2
    thread.end()


async def test_a_snapshot_that_could_not_be_written_is_written_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§PIP-45"""

    class Full(Disk):
        left = 2

        def rename(self, source: Path, target: Path) -> None:
            if target.name == "snapshot.json" and self.left:
                self.left -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().rename(source, target)

    monkeypatch.setattr(folders, "LAG", 0.02)
    disk = Full()
    disk.left = 0
    async with await FolderStore.open(tmp_path, disk=disk) as store:
        writer = Writer(store)
        await writer.create()
        before = snapshot_file(tmp_path).read_bytes()
        disk.left = 2
        await writer.record(EVENTS[5])
        assert eventually(lambda: snapshot_file(tmp_path).read_bytes() != before)
        assert snapshot_file(tmp_path).read_bytes() == await store.replay(TENANT, RUN)
    await prove(tmp_path)
