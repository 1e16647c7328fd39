"""What a user registers: tools, specialists, handlers, each with its options.

Options that are not arguments go on the callee (`triage.options(timeout=…)`), so that a type
checker sees both the call and the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from runstone.core.codec import NULL
from runstone.core.decide import Case
from runstone.core.payloads import StepType
from runstone.engine.policy import ONCE, Retry
from runstone.engine.values import Signature
from runstone.errors import RegistrationError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")

OnExhausted: TypeAlias = Literal["fail", "park"]


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is carried out."""

    retry: Retry = ONCE
    timeout: timedelta | None = None
    at_most_once: bool = False
    on_exhausted: OnExhausted = "fail"
    cache_ttl: timedelta | None = None


class Callee(Generic[P, R_co]):
    """A function that `run.call` can call durably. Calling it directly just calls it."""

    def __init__(
        self,
        function: Callable[P, Awaitable[R_co]] | Callable[P, R_co],
        step_type: StepType,
        name: str,
        options: CallOptions,
        signature: Signature | None = None,
    ) -> None:
        self.function: Callable[P, Any] = function
        self.step_type = step_type
        self.name = checked_name(name)
        self.call_options = checked_options(name, options)
        self.signature = signature or Signature(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        at_most_once: bool | None = None,
        on_exhausted: OnExhausted | None = None,
        cache_ttl: timedelta | None = None,
    ) -> Callee[P, R_co]:
        """The same function with other options; a name of its own makes it a step of its own."""
        given = {
            "retry": retry,
            "timeout": timeout,
            "at_most_once": at_most_once,
            "on_exhausted": on_exhausted,
            "cache_ttl": cache_ttl,
        }
        changed = {option: value for option, value in given.items() if value is not None}
        options = msgspec.structs.replace(self.call_options, **changed)
        return Callee(self.function, self.step_type, name or self.name, options, self.signature)


class Handler(Generic[A, R]):
    """A durable function: handles one kind of signal, or what `app.start` hands it."""

    def __init__(
        self,
        function: Callable[..., Awaitable[R]],
        name: str,
        *,
        version: str = "",
        signal: type[Any] | None = None,
        channel: str | None = None,
        key: Callable[[A], str] | None = None,
        concurrency: int | None = None,
        approval: bool = False,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise RegistrationError(f"{name}: a handler is an `async def`")
        self.function = function
        self.name = checked_name(name)
        self.version = version
        self.signal = signal
        self.channel = channel
        self.key = key
        self.concurrency = concurrency
        self.approval = approval
        self.signature = Signature(function, skip=1)
        self.__doc__ = function.__doc__
        self.__name__ = name
        if len(self.signature.names) > 1:
            raise RegistrationError(f"{name}: a handler takes its run and at most one value")

    def read_input(self, case: Case) -> tuple[Any, ...]:
        """What the handler was started with: its signal, `app.start`'s value, or what a generation left."""
        if not self.signature.names:
            return ()
        (name,) = self.signature.names
        return (self.signature.read(name, self._input(case)),)

    def _input(self, case: Case) -> Raw:
        if case.run.carry is not None:
            return case.run.carry
        assert case.signal.signal is not None, "every run has a signal"
        payload = case.signal.whole(case.signal.signal.normalized_payload)
        if case.signal.signal.source_channel == START_CHANNEL:
            return msgspec.json.decode(payload, type=_Started).arguments
        return payload


class _Started(msgspec.Struct):
    """The signal that `app.start` writes, as far as a handler is concerned."""

    arguments: Raw = NULL


START_CHANNEL: Final = "app.start"
"""The door through which `app.start` comes in."""


def checked_options(name: str, options: CallOptions) -> CallOptions:
    """Refuses options of the wrong kind where they are written, not where a run would stumble over them."""
    if not isinstance(options.retry, Retry):
        raise RegistrationError(f"{name}: retry={options.retry!r} is no rs.Retry")
    for option in ("timeout", "cache_ttl"):
        checked_duration(f"{name}: {option}", getattr(options, option))
    return options


def checked_duration(what: str, value: timedelta | None) -> timedelta | None:
    """Refuses a bare number: of what?"""
    if value is not None and not isinstance(value, timedelta):
        raise RegistrationError(f"{what}={value!r} is no duration: say rs.seconds({value!r}), or rs.days(…)")
    return value


def checked_name(name: str) -> str:
    """Names become parts of step keys, where `#` and `/` have a meaning."""
    if not name or any(mark in name for mark in "#/"):
        raise RegistrationError(f"{name!r} cannot be a name: it is empty, or holds # or /")
    return name
