"""What an outcome means for the log: pure, from an effect and what its executor said to a command."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from runstone.core import codec, commands
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.core.retry import RetryPolicy
from runstone.errors import InvalidPayload, RetryableError, TerminalError
from runstone.ports.executor import Failed, Outcome, Succeeded

LONGEST_MESSAGE: Final = 2000
LONGEST_WAIT: Final = timedelta(days=365)
"""Between two tries, whoever asks for more: there has to be a date for it."""


_read_error = codec.reader(ErrorInfo)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one claimed effect, ready to be recorded."""

    effect_id: str
    executor: str
    fence: int
    result: Raw | None = None
    error: ErrorInfo | None = None
    next_retry_at: datetime | None = None
    unknown: bool = False
    """Nobody knows whether it was done: an at-most-once effect whose answer was lost."""

    def command(self, effect: Effect, *, late: bool) -> commands.Command | None:
        """What to record, given the effect as it is now; `late`: its claim is no longer valid (§OUT-13)."""
        if late or effect.status not in ("PENDING", "EXECUTING", "FAILED"):
            return self._late()
        if self.unknown and effect.status != "EXECUTING":
            return self._late()  # it was found out meanwhile, and is to be sent
        if self.unknown:
            return commands.LoseEffect(effect_id=self.effect_id, executor=self.executor, error=self.error)
        if self.error is not None:
            assert self.next_retry_at is not None, "a failure says when to try again"
            return commands.FailEffect(
                effect_id=self.effect_id,
                executor=self.executor,
                error=self.error,
                next_retry_at=self.next_retry_at,
                fence=self.fence,
            )
        return commands.CompleteEffect(
            effect_id=self.effect_id,
            executor=self.executor,
            result=codec.NULL if self.result is None else self.result,
            fence=self.fence,
        )

    def _late(self) -> commands.Command | None:
        if self.error is None and self.unknown:
            return None  # it only wanted to say that somebody else was lost
        return commands.ReportLateOutcome(
            effect_id=self.effect_id,
            executor=self.executor,
            result=UNSET if self.error else self.result or codec.NULL,
            error=self.error,
        )


def report(
    effect: Effect,
    outcome: Outcome,
    *,
    executor: str,
    fence: int,
    policy: RetryPolicy,
    now: datetime,
    jitter: float,
) -> Report:
    """An executor's word on an effect."""
    if isinstance(outcome, Succeeded):
        try:
            result = codec.canonical(outcome.result)
        except (InvalidPayload, TypeError) as unreadable:
            # It was done: what it answered cannot be kept, which must not make anybody do it again.
            result = codec.canonical({"unreadable": _text(unreadable)})
        return Report(effect_id=effect.id, executor=executor, fence=fence, result=result)
    outcome = recordable(outcome)
    retry_at = now + retry_delay(policy, effect.retry_count + 1, jitter, outcome.retry_after)
    once = effect.delivery == "at_most_once"
    error = outcome.error
    if once and not outcome.nothing_sent and error.retryable:
        # It may have been done, so nothing retries it; a person finds out (§OUT-23, §OUT-26).
        return Report(effect_id=effect.id, executor=executor, fence=fence, error=error, unknown=True)
    return Report(effect_id=effect.id, executor=executor, fence=fence, error=error, next_retry_at=retry_at)


def recordable(failed: Failed) -> Failed:
    """A failure as the log can hold it: how it was told must not make anybody do it again and again."""
    error, after = failed.error, failed.retry_after
    try:
        if not isinstance(error, ErrorInfo):
            raise TypeError(f"Failed takes an ErrorInfo: {error!r} is none")
        if not isinstance(after, timedelta | None):
            raise TypeError(f"retry_after={after!r} is no duration: say rs.seconds({after!r})")
        error = msgspec.structs.replace(error, code=_clean(error.code), message=_clean(error.message))
        _read_error(codec.encode(error))
    except (TypeError, AttributeError, msgspec.ValidationError) as mistake:
        told = raised(mistake)
        return msgspec.structs.replace(failed, error=told.error, retry_after=None)
    return msgspec.structs.replace(failed, error=error)


def retry_delay(policy: RetryPolicy, retry: int, jitter: float, retry_after: timedelta | None) -> timedelta:
    """Full jitter, and never earlier than the other side asked for (§OUT-16, §OUT-20)."""
    delay = policy.delay(retry, jitter)
    return min(LONGEST_WAIT, delay if retry_after is None else max(delay, retry_after))


def raised(error: BaseException) -> Failed:
    """What an exception of an executor means: nobody knows what happened outside."""
    retry_after = error.retry_after if isinstance(error, RetryableError) else None
    if isinstance(error, TimeoutError):
        info = ErrorInfo(
            category="TIMEOUT",
            code="EFFECT_TIMEOUT",
            message=_text(error) or "The call took longer than it may",
            retryable=True,
        )
        return Failed(info, target_down=True)
    info = ErrorInfo(
        category="VALIDATION" if isinstance(error, InvalidPayload) else "APPLICATION",
        code=type(error).__name__[:100],
        message=_text(error) or type(error).__name__,
        retryable=not isinstance(error, TerminalError | InvalidPayload),
    )
    return Failed(info, retry_after=retry_after)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = f"{type(error).__name__}, which cannot be shown"
    return _clean(text[:LONGEST_MESSAGE])


def _clean(text: str) -> str:
    """Without what no event can hold."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
