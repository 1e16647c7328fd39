"""What a user registers: tools, specialists, handlers, each with its options.

Options that are not arguments go on the callee (`triage.options(timeout=…)`), so that a type
checker sees both the call and the options.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from runstone.core import codec
from runstone.core.codec import NULL
from runstone.core.commands import CreateRun
from runstone.core.decide import Case
from runstone.core.payloads import RunType, StepType
from runstone.core.schedule import CHANNEL
from runstone.engine.policy import ONCE, Retry
from runstone.engine.values import Signature, write
from runstone.errors import InvalidPayload, RegistrationError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")

OnExhausted: TypeAlias = Literal["fail", "park"]
"""What follows when a step has no attempt left: it fails, or pauses its run until a person decides."""


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
        if step_type == "SPECIALIST_CALL" and options.cache_ttl is not None:
            raise RegistrationError(f"{name}: cache_ttl is for tools: a specialist is asked each time")
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
        retry: Retry | UnsetType = UNSET,
        timeout: timedelta | UnsetType | None = UNSET,
        at_most_once: bool | UnsetType = UNSET,
        on_exhausted: OnExhausted | UnsetType = UNSET,
        cache_ttl: timedelta | UnsetType | None = UNSET,
    ) -> Callee[P, R_co]:
        """The same function with other options; a name of its own makes it a step of its own.

        What is not given stays; `timeout=None` and `cache_ttl=None` take one away.
        """
        given = {
            "retry": retry,
            "timeout": timeout,
            "at_most_once": at_most_once,
            "on_exhausted": on_exhausted,
            "cache_ttl": cache_ttl,
        }
        changed = {option: value for option, value in given.items() if value is not UNSET}
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
        if not inspect.signature(function).parameters:
            raise RegistrationError(
                f"{name}: a handler takes its run first, as in `async def {name}(run: rs.Run)`"
            )
        _check_lane(name, key, concurrency)
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

    def as_seen(self, value: Any) -> Any:
        """A value as the handler will see it; `InvalidPayload` if it could not be started with that."""
        if not self.signature.names:
            if value is not None:
                raise InvalidPayload("", f"{self.name} takes no value: start it without one")
            return None
        try:
            return self.signature.shapes[self.signature.names[0]].decode(write(value))
        except (InvalidPayload, msgspec.DecodeError) as error:
            pointer, reason = getattr(error, "pointer", ""), getattr(error, "reason", error)
            message = f"{self.name} cannot be started with {value!r:.80}: {reason}"
            raise InvalidPayload(pointer, message) from error

    @property
    def takes_schedule(self) -> bool:
        """Whether a schedule hands it the whole signal: when it was due, and by which schedule."""
        return getattr(self.signal, "SIGNAL_TYPE", None) == "SCHEDULED_TASK"

    def create(
        self, value: Any, run_type: RunType, *, version: str, key: str | None = None, keyed: bool = True
    ) -> CreateRun:
        """What a run of it is created with, for this value.

        Not `keyed`, it takes turns with all others of which nobody can tell whose turn it is.
        """
        line = self.key(value) if self.key and keyed else self.name
        return CreateRun(
            plan_id=self.name,
            plan_version=self.version,
            orchestrator_version=version,
            run_type=run_type,
            key=key,
            lane=f"{self.name}/{line}" if self.concurrency else None,
            lane_limit=self.concurrency or 1,
            approval_required=self.approval,
        )

    def check_carry(self, carry: Raw) -> None:
        """Refuses what the next generation could not be started with."""
        if self.signature.names:
            self.signature.read(self.signature.names[0], carry)
        elif bytes(carry) != bytes(NULL):
            raise InvalidPayload("", f"{self.name} takes no value: there is nothing to carry over")

    def _input(self, case: Case) -> Raw:
        if case.run.carry is not None:
            return case.run.carry
        assert case.signal.signal is not None, "every run has a signal"
        payload = case.signal.whole(case.signal.signal.normalized_payload)
        channel = case.signal.signal.source_channel
        if channel == START_CHANNEL or (channel == CHANNEL and not self.takes_schedule):
            return _read_started(payload).arguments
        return payload


class _Started(msgspec.Struct):
    """The signal that `app.start` or a schedule writes, as far as a handler is concerned."""

    arguments: Raw = NULL


_read_started: Final = codec.reader(_Started)

START_CHANNEL: Final = "app.start"
"""The door through which `app.start` comes in."""


def checked_options(name: str, options: CallOptions) -> CallOptions:
    """Refuses options of the wrong kind where they are written, not where a run would stumble over them."""
    if not isinstance(options.retry, Retry):
        raise RegistrationError(f"{name}: retry={options.retry!r} is no rs.Retry")
    check_retry(name, options.retry)
    for option in ("timeout", "cache_ttl"):
        checked_duration(f"{name}: {option}", getattr(options, option))
    if options.timeout is not None and options.timeout <= timedelta(0):
        raise RegistrationError(
            f"{name}: timeout={options.timeout!r} leaves no time: leave it out for no limit"
        )
    if options.on_exhausted not in typing.get_args(OnExhausted):
        raise RegistrationError(f"{name}: on_exhausted={options.on_exhausted!r} is neither 'fail' nor 'park'")
    return options


def check_retry(name: str, retry: Retry) -> None:
    """Refuses a policy that could not be followed."""
    given: dict[str, Any] = msgspec.structs.asdict(retry)
    if type(given["max_attempts"]) is not int or given["max_attempts"] < 1:
        raise RegistrationError(f"{name}: max_attempts={retry.max_attempts!r} is no count from 1, the first")
    if not isinstance(given["factor"], int | float) or not 0 < given["factor"] <= MOST_GROWTH:
        raise RegistrationError(f"{name}: factor={retry.factor!r} is not above 0 and up to {MOST_GROWTH}")
    for option in ("initial", "longest"):
        duration = checked_duration(f"{name}: {option}", given[option])
        if duration is None or duration < timedelta(0):
            raise RegistrationError(f"{name}: {option}={duration!r} is no wait: rs.seconds(0) is the least")
    for option in ("on", "never"):
        named = given[option]
        for kind in named if isinstance(named, Sequence) and not isinstance(named, str) else (named,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise RegistrationError(f"{name}: {option}={named!r} names {kind!r}, which is no exception")


MOST_GROWTH: Final = 1000
"""By how much the wait before a retry may grow from one to the next."""


def _check_lane(name: str, key: Any, concurrency: Any) -> None:
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise RegistrationError(f"{name}: concurrency={concurrency!r} is no count of runs: give it 1 or more")
    if key is not None and not callable(key):
        raise RegistrationError(
            f"{name}: key={key!r} is no function of the input, such as lambda e: e.thread"
        )
    if key is not None and concurrency is None:
        raise RegistrationError(
            f"{name}: a key says which runs take turns: say how many may run at once too, as in concurrency=1"
        )


def checked_duration(what: str, value: timedelta | None) -> timedelta | None:
    """Refuses a bare number: of what?"""
    if value is not None and not isinstance(value, timedelta):
        raise RegistrationError(f"{what}={value!r} is no duration: say rs.seconds({value!r}), or rs.days(…)")
    return value


def check_sleep(duration: Any) -> None:
    """Refuses what is no duration, nothing among it: how long would that be?"""
    if not isinstance(duration, timedelta):
        example = duration if isinstance(duration, int | float) else 5
        raise RegistrationError(f"run.sleep({duration!r}): give a duration, such as rs.seconds({example})")


def check_given(decorator: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuses an option that a decorator does not have, and says which it has."""
    for option in given:
        if option not in known:
            raise RegistrationError(
                f"{decorator} has no option {option!r}; it has {', '.join(sorted(known))}"
            )


def checked_name(name: Any) -> str:
    """Names become parts of step keys, where `#` and `/` have a meaning."""
    if not isinstance(name, str) or not name or any(mark in name for mark in "#/"):
        raise RegistrationError(f"{name!r} cannot be a name: it is no text, is empty, or holds # or /")
    codec.check_text(name)
    return name


def checked_text(what: str, text: Any) -> str:
    """Refuses what no event could hold where it is said, so that its handler hears of it."""
    if not isinstance(text, str):
        raise RegistrationError(f"{what} is no text: {text!r:.80}")
    codec.check_text(text)
    return text
