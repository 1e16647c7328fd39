"""The store's thread: does one thing after the other, and tells whoever waits for it in an event loop.

An append waits for its sync and for two hops, so a hop has to be cheap. Work comes by a queue, answers
go by a pipe that the event loop watches. An executor has a second future, a condition and a call back in
the way: together they cost more than an event takes to be sealed, checked and folded.

On a good disk the two hops cost more than the sync itself. Work that has lately been quicker than a
millisecond is done where it is asked for; as soon as it takes longer, it is the thread's again.
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
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import finalize

NAME: Final = "runstone-folder"

QUICK: Final = 0.001
"""For how many seconds an event loop may be held up."""
PROOFS: Final = 8
"""How often in a row work has to have been quick before it is done in the event loop."""

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


class Work(NamedTuple):
    """What to do, with what, who waits for it, and how they are told."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]
    answers: Answers
    timed: bool
    """Whether how long it takes says something about the next of its kind."""


Upkeep: TypeAlias = Callable[[float], float | None]
"""What is done after each piece of work, at this time, and again in as many seconds as it says."""

_LOOK: Final = object()
"""In the queue: there may be upkeep to do."""
_END: Final = object()


class _Desk:
    """What the thread and its callers share. The thread holds nothing else, so that its owner can go."""

    def __init__(self, upkeep: Upkeep) -> None:
        self.queue: SimpleQueue[object] = SimpleQueue()
        self.turn = threading.Lock()
        """Whoever works has it."""
        self.given: deque[None] = deque()
        """One for each piece of work that is the thread's and not done yet."""
        self.proofs = 0
        """How often in a row work has been quick."""
        self.watched = False
        """The thread looks after what is to be kept up, by itself. Changed only by who has the turn."""
        self._upkeep = upkeep

    def timed(self, seconds: float) -> None:
        self.proofs = self.proofs + 1 if seconds < QUICK else 0

    def serve(self) -> None:
        left: float | None = None
        while True:
            given: object
            try:
                given = self.queue.get(timeout=left)
            except Empty:
                given = _LOOK
            if given is _END:
                return
            with self.turn:
                if isinstance(given, Work):
                    self._do(given)
                left = self._kept_up()
                self.watched = left is not None
            del given  # or it would be kept alive until the next one comes

    def _do(self, given: Work) -> None:
        """Whatever goes wrong, the thread goes on and nobody waits for ever."""
        self.given.popleft()
        if given.future.cancelled():
            return
        began = monotonic()
        try:
            result = given.work(*given.arguments)
        except BaseException as error:
            given.answers.tell(given.future, None, error)
        else:
            given.answers.tell(given.future, result, None)
        if given.timed:
            self.timed(monotonic() - began)

    def _kept_up(self) -> float | None:
        try:
            return self._upkeep(monotonic())
        except BaseException:
            _logger.exception("snapshots do not follow their logs")
            return None


class StoreThread:
    """One thread, for any number of event loops. It lives until it is told to end, or its owner is gone."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._answers: dict[asyncio.AbstractEventLoop, Answers] = {}
        self._desk = _Desk(upkeep)
        self._let_end = finalize(self, self._desk.queue.put, _END)
        threading.Thread(target=self._desk.serve, name=NAME, daemon=True).start()

    def call(self, work: Callable[..., Any], *arguments: Any, timed: bool = False) -> asyncio.Future[Any]:
        """Has work done, unless whoever waits gives up before it was begun."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        answers = self._answers.get(loop) or self._watched(loop)
        self._desk.given.append(None)
        self._desk.queue.put(Work(work, arguments, future, answers, timed))
        return future

    async def call_quickly(self, ready: Callable[[], bool], work: Callable[..., Any], *arguments: Any) -> Any:
        """The same for work that is quick on a good disk, once it is `ready` to be."""
        desk = self._desk
        if desk.proofs < PROOFS or desk.given or not desk.turn.acquire(blocking=False):
            return await self.call(work, *arguments, timed=True)
        try:
            here = ready()
            if here:
                done = self._do_here(work, arguments)
        finally:
            desk.turn.release()
        if not here:
            return await self.call(work, *arguments, timed=True)
        await asyncio.sleep(0)  # others have their turn of the event loop too
        return done

    def _do_here(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        desk = self._desk
        began = monotonic()
        try:
            return work(*arguments)
        finally:
            desk.timed(monotonic() - began)
            if not desk.watched:
                desk.watched = True
                desk.queue.put(_LOOK)

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


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)
