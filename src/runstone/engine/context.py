"""`Run`: what a handler holds in its hand. Every durable thing it does is one of these verbs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NoReturn, TypeVar, overload

from msgspec import UNSET, Raw

from runstone.core import commands
from runstone.core.effect import EFFECT_WAIT, effect_wait
from runstone.core.effect_specs import EffectSpec, ScheduleTask
from runstone.core.payloads import OutputResult, WaitSpec
from runstone.core.retry import RetryPolicy
from runstone.core.step import Step
from runstone.engine.cache import ResultCache
from runstone.engine.calls import Calls
from runstone.engine.execution import Execution
from runstone.engine.failures import raise_failure
from runstone.engine.functions import Callee, P, R, check_sleep, checked_duration, checked_name, checked_text
from runstone.engine.policy import spoken
from runstone.engine.requests import StepRequest, value_of
from runstone.engine.scope import current_scope
from runstone.engine.values import Shape, write
from runstone.errors import EffectFailed, InvalidPayload, RegistrationError, StepFailed
from runstone.ports.calendar import check_cron
from runstone.ports.clock import Clock

_MILLISECOND: Final = timedelta(milliseconds=1)

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")


class Run:
    """One run, seen from inside its handler."""

    def __init__(
        self,
        execution: Execution,
        *,
        clock: Clock,
        threads: Executor | None,
        emit: Callable[[str, Any], None],
        cache: ResultCache | None = None,
        requested: Callable[[], None] = lambda: None,
        check_carry: Callable[[Raw], None] = lambda carry: None,
        check_task: Callable[[ScheduleTask], None] = lambda task: None,
    ) -> None:
        state = execution.state
        assert state.run is not None
        self.id: str = state.run.id
        self.key: str | None = state.run.key
        """What `app.start` was given as `key`."""
        self.tenant_id: str = state.run.tenant_id
        self.generation: int = state.run.generation
        """From 1; one more after each `continue_as_new`."""
        self._execution = execution
        self._clock = clock
        self._calls = Calls(
            state.run, execution, threads=threads, emit=emit, cache=cache or ResultCache(clock)
        )
        self._emit = emit
        self._requested = requested
        self._check_carry = check_carry
        self._check_task = check_task
        self._variables: dict[str, Raw] = {}
        self._sets = 0
        self._recorded_sets = state.variable_sets

    # Steps

    async def call(self, callee: Callee[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a tool or a specialist once, whatever happens: its result is in the log from then on."""
        scope = current_scope()
        if not isinstance(callee, Callee):
            raise RegistrationError(
                f"run.call takes a function registered with @app.tool or @app.specialist, and its arguments "
                f"after it: {callee!r} is none"
            )
        arguments = callee.signature.pack(args, kwargs)
        request = self._calls.step(callee, scope.key(callee.name), arguments)
        step = self._succeeded(await self._execution.step(scope, request))
        result: R = callee.signature.result.read(self._value(step))
        return result

    async def decide(self, name: str, value: T) -> T:
        """Records a decision; on replay gives back what was decided then, whatever the code says now."""
        shape = Shape(type(value), f"decision {name!r}")
        recorded = write(value)
        step = await self._known(name, "DECISION", OutputResult(decision=recorded))
        decided: T
        try:
            decided = shape.read(self._value(step))
        except InvalidPayload:  # the code decides by another type now: what was decided then stands
            decided = Shape(Any, f"decision {name!r}").read(self._value(step))
        return decided

    @overload
    async def effect(
        self,
        spec: EffectSpec,
        *,
        key: str | None = None,
        critical: bool = True,
        at_most_once: bool = False,
        retry: RetryPolicy | None = None,
        wait: Literal[False] = False,
    ) -> str: ...
    @overload
    async def effect(
        self,
        spec: EffectSpec,
        *,
        key: str | None = None,
        critical: bool = False,
        at_most_once: bool = False,
        retry: RetryPolicy | None = None,
        wait: Literal[True],
        timeout: timedelta | None = None,
    ) -> Any: ...
    async def effect(
        self,
        spec: EffectSpec,
        *,
        key: str | None = None,
        critical: bool | None = None,
        at_most_once: bool = False,
        retry: RetryPolicy | None = None,
        wait: bool = False,
        timeout: timedelta | None = None,
    ) -> Any:
        """Asks for something outside; returns its id once the request is durable.

        With `wait`, waits until it is done and returns its result; the run leaves memory meanwhile.
        `EffectFailed` when it was given up, `WaitTimeout` when it takes longer than `timeout`. A dead
        letter fails the run unless it is not `critical`; one that was waited for has told the handler.
        """
        _checked_spec("run.effect", spec)
        step = await self._ask(
            spec.effect_name(),
            spec,
            key=key,
            critical=not wait if critical is None else critical,
            at_most_once=at_most_once,
            retry=retry,
        )
        effect_id = self._effect_id(step, key)
        if not self._execution.replaying:
            self._requested()
        return await self._outcome(spec, effect_id, timeout) if wait else effect_id

    async def compensate(
        self, spec: EffectSpec, *, at_most_once: bool = False, retry: RetryPolicy | None = None
    ) -> None:
        """Says what makes good for what was done so far, should the run fail or be cancelled.

        Then these effects are asked for one after the other, the latest first. A run that completes
        asks for none of them.
        """
        name = f"compensate:{_checked_spec('run.compensate', spec).effect_name()}"
        await self._ask(name, spec, at_most_once=at_most_once, retry=retry, compensation=True)

    async def _ask(
        self,
        name: str,
        spec: EffectSpec,
        *,
        at_most_once: bool,
        retry: RetryPolicy | None,
        key: str | None = None,
        critical: bool = True,
        compensation: bool = False,
    ) -> Step:
        scope = current_scope()
        step_key = scope.key(name)
        checked = spec.checked()
        if isinstance(spec, ScheduleTask) and not self._execution.recorded(step_key):
            # What was found right once stays so, whatever has become of zones and handlers since.
            if spec.cron is not None:
                check_cron(spec.cron, spec.timezone)
            self._check_task(spec)
        policy = retry or spec.RETRIES
        effect = commands.RequestEffect(
            step_key=step_key,
            effect_type=spec.EFFECT_TYPE,
            spec=checked,
            effect_key=key,
            max_retries=None if policy is None else policy.max_retries,
            critical=critical,
            delivery="at_most_once" if at_most_once else "at_least_once",
            metadata=UNSET if retry is None else write({"retry": _backoff(retry)}),
            compensation=compensation,
        )
        request = StepRequest(
            key=step_key,
            step_type="EFFECT_REQUEST",
            arguments=write(checked),
            output=OutputResult(effect_spec=write(checked)),
            effect=effect,
        )
        return self._succeeded(await self._execution.step(scope, request))

    async def _outcome(self, spec: EffectSpec, effect_id: str, timeout: timedelta | None) -> Any:
        """Waits for what becomes of an effect: a wait that nobody but the outbox answers (§OUT-41)."""
        checked_duration(f"run.effect({spec.effect_name()}): timeout", timeout)
        scope = current_scope()
        request = StepRequest(
            key=scope.key(f"{spec.effect_name()}:outcome"),
            step_type="WAIT",
            arguments=write({"effect": effect_id}),
            wait=WaitSpec(name=effect_wait(effect_id), deadline=self._deadline(timeout)),
            overdue="" if timeout is None else f"{spec.EFFECT_TYPE} has no outcome after {spoken(timeout)}",
        )
        step = await self._execution.step(scope, request)
        if step.status == "FAILED":
            raise_failure(step, EffectFailed)
        return Shape(Any, f"the result of {spec.EFFECT_TYPE}").read(self._value(step))

    def _effect_id(self, step: Step, key: str | None) -> str:
        """The effect that the step asked for, or that an earlier step had asked for under the same key."""
        state = self._execution.state
        if key is not None:
            return state.effect_keys[key]
        return next(found.id for found in state.effects.values() if found.step_id == step.id)

    async def skip(self, name: str, reason: str) -> None:
        """Records that a step was not needed, and why, where the next reader of the log would look for it."""
        scope = current_scope()
        request = StepRequest(
            key=scope.key(name), step_type="DECISION", output=OutputResult(), skip_reason=reason
        )
        await self._execution.step(scope, request)

    @overload
    async def wait(self, name: str, kind: type[T], *, timeout: timedelta | None = None) -> T: ...
    @overload
    async def wait(self, name: str, kind: None = None, *, timeout: timedelta | None = None) -> Any: ...
    async def wait(self, name: str, kind: Any = None, *, timeout: timedelta | None = None) -> Any:
        """Waits for an answer of that name; the run leaves memory. `WaitTimeout` when nobody answers.

        `kind` is the type that the answer has to fit: `handle.answer` refuses one that does not.
        """
        if checked_name(name).startswith(EFFECT_WAIT):
            raise RegistrationError(f"{name!r} is the name of a wait for an effect: give yours another name")
        shape = Shape(Any if kind is None else kind, f"the answer to {name!r}")
        checked_duration(f"run.wait({name!r}): timeout", timeout)
        given = write({"name": name, "timeout": None if timeout is None else timeout.total_seconds()})
        wait = WaitSpec(name=name, deadline=self._deadline(timeout), answer_schema=shape.schema())
        overdue = "" if timeout is None else f"Nobody answered {name!r} within {spoken(timeout)}"
        step = await self._wait(name, given, wait, overdue)
        try:
            return shape.read(self._value(step))
        except InvalidPayload as error:
            raise StepFailed(step.step_key, "VALIDATION", "INVALID_ANSWER", str(error)) from error

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps, durably: for a second or for a year."""
        check_sleep(duration)
        given = write({"seconds": duration.total_seconds()})
        await self._wait("sleep", given, WaitSpec(deadline=self._deadline(duration)))

    async def _wait(self, name: str, arguments: Raw, wait: WaitSpec, overdue: str = "") -> Step:
        scope = current_scope()
        request = StepRequest(
            key=scope.key(name), step_type="WAIT", arguments=arguments, wait=wait, overdue=overdue
        )
        return self._succeeded(await self._execution.step(scope, request))

    def _deadline(self, timeout: timedelta | None) -> datetime | None:
        """Counted from what the branch has seen, should the clock be behind that."""
        if timeout is None:
            return None
        try:
            return max(self._clock.now(), self.now()) + timeout
        except OverflowError:
            raise RegistrationError(
                f"{timeout} from now is beyond the calendar: wait without a timeout"
            ) from None

    async def patched(self, name: str) -> bool:
        """Whether this run takes the new path: true for runs that come here first with the new code."""
        scope = current_scope()
        key = scope.key(f"patched:{name}")
        if not self._execution.recorded(key) and self._execution.replaying:
            return False
        request = StepRequest(key=key, step_type="DECISION", output=OutputResult(decision=write(True)))
        await self._execution.step(scope, request)
        return True

    # Branches

    @overload
    async def gather(self, first: Coroutine[Any, Any, T1], /) -> tuple[T1]: ...
    @overload
    async def gather(
        self, first: Coroutine[Any, Any, T1], second: Coroutine[Any, Any, T2], /
    ) -> tuple[T1, T2]: ...
    @overload
    async def gather(
        self,
        first: Coroutine[Any, Any, T1],
        second: Coroutine[Any, Any, T2],
        third: Coroutine[Any, Any, T3],
        /,
    ) -> tuple[T1, T2, T3]: ...
    @overload
    async def gather(self, *branches: Coroutine[Any, Any, T]) -> tuple[T, ...]: ...
    async def gather(self, *branches: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
        """Runs branches side by side, each with a scope of its own; an error in one ends the others."""
        scope = current_scope()
        return tuple(await self._execution.conductor.branches(scope, scope.key("gather"), branches, "all"))

    async def first(self, *branches: Coroutine[Any, Any, T]) -> T:
        """Runs branches side by side; the first that ends decides, the others are cancelled."""
        scope = current_scope()
        if not branches:
            raise RegistrationError("run.first takes one branch or more")
        (result,) = await self._execution.conductor.branches(scope, scope.key("first"), branches, "first")
        found: T = result
        return found

    # Generations

    async def continue_as_new(self, carry: object = None) -> NoReturn:
        """Starts the handler afresh, with `carry` in the place of its value, in the same run.

        Nothing before is replayed any more: a run that goes on for ever stays quick to take up. Its
        id, the answers nobody has taken and the effects it asked for stay; variables do not.
        """
        scope = current_scope()
        if scope.path not in ("", f"g{self.generation}:"):
            raise RegistrationError("run.continue_as_new ends the handler: call it outside of its branches")
        carried = write(carry)
        self._check_carry(carried)
        await self._execution.continue_as_new(scope, carried)

    # What is the same on replay

    def now(self) -> datetime:
        """The time of the last event this branch has seen: the same on replay."""
        return current_scope().now

    def random(self) -> float:
        """A number from 0 to 1, seeded by run, branch and ordinal: the same on replay."""
        return current_scope().random()

    def uuid(self) -> uuid.UUID:
        """An id, seeded likewise."""
        return current_scope().uuid()

    # Variables

    def set(self, name: str, value: object) -> None:
        """Keeps a value with the run, where people can see it; written with the next step.

        `get` reads it back. The next generation of the run begins without.
        """
        current_scope()
        raw = write(value)
        self._variables[checked_text("run.set: the name of a variable", name)] = raw
        self._sets += 1
        if self._sets > self._recorded_sets:
            self._execution.note_variable(name, raw)

    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    @overload
    def get(self, name: str) -> Any: ...
    def get(self, name: str, kind: Any = Any) -> Any:
        """A variable's value; `KeyError` if this run has not set it."""
        return Shape(kind, f"variable {name!r}").read(self._variables[name])

    def emit(self, value: object) -> None:
        """Shows progress to whoever follows; it is not history, and replay shows nothing again."""
        if not self._execution.replaying:
            self._emit(self.id, value)

    # Inside

    async def _known(self, name: str, step_type: Any, output: OutputResult) -> Step:
        scope = current_scope()
        request = StepRequest(key=scope.key(name), step_type=step_type, output=output)
        return self._succeeded(await self._execution.step(scope, request))

    def _succeeded(self, step: Step) -> Step:
        if step.status == "FAILED":
            raise_failure(step)
        return step

    def _value(self, step: Step) -> Raw:
        assert step.output_result is not None, "a step that succeeded has an output"
        return value_of(step.step_type, self._execution.state.whole(step.output_result))


def _backoff(retry: RetryPolicy) -> dict[str, int]:
    """How far apart an effect's retries are, as its metadata says it to the dispatcher."""
    return {"base_ms": retry.base // _MILLISECOND, "cap_ms": retry.cap // _MILLISECOND}


def _checked_spec(verb: str, spec: Any) -> EffectSpec:
    """Refuses what is no spec of an effect."""
    if not isinstance(spec, EffectSpec):
        raise RegistrationError(f"{verb} takes a spec such as rs.SendEmail(…), not {spec!r}")
    return spec
