"""One execution of one run: the handler runs from its top, answered from the log as far as that goes.

    ask ─► recorded?  ─ yes ─► delivered in the order of the log
               └ no ─► performed ─► written ─► durable ─► delivered
    nothing left to do but wait ─► suspended, and out of memory

The handler is an ordinary task. It leaves memory by being cancelled: when the run is suspended,
paused, cancelled from outside, or lost to another worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, NoReturn, TypeAlias

import msgspec
from msgspec import Raw

from runstone.core import codec, commands
from runstone.core.commit import Lease
from runstone.core.decide import Case, input_digest
from runstone.core.events import Event
from runstone.core.fold import RunFold
from runstone.core.ids import NewId
from runstone.core.payloads import ErrorInfo, OutputResult
from runstone.core.step import Step
from runstone.engine.attempts import Attempts
from runstone.engine.budget import WriteBudget
from runstone.engine.conductor import Conductor
from runstone.engine.current import CURRENT_STEP
from runstone.engine.failures import error_info, tell
from runstone.engine.fitting import Wanted
from runstone.engine.history import History
from runstone.engine.pen import Pen
from runstone.engine.requests import StepRequest
from runstone.engine.scope import Scope, cancelled_from_outside
from runstone.engine.waiting import Waiter, Waiting
from runstone.errors import StaleFence, UseRunFirst
from runstone.ports.clock import Clock
from runstone.ports.exits import stops_the_process
from runstone.ports.store import Claim, Host

Ending: TypeAlias = Literal["ended", "suspended", "continued", "paused", "lost", "failed"]

LINGER: Final = timedelta(seconds=1)
"""A rest shorter than this is spent in memory."""

ATTEMPTS_BEFORE_QUARANTINE: Final = 5

_log = logging.getLogger("runstone.execution")

_OVERDUE: Final = "Nobody answered in time"
"""Of a wait that had a deadline once, and by the code of now has none."""

_STEP_ENDS: Final = frozenset({"STEP_COMPLETED", "STEP_FAILED", "STEP_SKIPPED"})
_RUN_ENDS: Final = frozenset({"RUN_HANDLER_RETURNED", "RUN_COMPLETED", "RUN_FAILED", "RUN_CANCELLED"})


class Execution:
    """Runs one claimed run until it ends, rests, or is taken away."""

    def __init__(
        self,
        handle: Callable[[Execution], Any],
        case: Case,
        claim: Claim,
        host: Host,
        *,
        worker_id: str,
        clock: Clock,
        new_id: NewId,
        jitter: Callable[[], float],
        linger: timedelta = LINGER,
        code_version: str = "",
        budget: WriteBudget | None = None,
    ) -> None:
        self._handle = handle
        self.case = case
        """The case as it was claimed."""
        self._claim = claim
        self._clock = clock
        self._linger = linger
        self._code_version = code_version
        self._budget = budget or WriteBudget()
        self._deferred: list[Waiter] = []
        self._stopping = False
        self._pausing = False
        """Paused, but for the steps that are under way: their outcomes are still recorded."""
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.error: BaseException | None = None
        self.keeps_lease = False
        """Paused by somebody else, who left the run in this worker's name."""
        self.conductor = Conductor(self._idle)
        self.pen = Pen(
            host,
            msgspec.structs.replace(case, run_fence=claim.fence),
            clock=clock,
            new_id=new_id,
            actor=f"worker:{worker_id}",
            engine_attempt=claim.attempts,
            absorbed=self._absorb,
            failed=self._fail,
            budget=self._budget.limit,
        )
        self.attempts = Attempts(
            self.pen,
            claim,
            worker_id,
            clock=clock,
            jitter=jitter,
            budget=self._budget,
            left=lambda: self._absorb(()),
            failed=self._fail,
        )
        self._waiting = Waiting(self.pen, clock, self._due)
        self._unrequested = dict(self.state.latest_steps)
        """Recorded steps that the handler has not asked for yet."""
        self._replaying = bool(self._unrequested)
        self._history = History(self.state)

    @property
    def state(self) -> RunFold:
        return self.pen.state

    @property
    def engine_attempt(self) -> int:
        """How often the run was claimed without a step of it finishing."""
        return self._claim.attempts

    @property
    def replaying(self) -> bool:
        """Whether the handler is still where the log has answers."""
        return self._replaying and (bool(self._unrequested) or self.conductor.has_arrivals)

    # Its life

    async def run(self) -> Ending:
        """Until it ends, rests, or is taken away; the handler has cleaned up when this returns."""
        root: asyncio.Task[None] | None = None
        try:
            if self._refused():
                return await self._over
            self.conductor.running = 1
            self.conductor.home = asyncio.current_task()
            root = asyncio.ensure_future(self._root())
            return await self._over
        finally:
            await self._close(root)

    def _refused(self) -> bool:
        run = self.state.run
        assert run is not None, "only a run is claimed"
        if run.status in ("PENDING", "APPROVED"):
            self.pen.note(commands.StartRun(orchestrator_version=self._code_version))
        elif run.status != "RUNNING" or self.state.handler_returned:
            self._end("ended")
            return True
        if self._claim.attempts > ATTEMPTS_BEFORE_QUARANTINE:
            details = codec.canonical({"attempts": self._claim.attempts})
            self._pause("QUARANTINED", details)
            return True
        return False

    async def _root(self) -> None:
        run = self.state.run
        assert run is not None
        began, cause = self.state.continued or (run.created_at, None)
        scope = Scope(run.id, "" if run.generation == 1 else f"g{run.generation}:", began, cause)
        self.conductor.enter(scope)
        CURRENT_STEP.set(None)  # the run may have been started from inside another's step
        try:
            result = await self._handle(self)
        except BaseException as error:
            if stops_the_process(error):
                raise
            if self._stopping or (isinstance(error, asyncio.CancelledError) and cancelled_from_outside()):
                raise
            info = error_info(error)
            tell(_log, error, info, f"run {run.id} of {run.plan_id}:", "its handler failed")
            self._left(f"the handler raised {type(error).__name__}", commands.FailRun(error=info))
        else:
            self._left("the handler returned", commands.ReturnHandler(result=result))

    def _left(self, how: str, command: commands.Command) -> None:
        """The handler is through; not so if the log has steps that it did not ask for (§ENG-20)."""
        if self._stopping:
            return
        if self._unrequested:
            self._mismatch(f"step {next(iter(self._unrequested))!r}", how)
        else:
            self.pen.write(command, lease=Lease(owner=None))

    async def continue_as_new(self, scope: Scope, carry: Raw) -> NoReturn:
        """The handler is through with this generation; the next gets what is carried over (§ENG-39)."""
        if not self._stopping and not scope.cancelled:
            self._left("the handler continued as new", commands.ContinueRun(carry=carry))
            self._stopping = self.conductor.closed = True
        await asyncio.get_running_loop().create_future()  # cancelled with the handler
        raise AssertionError("nobody sets it")

    async def _close(self, root: asyncio.Task[None] | None) -> None:
        self._stopping = self.conductor.closed = True
        self._waiting.disarm()
        tasks = [task for task in (root, *self.attempts.tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.pen.close()

    def _end(self, ending: Ending) -> None:
        if not self._over.done():
            self._stopping = self.conductor.closed = True
            self._over.set_result(ending)

    def abandon(self) -> None:
        """The run is another worker's now, or this worker goes away: nothing more is written."""
        self.pen.drop()
        self._end("lost")

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._end("lost" if isinstance(error, StaleFence) else "failed")

    # What a branch asks

    async def step(self, scope: Scope, request: StepRequest) -> Step:
        """A step, ended: as recorded, or carried out now."""
        if self._stopping or scope.cancelled:
            raise asyncio.CancelledError
        waiter = Waiter(request, scope)
        if not self._take_up(waiter):
            await asyncio.get_running_loop().create_future()  # cancelled with the handler
        try:
            step: Step
            step, event_id = await self.conductor.block(scope, waiter.future)
        except (asyncio.CancelledError, UseRunFirst):
            self._give_up(waiter)
            raise
        assert step.completed_at is not None, "only what has ended is delivered"
        scope.saw(step.completed_at, event_id)
        return step

    def note_variable(self, name: str, value: Raw) -> None:
        """Writes a variable with whatever is written next."""
        self.pen.note(commands.SetVariable(name=name, value=value))

    def recorded(self, key: str) -> bool:
        """Whether the log has this step."""
        return key in self.state.latest_steps

    def _take_up(self, waiter: Waiter) -> bool:
        """Finds the request's place in the log; false if there it stands otherwise."""
        request, state = waiter.request, self.state
        self._waiting[request.key] = waiter
        step_id = state.latest_steps.get(request.key)
        if step_id is None:
            return self._take_up_new(waiter)
        step = state.steps[step_id]
        self._unrequested.pop(request.key, None)
        waiter.begun = step.status == "RUNNING"
        asked = (request.step_type, input_digest(request.arguments))
        if asked != (step.step_type, step.input_digest):
            self._mismatch(
                f"{step.step_type} {request.key!r} with input {step.input_digest[:12]}",
                f"{asked[0]} {request.key!r} with input {asked[1][:12]}",
            )
            return False
        if step.status != "RUNNING" and request.key not in state.due_attempts:
            self._arrived(waiter, step)
        elif self._replaying:
            self._deferred.append(waiter)
        else:
            self._go_on(waiter)
        return True

    def _take_up_new(self, waiter: Waiter) -> bool:
        path = waiter.scope.path
        expected = [key for key in self._unrequested if key[: key.rfind("/") + 1] == path]
        if expected and self._replaying:
            self._mismatch(f"step {expected[0]!r}", f"{waiter.request.step_type} {waiter.request.key!r}")
            return False
        if self._replaying:
            self._deferred.append(waiter)
        else:
            self._go_on(waiter)
        return True

    def _go_on(self, waiter: Waiter) -> None:
        """The log has no outcome, and no other branch one that comes first: here history is made."""
        key = waiter.request.key
        if key in self.state.due_attempts:
            self._waiting.arm(waiter, self.state.retry_times.get(key))
        elif key in self.state.open_steps:
            self._go_on_open(waiter, self.state.steps[self.state.open_steps[key]])
        else:
            self._begin(waiter)

    def _go_on_open(self, waiter: Waiter, step: Step) -> None:
        """A step that was under way when its worker died, or a wait nobody has answered."""
        if waiter.request.wait is not None:
            self._waiting.arm(waiter, step.wait_deadline)
        elif waiter.request.options.at_most_once:
            error = ErrorInfo(
                category="INFRASTRUCTURE",
                code="AT_MOST_ONCE",
                message="Its worker died while it ran: whether it was done is unknown",
            )
            self.pen.write(commands.FailStep(step_key=waiter.request.key, error=error))
        else:
            self.attempts.begin(waiter.request)

    def _arrived(self, waiter: Waiter, step: Step) -> None:
        self._waiting.leave(waiter)
        outcome = (step, self.state.causes.get(step.id))
        self.conductor.arrive(self.state.ends[step.id], waiter.scope, waiter.future, outcome)

    def _give_up(self, waiter: Waiter) -> None:
        """Its branch was cancelled: a step that is under way ends with it."""
        key = waiter.request.key
        self._waiting.leave(waiter)
        if waiter in self._deferred:
            self._deferred.remove(waiter)
        self.attempts.cancel(key)
        if not self._stopping and waiter.begun:
            error = ErrorInfo(
                category="CANCELLED", code="BRANCH_CANCELLED", message="Its branch was cancelled"
            )
            self.pen.note(commands.FailStep(step_key=key, error=error))

    def _mismatch(self, expected: str, actual: str) -> None:
        """The code is not the code that wrote this log: stop before it does harm (§ENG-19)."""
        self._pause("NON_DETERMINISTIC", codec.canonical({"expected": expected, "actual": actual}))

    def _pause(self, reason: str, details: Raw) -> None:
        """Until a person resumes it, who has to hear of it."""
        _log.warning("run %s is paused: %s %s", self.state.stream_id, reason, bytes(details).decode())
        self.conductor.closed = True
        self._stopping = True
        self.pen.write(commands.PauseRun(reason=reason, details=details), lease=Lease(owner=None, attempts=0))

    # Carrying out

    def _begin(self, waiter: Waiter) -> None:
        """A step that the log does not have."""
        request = waiter.request
        waiter.begun = True
        start = commands.StartStep(
            step_key=request.key,
            step_type=request.step_type,
            arguments=request.arguments,
            specialist_id=request.specialist_id,
            wait=request.wait,
            cause=waiter.scope.cause,
        )
        if request.output is not None:
            self.pen.write(start, *request.known_outcome(), lease=self.attempts.progress())
        elif request.wait is not None:
            self.pen.note(start)
            self._waiting.arm(waiter, request.wait.deadline)
        elif self._budget.starts_may_be_late and not request.options.at_most_once:
            self.pen.note(start)
            self.attempts.begin(waiter.request)
        elif self._budget.starts_may_be_late:
            self.pen.write(start)
        else:
            begun = Wanted(start, self._clock.now())
            self.pen.write(start, instead=lambda: (begun, *self.attempts.not_written(request)))

    # Time

    def _due(self, waiter: Waiter) -> None:
        if self._stopping:
            return
        request = waiter.request
        if request.wait is None:
            self._begin(waiter)
        elif request.wait.name is None:
            self.pen.write(
                commands.CompleteStep(step_key=request.key, output=OutputResult(answer=codec.NULL))
            )
        else:
            error = ErrorInfo(category="TIMEOUT", code="WAIT_TIMEOUT", message=request.overdue or _OVERDUE)
            self.pen.write(commands.FailStep(step_key=request.key, error=error))

    def _idle(self) -> None:
        """Every branch waits, and the log has nothing more for any of them."""
        if self._replaying and self._unrequested:
            self._mismatch(f"step {next(iter(self._unrequested))!r}", "every branch waits for something else")
            return
        self._replaying = False
        deferred, self._deferred = self._deferred, []
        for waiter in deferred:
            self._go_on(waiter)
        if self._resting:
            self._rest()

    @property
    def _resting(self) -> bool:
        return not self._stopping and not self.attempts and self.pen.idle and self._waiting.at_rest

    def _rest(self) -> None:
        """Leaves memory until a deadline or an answer, unless that is near."""
        if self._waiting.has_answer:
            self.pen.flush()
            return
        wake_at = self._waiting.wake_at
        if wake_at is not None and wake_at - self._clock.now() <= self._linger:
            return
        suspended = commands.SuspendRun(wake_at=wake_at, waiting=tuple(self._waiting))
        self.pen.write(suspended, lease=Lease(owner=None))

    # What the log says

    def _absorb(self, events: Sequence[Event]) -> None:
        """Takes in what was appended to the run, by this execution or by others."""
        if events and self._history.has_become_long(self.state, events):
            _log.warning(
                "run %s: its history has become long, and all of it is read whenever the run is taken up: "
                "let its handler go on with `run.continue_as_new`",
                self.state.stream_id,
            )
        for event in events:
            if event.event_type in _STEP_ENDS:
                self._step_ended(event)
            elif event.event_type == "STEP_RETRIED":
                self._retry_due(event)
            elif event.event_type == "STEP_STARTED":
                self._started(event)
            elif event.event_type in _RUN_ENDS:
                self._end("ended")
            elif event.event_type == "RUN_PAUSED":
                self.keeps_lease = event.control_signal_id is not None
                self._pausing = self._stopping = self.conductor.closed = True
                self.attempts.may_park = False
            elif event.event_type == "RUN_SUSPENDED":
                self._end("suspended")
            elif event.event_type == "RUN_CONTINUED":
                self._end("continued")
        if self._pausing and not self.attempts and self.pen.idle:
            self._end("paused")
        self.conductor.pump()

    def _started(self, event: Event) -> None:
        """A step that must not begin before its start is durable begins now."""
        waiter = self._waiting.get(event.step_key or "")
        if waiter is None or waiter.request.perform is None or event.step_key not in self.state.open_steps:
            return
        if waiter.request.options.at_most_once or not self._budget.starts_may_be_late:
            self.attempts.begin(waiter.request)

    def _step_ended(self, event: Event) -> None:
        key = event.step_key or ""
        waiter = self._waiting.get(key)
        if waiter is not None and key not in self.state.due_attempts:
            self._arrived(waiter, self.state.steps[event.aggregate_id])

    def _retry_due(self, event: Event) -> None:
        key = event.step_key or ""
        waiter = self._waiting.get(key)
        if waiter is not None and key in self.state.due_attempts:
            self._waiting.arm(waiter, self.state.retry_times.get(key))

    def read_news(self) -> None:
        """Somebody else wrote to the run: an answer, a cancellation."""
        self.pen.read_news()
