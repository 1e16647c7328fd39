"""`Run`: what a handler holds in its hand. Every durable thing it does is one of these verbs."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from msgspec import Raw

from runstone.core import commands
from runstone.core.effect_specs import EffectSpec
from runstone.core.payloads import OutputResult, WaitSpec
from runstone.core.step import Step
from runstone.engine.cache import ResultCache
from runstone.engine.execution import Execution
from runstone.engine.failures import raise_failure
from runstone.engine.functions import Callee, P, R, checked_duration
from runstone.engine.requests import Perform, Recall, StepRequest, value_of
from runstone.engine.scope import current_scope
from runstone.engine.values import Shape, write
from runstone.errors import InvalidPayload, RegistrationError, StepFailed
from runstone.ports.clock import Clock

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
    ) -> None:
        state = execution.state
        assert state.run is not None
        self.id = state.run.id
        self.key = state.run.key
        self.tenant_id = state.run.tenant_id
        self.generation = state.run.generation
        self._execution = execution
        self._clock = clock
        self._threads = threads
        self._emit = emit
        self._cache = cache or ResultCache(clock)
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
        is_tool = callee.step_type == "TOOL_SEQUENCE"
        request = StepRequest(
            key=scope.key(callee.name),
            step_type=callee.step_type,
            arguments=arguments,
            specialist_id=None if is_tool else callee.name,
            tool_name=callee.name if is_tool else None,
            perform=self._performer(callee, arguments),
            recall=self._recaller(callee, arguments),
            options=callee.call_options,
        )
        step = self._succeeded(await self._execution.step(scope, request))
        result: R = callee.signature.result.read(self._value(step))
        return result

    def _performer(self, callee: Callee[Any, Any], arguments: Raw) -> Perform:
        """The call itself, on values that have been through the log's bytes."""

        async def perform() -> Raw:
            given = callee.signature.unpack(arguments)
            if callee.is_async:
                return checked(await callee.function(**given))
            call = functools.partial(contextvars.copy_context().run, _call, callee.function, given)
            if self._threads is None:
                return checked(call())
            return checked(await asyncio.get_running_loop().run_in_executor(self._threads, call))

        def checked(value: object) -> Raw:
            """What could not be read back must not be recorded as a success."""
            raw = write(value)
            callee.signature.result.read(raw)
            if holds is not None:
                self._cache.keep(self.tenant_id, callee.name, arguments, raw, holds)
            return raw

        holds = callee.call_options.cache_ttl
        return perform

    def _recaller(self, callee: Callee[Any, Any], arguments: Raw) -> Recall | None:
        if callee.call_options.cache_ttl is None:
            return None
        return functools.partial(self._cache.find, self.tenant_id, callee.name, arguments)

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

    async def effect(
        self, spec: EffectSpec, *, key: str | None = None, critical: bool = True, at_most_once: bool = False
    ) -> str:
        """Asks for something outside; returns its id once the request is durable."""
        scope = current_scope()
        step_key = scope.key(spec.effect_name())
        effect = commands.RequestEffect(
            step_key=step_key,
            effect_type=spec.EFFECT_TYPE,
            spec=spec.checked(),
            effect_key=key,
            critical=critical,
            delivery="at_most_once" if at_most_once else "at_least_once",
        )
        request = StepRequest(
            key=step_key,
            step_type="EFFECT_REQUEST",
            arguments=write(spec.checked()),
            output=OutputResult(effect_spec=write(spec.checked())),
            effect=effect,
        )
        step = self._succeeded(await self._execution.step(scope, request))
        return self._effect_id(step, key)

    def _effect_id(self, step: Step, key: str | None) -> str:
        """The effect that the step asked for, or that an earlier step had asked for under the same key."""
        state = self._execution.state
        if key is not None:
            return state.effect_keys[key]
        return next(found.id for found in state.effects.values() if found.step_id == step.id)

    async def skip(self, name: str, reason: str) -> None:
        """Records that a step was not needed."""
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
        """Waits for an answer of that name; the run leaves memory. `WaitTimeout` when nobody answers."""
        shape = Shape(Any if kind is None else kind, f"the answer to {name!r}")
        checked_duration("timeout", timeout)
        given = write({"name": name, "timeout": None if timeout is None else timeout.total_seconds()})
        wait = WaitSpec(name=name, deadline=self._deadline(timeout), answer_schema=shape.schema())
        step = await self._wait(name, given, wait)
        try:
            return shape.read(self._value(step))
        except InvalidPayload as error:
            raise StepFailed(step.step_key, "VALIDATION", "INVALID_ANSWER", str(error)) from error

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps, durably: for a second or for a year."""
        checked_duration("a sleep", duration)
        given = write({"seconds": duration.total_seconds()})
        await self._wait("sleep", given, WaitSpec(deadline=self._deadline(duration)))

    async def _wait(self, name: str, arguments: Raw, wait: WaitSpec) -> Step:
        scope = current_scope()
        request = StepRequest(key=scope.key(name), step_type="WAIT", arguments=arguments, wait=wait)
        return self._succeeded(await self._execution.step(scope, request))

    def _deadline(self, timeout: timedelta | None) -> datetime | None:
        """Counted from what the branch has seen, should the clock be behind that."""
        return None if timeout is None else max(self._clock.now(), self.now()) + timeout

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

    # What is the same on replay

    def now(self) -> datetime:
        """The time of the last event this branch has seen."""
        return current_scope().now

    def random(self) -> float:
        """A number from 0 to 1, seeded by run, branch and ordinal."""
        return current_scope().random()

    def uuid(self) -> uuid.UUID:
        """An id, seeded likewise."""
        return current_scope().uuid()

    # Variables

    def set(self, name: str, value: object) -> None:
        """Keeps a value with the run, where people can see it; written with the next step."""
        current_scope()
        raw = write(value)
        self._variables[name] = raw
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


def _call(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Calls a plain function; no future can carry a `StopIteration` out of its thread."""
    try:
        return function(**given)
    except StopIteration as error:
        raise RuntimeError("StopIteration left the function") from error
