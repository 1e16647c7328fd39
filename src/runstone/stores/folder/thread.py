"""The store's thread: does one thing after the other, and tells whoever waits for it in an event loop.

An append waits for its sync and for two hops, so a hop has to be cheap. Work comes by a queue, answers
go by a pipe that the event loop watches. An executor has a second future, a condition and a call back in
the way: together they cost more than an event takes to be sealed, checked and folded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeAlias
from weakref import finalize

NAME: Final = "runstone-folder"

_logger = logging.getLogger("runstone.folder")


class Answers:
    """What was done for one event loop: a byte in the pipe wakes it, however much there is to tell."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._read_end, self._write_end = ends = os.pipe()
        for each in ends:
            os.set_blocking(each, False)
        # Whoever writes has this object in hand: nobody writes to what is closed, or another file by now.
        finalize(self, _close, *ends)
        loop.add_reader(self._read_end, self._wake)

    def tell(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """In the store's thread: what became of it."""
        self._told.append((future, result, error))
        if len(self._told) == 1:  # what is not the first goes with those before it
            os.write(self._write_end, b"\0")

    def _wake(self) -> None:
        os.read(self._read_end, 4096)
        self._deliver()

    def _deliver(self) -> None:
        while self._told:
            future, result, error = self._told.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def end(self) -> None:
        """Tells what there is to tell, and is watched no more."""
        self._deliver()
        self._loop.remove_reader(self._read_end)


Work: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any], Answers]
"""What to do, with what, who waits for it, and how they are told."""

Upkeep: TypeAlias = Callable[[float], float | None]
"""What is done after each piece of work, at this time, and again in as many seconds as it says."""


class StoreThread:
    """One thread, for any number of event loops. It lives until it is told to end, or its owner is gone."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._answers: dict[asyncio.AbstractEventLoop, Answers] = {}
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._let_end = finalize(self, self._queue.put, None)
        threading.Thread(target=_serve, args=(self._queue, upkeep), name=NAME, daemon=True).start()

    def call(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Has work done, unless whoever waits gives up before it was begun."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.put((work, arguments, future, self._answers.get(loop) or self._watched(loop)))
        return future

    def _watched(self, loop: asyncio.AbstractEventLoop) -> Answers:
        for other in list(self._answers):
            if other.is_closed():
                self._answers.pop(other, None)
        answers = self._answers[loop] = Answers(loop)
        return answers

    def end(self) -> None:
        """Lets it end once it has done what it was given."""
        self._let_end()
        for loop, answers in self._answers.items():
            with suppress(RuntimeError):  # a closed loop: nobody waits any more
                loop.call_soon_threadsafe(answers.end)
        self._answers.clear()


def _serve(queue: SimpleQueue[Work | None], upkeep: Upkeep) -> None:
    left: float | None = None
    while True:
        try:
            given = queue.get(timeout=left)
        except Empty:
            pass
        else:
            if given is None:
                return
            _do(*given)
            del given  # or it would be kept alive until the next one comes
        left = _kept_up(upkeep)


def _do(
    work: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any], answers: Answers
) -> None:
    """Whatever goes wrong, the thread goes on and nobody waits for ever."""
    if future.cancelled():
        return
    try:
        result = work(*arguments)
    except BaseException as error:
        answers.tell(future, None, error)
    else:
        answers.tell(future, result, None)


def _kept_up(upkeep: Upkeep) -> float | None:
    try:
        return upkeep(monotonic())
    except BaseException:
        _logger.exception("snapshots do not follow their logs")
        return None


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)
