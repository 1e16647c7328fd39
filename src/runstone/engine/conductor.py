"""The conductor: hands outcomes to branches in the order of the log, and only while all of them wait.

On replay every recorded outcome is there at once. Delivering them as branches ask would let a branch
run ahead of where it was when an outcome of another branch arrived. So an outcome is delivered only
when no branch is running, the one with the lowest `run_seq` first; then everything unfolds as it did
the first time. Live outcomes take the same way: their `run_seq` is simply the next.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias

from runstone.engine.scope import CURRENT, Scope, cancelled_from_outside
from runstone.errors import RegistrationError, UseRunFirst
from runstone.ports.exits import stops_the_process

Finish: TypeAlias = Literal["all", "first"]


class Conductor:
    """Counts the branches that run, and delivers when none does."""

    def __init__(self, idle: Callable[[], None]) -> None:
        self.running = 0
        self._idle = idle
        self._arrived: list[tuple[int, int, Scope, asyncio.Future[Any], Any]] = []
        self._count = 0
        self.home: asyncio.Task[Any] | None = None
        """The worker's task that executes the run."""
        self.closed = False

    @property
    def quiet(self) -> bool:
        """Nobody runs, and nothing waits to be delivered."""
        return self.running == 0 and not self._arrived

    @property
    def has_arrivals(self) -> bool:
        """Outcomes are there that no branch has seen."""
        return bool(self._arrived)

    def enter(self, scope: Scope) -> None:
        """The calling task runs this scope."""
        scope.task = asyncio.current_task()
        CURRENT.set(scope)

    async def block(self, scope: Scope, future: asyncio.Future[Any]) -> Any:
        """A branch waits for an outcome."""
        scope.blocked = True
        self.running -= 1
        self.pump()
        try:
            return await future
        except asyncio.CancelledError:
            if scope.blocked and not self.closed and not self._torn_down:
                # Neither the engine nor a group of branches did this: `asyncio.timeout` did, or another
                # task. On replay it would come at another moment, or never.
                self.resume(scope)
                raise UseRunFirst from None
            raise
        finally:
            scope.blocked = False

    @property
    def _torn_down(self) -> bool:
        """Whether all tasks are cancelled at once, as `asyncio.run` does when `sys.exit` ends its loop."""
        return self.home is not None and self.home.cancelling() > 0

    def arrive(self, run_seq: int, scope: Scope, future: asyncio.Future[Any], outcome: Any) -> None:
        """An outcome is there for a branch that waits, to be delivered in its turn."""
        self._count += 1
        heapq.heappush(self._arrived, (run_seq, self._count, scope, future, outcome))

    def pump(self) -> None:
        """Delivers the next outcome if every branch waits; says so if there is none."""
        while self.running == 0 and not self.closed:
            if not self._arrived:
                self._idle()
                return
            _, _, scope, future, outcome = heapq.heappop(self._arrived)
            if not future.done():
                self.resume(scope)
                future.set_result(outcome)

    def resume(self, scope: Scope) -> None:
        """A branch that waited runs again."""
        self.running += 1
        scope.blocked = False

    async def branches(
        self, parent: Scope, key: str, coroutines: Sequence[Coroutine[Any, Any, Any]], finish: Finish
    ) -> list[Any]:
        """Runs branches side by side until all have ended, or the first has; an error ends them all."""
        if parent.cancelled or self.closed or not all(map(asyncio.iscoroutine, coroutines)):
            for one in filter(asyncio.iscoroutine, coroutines):
                one.close()
            _check_branches(coroutines)
            raise asyncio.CancelledError
        if not coroutines:
            return []
        group = _Group(self, parent, key, coroutines, finish)
        try:
            await self.block(parent, group.ended)
        except (asyncio.CancelledError, UseRunFirst):
            await group.unwind()
            raise
        return group.outcome()

    def cancel(self, scope: Scope) -> None:
        """Ends a branch from outside: it runs once more, to clean up, and makes no durable call any more."""
        scope.cancelled = True
        if scope.task is not None and not scope.task.done():
            if scope.blocked:
                self.resume(scope)
            scope.task.cancel()


class _Group:
    """The branches of one `gather` or `first`."""

    def __init__(
        self,
        conductor: Conductor,
        parent: Scope,
        key: str,
        coroutines: Sequence[Coroutine[Any, Any, Any]],
        finish: Finish,
    ) -> None:
        self._conductor = conductor
        self._parent = parent
        self._finish = finish
        self._left = len(coroutines)
        self._scopes = [parent.child(key, place) for place in range(len(coroutines))]
        self._results: dict[int, Any] = {}
        self._error: BaseException | None = None
        self._over = False
        """The outcome is known: what the other branches still do no longer matters."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        conductor.running += len(coroutines)
        self._tasks = [
            asyncio.ensure_future(self._run(place, coroutine)) for place, coroutine in enumerate(coroutines)
        ]

    async def _run(self, place: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            if self._over:
                coroutine.close()
                return
            self._conductor.enter(self._scopes[place])
            self._results[place] = await coroutine
            if self._finish == "first":
                self._decide_by(place)
        except GeneratorExit:
            raise
        except BaseException as error:  # `sys.exit` too: it is the run's end, and not the worker's
            if stops_the_process(error):
                raise
            if isinstance(error, asyncio.CancelledError) and cancelled_from_outside():
                if not self._over:
                    raise
            elif not self._over:
                self._error = error
                self._decide_by(place)
        finally:
            self._one_less(self._scopes[place])

    def _decide_by(self, place: int) -> None:
        """This branch settles it for the group: the others are cancelled."""
        if self._over:
            self._results.pop(place, None)
            return
        self._over = True
        for other, scope in enumerate(self._scopes):
            if other != place:
                self._conductor.cancel(scope)

    def _one_less(self, scope: Scope) -> None:
        """A branch has ended, and its parent has seen what it saw."""
        self._parent.saw(scope.now, scope.cause)
        self._left -= 1
        self._conductor.running -= 1
        if self._left == 0 and not self.ended.done():
            self._conductor.resume(self._parent)
            self.ended.set_result(None)
        self._conductor.pump()

    async def unwind(self) -> None:
        """The parent was cancelled: its branches go first."""
        self._over = True
        for scope in self._scopes:
            self._conductor.cancel(scope)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def outcome(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return [self._results[place] for place in sorted(self._results)]


def _check_branches(given: Sequence[object]) -> None:
    """A list of branches, or a call that was not made, is an easy mistake."""
    for one in given:
        if not asyncio.iscoroutine(one):
            raise RegistrationError(
                f"{one!r:.80} is no branch: give calls of `async def` one by one, as in run.gather(*branches)"
            )
