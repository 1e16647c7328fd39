"""Retries and durations, as a user states them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from runstone.errors import RetryableError, TerminalError


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step is tried, and how far apart.

    `max_attempts` counts the first. The wait before attempt n + 1 is somewhere between nothing and
    `initial * factor ** (n - 1)`, at most `longest`: full jitter, so that what failed together does
    not come back together. Only `on` is retried, never `never`, never a `TerminalError`.
    """

    max_attempts: int = 3
    initial: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=1)
    on: type[BaseException] | Sequence[type[BaseException]] = (Exception,)
    never: type[BaseException] | Sequence[type[BaseException]] = ()

    def wants(self, error: BaseException) -> bool:
        """Whether this kind of failure may be tried again at all."""
        if isinstance(error, TerminalError):
            return False
        if isinstance(error, RetryableError):
            return True
        return isinstance(error, _classes(self.on)) and not isinstance(error, _classes(self.never))

    def delay(self, attempt: int, jitter: float, error: BaseException) -> timedelta:
        """How long to wait after the given attempt; an error may know better."""
        after: object = error.retry_after if isinstance(error, RetryableError) else None
        if isinstance(after, timedelta):
            return min(max(after, timedelta(0)), _FARTHEST)
        if after is not None:
            raise TypeError(f"retry_after={after!r} is no duration: say rs.seconds({after!r})")
        seconds = self.initial.total_seconds() * self.factor ** min(attempt - 1, 60)
        return min(timedelta(seconds=min(seconds, 1e9)), self.longest) * jitter


_FARTHEST: Final = timedelta(days=36500)
"""No error can put a retry off to where the calendar ends."""


def _classes(named: type[BaseException] | Sequence[type[BaseException]]) -> tuple[type[BaseException], ...]:
    return (named,) if isinstance(named, type) else tuple(named)


ONCE = Retry(max_attempts=1)
"""No retry: what a step does that says nothing else."""


def spoken(duration: timedelta) -> str:
    """A duration for a person, in its largest unit that leaves no odd rest: `0.5 s`, `90 s`, `3 days`."""
    for unit, name in ((timedelta(days=1), "day"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min")):
        count, rest = divmod(duration, unit)
        if count > 0 and not rest:
            return f"{count} {name}{'s' if name == 'day' and count > 1 else ''}"
    return f"{duration.total_seconds():.6f}".rstrip("0").rstrip(".") + " s"


def seconds(count: float) -> timedelta:
    """A duration of so many seconds: what every `timeout=`, `run.sleep` and the like take."""
    return timedelta(seconds=count)


def minutes(count: float) -> timedelta:
    """So many minutes."""
    return timedelta(minutes=count)


def hours(count: float) -> timedelta:
    """So many hours."""
    return timedelta(hours=count)


def days(count: float) -> timedelta:
    """So many days."""
    return timedelta(days=count)
