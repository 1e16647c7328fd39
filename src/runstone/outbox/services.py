"""Which executor does which type of effect: built-in ones, and users' own from `@app.executor`."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor as Threads
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from runstone.core.effect_specs import EffectSpec
from runstone.core.retry import RetryPolicy, effect_retries
from runstone.errors import RegistrationError
from runstone.ports.executor import EffectCall, Executor, Failed, InnerExecutor, Outcome, Succeeded

TIMEOUT: Final = timedelta(seconds=30)
"""How long one call of an executor may take, unless it was registered with more or less."""


@functools.cache  # to look a protocol over takes longer than to record an outcome
def _is_inner(kind: type) -> bool:
    return issubclass(kind, InnerExecutor)


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One type of effect, and who does it."""

    spec: type[EffectSpec]
    executor: Executor | InnerExecutor
    timeout: timedelta = TIMEOUT

    @property
    def effect_type(self) -> str:
        return self.spec.EFFECT_TYPE

    @property
    def inner(self) -> InnerExecutor | None:
        """Who does it in our own store, if that is where it is done."""
        return cast(InnerExecutor, self.executor) if _is_inner(type(self.executor)) else None

    @property
    def outer(self) -> Executor | None:
        """Who does it outside."""
        return None if _is_inner(type(self.executor)) else cast(Executor, self.executor)

    @property
    def retries(self) -> RetryPolicy:
        return self.spec.RETRIES or effect_retries(self.effect_type)

    def read(self, raw: Raw) -> EffectSpec:
        """A stored spec, typed. The key is the outbox's own, unless the type has a field for it."""
        if "idempotency_key" not in self.spec.__struct_fields__:
            fields = msgspec.json.decode(raw, type=dict[str, Raw])
            fields.pop("idempotency_key", None)
            raw = Raw(msgspec.json.encode(fields))
        return msgspec.json.decode(raw, type=self.spec)


class FunctionExecutor:
    """A user's function as an executor: `f(spec)` or `f(spec, call)`; what it returns is the result."""

    def __init__(self, function: Callable[..., Any], threads: Callable[[], Threads | None]) -> None:
        self.function = function
        self._threads = threads
        self._takes_call = len(inspect.signature(function).parameters) > 1

    async def execute(self, call: EffectCall) -> Outcome:
        given = (call.spec, call) if self._takes_call else (call.spec,)
        if inspect.iscoroutinefunction(self.function):
            done = await self.function(*given)
        else:
            work = functools.partial(contextvars.copy_context().run, self.function, *given)
            threads = self._threads()
            loop = asyncio.get_running_loop()
            done = work() if threads is None else await loop.run_in_executor(threads, work)
        return done if isinstance(done, Succeeded | Failed) else Succeeded(done)

    def target(self, spec: EffectSpec) -> str | None:
        return None

    async def aclose(self) -> None:
        return None


class ObjectExecutor:
    """A user's object with `execute`; `target` and `aclose` only if it has them."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    async def execute(self, call: EffectCall) -> Outcome:
        done = await self.wrapped.execute(call)
        return done if isinstance(done, Succeeded | Failed) else Succeeded(done)

    def target(self, spec: EffectSpec) -> str | None:
        known: Callable[[EffectSpec], str | None] | None = getattr(self.wrapped, "target", None)
        return known(spec) if known is not None else None

    async def aclose(self) -> None:
        if hasattr(self.wrapped, "aclose"):
            await self.wrapped.aclose()


def checked_spec(spec: Any) -> type[EffectSpec]:
    """The type of effect that an executor is registered for."""
    if not (isinstance(spec, type) and issubclass(spec, EffectSpec)):
        raise RegistrationError(f"@app.executor takes a subclass of EffectSpec: {spec!r} is none")
    if not spec.EFFECT_TYPE:
        raise RegistrationError(f'{spec.__name__} names no EFFECT_TYPE: give it one, such as "CHARGE_CARD"')
    return spec


def as_executor(given: Any, threads: Callable[[], Threads | None] = lambda: None) -> Executor:
    """A function, an executor, or a class of executors that needs no arguments, as an executor."""
    made = given() if isinstance(given, type) else given
    if hasattr(made, "execute"):
        if not inspect.iscoroutinefunction(made.execute):
            raise RegistrationError(f"{given!r}: its `execute` has to be an async def")
        return ObjectExecutor(made)
    if not callable(made):
        raise RegistrationError(f"@app.executor takes a function, or a class with `execute`: {given!r}")
    if not 1 <= len(inspect.signature(made).parameters) <= 2:
        raise RegistrationError(f"{made!r} has to take the effect's spec, and its call if it wants it")
    return FunctionExecutor(made, threads)
