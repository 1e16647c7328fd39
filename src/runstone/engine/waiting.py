"""Who waits: the branches of one execution whose steps have not ended, and when time ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from runstone.core.step import Step
from runstone.engine.pen import Pen
from runstone.engine.requests import StepRequest
from runstone.engine.scope import Scope
from runstone.ports.clock import Clock


class Waiter:
    """A branch that waits for a step to end."""

    __slots__ = ("begun", "future", "request", "scope", "timer")

    def __init__(self, request: StepRequest, scope: Scope) -> None:
        self.request = request
        self.scope = scope
        self.future: asyncio.Future[tuple[Step, str | None]] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.begun = False
        """Its start is in the log, or on its way there."""

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Waiting(dict[str, Waiter]):
    """All of them by the keys of their steps; `due` is told of one whose time has come."""

    def __init__(self, pen: Pen, clock: Clock, due: Callable[[Waiter], None]) -> None:
        super().__init__()
        self._pen = pen
        self._clock = clock
        self._due = due

    def leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        self.pop(waiter.request.key, None)
        waiter.disarm()

    def disarm(self) -> None:
        """Time changes nothing any more."""
        for waiter in self.values():
            waiter.disarm()

    def arm(self, waiter: Waiter, moment: datetime | None) -> None:
        """Something happens to this waiter then, if nothing happened before; never, without a moment."""
        retrying = waiter.request.wait is None
        if moment is None and not retrying:
            return
        delay = 0.0 if moment is None else max(0.0, (moment - self._clock.now()).total_seconds())
        waiter.timer = asyncio.get_running_loop().call_later(delay, self._rung, waiter)

    def _rung(self, waiter: Waiter) -> None:
        waiter.timer = None
        moment = self.moment(waiter.request.key)
        if moment is not None and moment > self._clock.now():
            self.arm(waiter, moment)  # the clock was set back: by its time it is too early (§ENG-6)
        else:
            self._due(waiter)

    @property
    def at_rest(self) -> bool:
        """Nothing but time or an answer lets any of them go on."""
        return bool(self) and all(waiter.timer or waiter.request.wait for waiter in self.values())

    @property
    def has_answer(self) -> bool:
        """Whether a wait among them is not written yet and will find an answer that came before."""
        waits = (waiter.request.wait for waiter in self.values())
        return any(wait is not None and wait.name in self._pen.state.answers for wait in waits)

    @property
    def wake_at(self) -> datetime | None:
        """When time ends the first of them."""
        return min((moment for key in self if (moment := self.moment(key)) is not None), default=None)

    def moment(self, key: str) -> datetime | None:
        """When time ends this one."""
        state = self._pen.state
        wait = self[key].request.wait
        if wait is None:
            return state.retry_times.get(key, self._clock.now())
        step_id = state.open_steps.get(key)
        return state.steps[step_id].wait_deadline if step_id else wait.deadline
