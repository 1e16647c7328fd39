"""Attempts at steps: each is a task of its own, and the log is told how it ended.

    perform ─► value ─► the step is completed
           └─► error ─► another attempt later, a run that is parked, or a step that failed

One whose outcome cannot be written in time fails too, for what it did is not on record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta

from msgspec import Raw

from runstone.core import codec, commands
from runstone.core.commit import Lease
from runstone.core.payloads import ErrorInfo
from runstone.engine.budget import WriteBudget
from runstone.engine.failures import error_info, tell
from runstone.engine.fitting import Wanted
from runstone.engine.pen import Pen
from runstone.engine.requests import StepRequest, output_of
from runstone.engine.scope import cancelled_from_outside
from runstone.ports.clock import Clock
from runstone.ports.exits import stops_the_process
from runstone.ports.store import Claim

_log = logging.getLogger("runstone.execution")


class Attempts:
    """Those that are under way in one execution, by the key of their step."""

    def __init__(
        self,
        pen: Pen,
        claim: Claim,
        worker_id: str,
        *,
        clock: Clock,
        jitter: Callable[[], float],
        budget: WriteBudget,
        left: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._pen = pen
        self._claim = claim
        self._worker_id = worker_id
        self._clock = clock
        self._jitter = jitter
        self._budget = budget
        self._left = left
        """Told when one leaves without writing."""
        self._broke = failed
        """Told of an error of the engine's own, which no step may be made to wait for."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resetting = claim.attempts > 1
        self.may_park = True

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def tasks(self) -> Iterable[asyncio.Task[None]]:
        return self._tasks.values()

    def begin(self, request: StepRequest) -> None:
        """Carries the step out, beside whatever else goes on."""
        key = request.key
        task = asyncio.get_running_loop().create_task(self._body(request))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._done(key, task))

    def cancel(self, key: str) -> None:
        """Nobody waits for this step any more."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        """One that was cancelled leaves without writing: whoever waited for the last of them goes on."""
        ours = self._tasks.get(key) is task
        if ours:
            del self._tasks[key]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broke(error)
        elif ours:
            self._left()

    async def _body(self, request: StepRequest) -> None:
        assert request.perform is not None, "what has no outcome yet has something to perform"
        timeout = request.options.timeout
        began = self._clock.now()
        recalled = request.recall() if request.recall is not None else None
        try:
            async with nullcontext() if timeout is None else asyncio.timeout(None) as limit:
                begun = None if timeout is None or limit is None else _starter(limit, timeout)
                value = recalled or await request.perform(begun)
        except BaseException as error:
            if stops_the_process(error):
                raise
            if isinstance(error, asyncio.CancelledError) and cancelled_from_outside():
                raise
            self._failed(request, error, began)
            return
        self._tasks.pop(request.key, None)
        self._pen.write(
            *self._tool_commands(request, began, value, None, cache_hit=recalled is not None),
            commands.CompleteStep(step_key=request.key, output=output_of(request.step_type, value)),
            lease=self.progress(),
            instead=lambda: self.not_written(request),
        )

    def _failed(self, request: StepRequest, error: BaseException, began: datetime) -> None:
        self._tasks.pop(request.key, None)
        try:
            failed, lease, info = self._failure(request, error)
        except Exception as mistake:  # the exception asks for what cannot be done: that is told instead
            info = error_info(mistake)
            failed, lease = (commands.FailStep(step_key=request.key, error=info),), self.progress()
        tell(_log, error, info, self._who(request), "will be tried again" if info.retryable else "failed")
        self._pen.write(*self._tool_commands(request, began, None, info), *failed, lease=lease)

    def _failure(
        self, request: StepRequest, error: BaseException
    ) -> tuple[Sequence[commands.Command], Lease | None, ErrorInfo]:
        """What a failed attempt means: another one, a pause, or the step's failure."""
        attempt = self.number(request.key)
        retry = request.options.retry
        again = retry.wants(error) and attempt < retry.max_attempts
        info = error_info(error, retryable=again)
        failed = commands.FailStep(step_key=request.key, error=info)
        if again:
            retry_at = self._clock.now() + retry.delay(attempt, self._jitter(), error)
            return (failed, commands.RetryStep(step_key=request.key, retry_at=retry_at)), None, info
        if request.options.on_exhausted == "park" and self.may_park:
            details = codec.canonical({"step": request.key, "error": info})
            parked = commands.PauseRun(reason="PARKED", details=details)
            return (failed, parked), Lease(owner=None, attempts=0), info
        return (failed,), self.progress(), info

    def _who(self, request: StepRequest) -> str:
        run = self._pen.state.run
        assert run is not None
        return f"run {run.id} of {run.plan_id}: attempt {self.number(request.key)} at {request.key}"

    def not_written(self, request: StepRequest) -> Sequence[Wanted]:
        """The step fails, for what it did is not on record (§ENG-34); done again only if it may be."""
        now = self._clock.now()
        self._resetting = self._claim.attempts > 1
        error = self._budget.exceeded(request.key)
        if request.options.at_most_once:
            info = error_info(error)
            return (Wanted(commands.FailStep(step_key=request.key, error=info), now),)
        failed, lease, _ = self._failure(request, error)
        *others, last = failed
        return (*(Wanted(command, now) for command in others), Wanted(last, now, lease))

    def number(self, key: str) -> int:
        """Which logical attempt is under way; its start may not be written yet."""
        state = self._pen.state
        if key in state.due_attempts:
            return state.due_attempts[key]
        step_id = state.latest_steps.get(key)
        return state.steps[step_id].logical_attempt if step_id else 1

    def _tool_commands(
        self,
        request: StepRequest,
        began: datetime,
        value: Raw | None,
        error: ErrorInfo | None,
        *,
        cache_hit: bool = False,
    ) -> Sequence[commands.Command]:
        if request.tool_name is None:
            return ()
        call_id = self._pen.new_id()
        elapsed = max(0, int((self._clock.now() - began).total_seconds() * 1000))
        called = commands.CallTool(
            step_key=request.key,
            tool_name=request.tool_name,
            tool_args=request.arguments or codec.NULL,
            tool_call_id=call_id,
        )
        if error is not None:
            return called, commands.FailTool(tool_call_id=call_id, error=error, duration_ms=elapsed)
        assert value is not None, "a tool that did not fail has returned"
        done = commands.CompleteTool(
            tool_call_id=call_id, result=value, duration_ms=elapsed, cache_hit=cache_hit
        )
        return called, done

    def progress(self) -> Lease | None:
        """A finished step shows that the run does not kill its workers."""
        if not self._resetting:
            return None
        self._resetting = False
        return Lease(owner=self._worker_id, attempts=0)


def _starter(limit: asyncio.Timeout, timeout: timedelta) -> Callable[[], None]:
    """Starts the clock of a step's timeout."""

    def start() -> None:
        with suppress(RuntimeError):  # the step was over before this was heard
            limit.reschedule(asyncio.get_running_loop().time() + timeout.total_seconds())

    return start
