"""An event loop in virtual time: nobody sleeps, and the same program does the same things in the same order.

When every callback has run, the loop does not wait for the next timer; it moves its time there. All
of asyncio obeys, `asyncio.sleep` and `asyncio.timeout` included. There are no threads and no sockets
in here: what a program does depends on nothing but the program.

What a `Node` starts belongs to it, as to a process: it can be frozen and thawed, or killed, and then not
one callback of it runs any more, no `finally`, no `except`. That is what `kill -9` does.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import heapq
import selectors
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, Literal, ParamSpec, TypeVar, TypeVarTuple
from weakref import WeakSet

from runstone.errors import RunstoneError
from runstone.testing.clock import START

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

RESOLUTION: Final = 1e-6
"""Timers closer together than this fire together: it is the resolution of the log's times."""

TURNS: Final = 200_000
"""How often the loop may go round without time moving."""

_NODE: ContextVar[Node | None] = ContextVar("runstone_node", default=None)


class Stuck(RunstoneError):
    """Everybody waits for somebody else: in virtual time nothing can ever happen again."""


class _VirtualSelector(selectors.BaseSelector):
    """Registers and never watches: time moves instead."""

    def __init__(self, next_timer: Callable[[], float]) -> None:
        self.now = 0.0
        self.next_timer = next_timer
        """When it fires, to the last bit: sums of spans depend on where one stopped on the way."""
        self.calm: list[asyncio.Future[None]] = []
        """Who waits for the moment before time moves."""
        self._turns = 0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            self._turns += 1
            if self._turns > TURNS:
                raise Stuck("Callbacks call each other for ever: time cannot move on")
            return []
        self._turns = 0
        if self.calm:
            waiting, self.calm = self.calm, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        elif timeout is None:
            raise Stuck
        else:
            self.now = max(self.now, self.next_timer())
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, -1, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in order, and moves time when there are none."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector(lambda: self._scheduled[0].when())
        super().__init__(self._virtual)
        self._clock_resolution = RESOLUTION
        self._numbers = count()
        self._scheduled: list[_Timer]
        self._asyncgens: WeakSet[AsyncGenerator[Any, Any]]

    def time(self) -> float:
        return self._virtual.now

    async def calm(self) -> None:
        """Returns when all that can happen without time passing has happened."""
        future = self.create_future()
        self._virtual.calm.append(future)
        await future

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        node = context.get(_NODE)
        if node is None:
            return super().call_soon(callback, *args, context=context)
        call = _Call(node, callback, args)
        call.handle = super().call_soon(call, context=context)
        return call.handle

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        node = context.get(_NODE)
        if node is None:
            return self._push(_Timer(when, callback, args, self, context))
        call = _Call(node, callback, args)
        call.handle = timer = self._push(_Timer(when, call, (), self, context))
        return timer

    def _push(self, timer: _Timer) -> _Timer:
        """As asyncio does with a timer of its own."""
        timer.number = next(self._numbers)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]
        node = _NODE.get()
        if node is not None:
            node.own_generator(agen)

    def disown(
        self, tasks: Iterable[asyncio.Task[Any]], generators: Iterable[AsyncGenerator[Any, Any]]
    ) -> None:
        """At its end it neither cancels these nor waits for them."""
        for task in tasks:
            asyncio.tasks._unregister_task(task)
        for generator in generators:
            self._asyncgens.discard(generator)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context, **more)
        node = (copy_context() if context is None else context).get(_NODE)
        if node is not None:
            node.own(task)
        return task


class _Timer(asyncio.TimerHandle):
    """Timers for the same moment fire in the order in which they were set; those of asyncio in any."""

    __slots__ = ("number",)

    number: int
    _scheduled: bool

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self.when(), self.number) < (other.when(), other.number)


class _Call:
    """A callback of a node, on its way."""

    __slots__ = ("_args", "_callback", "_node", "handle")

    def __init__(self, node: Node, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._node = node
        self._callback = callback
        self._args = args
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self._node.state == "alive":
            self._callback(*self._args)
        else:
            self._node.postpone(copy_context(), self)

    def again(self) -> None:
        """Runs it late, unless it was cancelled meanwhile."""
        if self.handle is None or not self.handle.cancelled():
            self()


class Node:
    """A process of its own inside a virtual loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Literal["alive", "frozen", "dead"] = "alive"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._backlog: list[tuple[Context, _Call]] = []
        self._context = copy_context()
        self._context.run(_NODE.set, self)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Starts work in this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def call(self, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        """Calls something in this process soon."""
        asyncio.get_running_loop().call_soon(callback, *args, context=self._context.copy())

    def own(self, task: asyncio.Task[Any]) -> None:
        """Notes a task of this process."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=Context())

    def own_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Notes an asynchronous generator of this process."""
        self._generators.add(generator)

    def postpone(self, context: Context, call: _Call) -> None:
        """Keeps a call for the time when this process goes on."""
        self._backlog.append((context, call))

    def freeze(self) -> None:
        """Stops the process where it is; timers that fire meanwhile are late."""
        if self.state == "alive":
            self.state = "frozen"

    def thaw(self) -> None:
        """Lets it go on as if nothing had been."""
        if self.state == "frozen":
            self._release()

    def kill(self) -> None:
        """Nothing of it ever runs again."""
        self.state = "dead"

    def _release(self) -> None:
        self.state = "alive"
        backlog, self._backlog = self._backlog, []
        loop = asyncio.get_running_loop()
        for context, call in backlog:
            loop.call_soon(call.again, context=context)

    def seal(self) -> None:
        """Keeps the remains of a dead process as they are, for as long as the interpreter lives.

        A coroutine that is thrown away runs its `finally` first. So none is: that costs the memory of all
        that they hold. Cut it off from what is large.
        """
        virtual_loop().disown(self._tasks, self._generators)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    async def bury(self) -> None:
        """Takes the remains of a dead process apart: that frees them, and runs every `except` and `finally`.

        Cut it off from everything that matters first.
        """
        remains = set(self._tasks)
        for task in remains:
            task.cancel()  # first: what was due when it died is not done now
        self._release()
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
            remains |= self._tasks
            for task in self._tasks:
                task.cancel()
        for task in remains:
            if not task.cancelled():
                task.exception()  # looked at, so that nobody warns of it


class LoopClock:
    """The wall clock of a virtual loop: goes with the loop's time, and can be set wrong."""

    def __init__(
        self, loop: VirtualLoop, start: datetime = START, *, jumped: Callable[[], None] = lambda: None
    ) -> None:
        self._loop = loop
        self._start = start.astimezone(UTC)
        self._base = loop.time()
        self._jumped = jumped

    def now(self) -> datetime:
        return self._start + timedelta(seconds=round(self._loop.time() - self._base, 6))

    def when(self, moment: datetime) -> float:
        """What the loop's time will be at this moment, if nobody moves the hands."""
        return self._base + (moment - self._start).total_seconds()

    def jump(self, by: timedelta) -> None:
        """Moves the hands, forward or back; time itself goes on as before."""
        self._start += by
        self._jumped()


def run_virtual(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in a virtual loop of its own, as `asyncio.run` does in a real one."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual_time(function: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    """Makes an `async def` test an ordinary one that runs in virtual time, whatever runs the tests."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return run_virtual(function(*args, **kwargs))

    return run


def virtual_loop() -> VirtualLoop:
    """The running loop, if it is virtual."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RunstoneError("This works in virtual time only: decorate the test with @virtual_time")
    return loop
