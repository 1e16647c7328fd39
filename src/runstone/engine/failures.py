"""Between exceptions and the errors that the log holds."""

from __future__ import annotations

import logging
from typing import Final, NoReturn, cast

from runstone.core import codec
from runstone.core.payloads import ErrorCategory, ErrorInfo
from runstone.core.step import Step
from runstone.errors import InvalidPayload, RetryableError, StepFailed, TerminalError, WaitTimeout

_LONGEST = 2000

_EXPECTED: Final = (TerminalError, RetryableError, StepFailed)
"""Raised on purpose, or told before: where it was raised matters to nobody."""


def error_info(error: BaseException, *, retryable: bool = False) -> ErrorInfo:
    """An exception as the log keeps it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    message = _text(error)[:_LONGEST] or type(error).__name__
    if isinstance(error, StepFailed):
        category, code, message = cast(ErrorCategory, error.category), error.code, error.reason
    elif isinstance(error, TimeoutError):
        category, code, message = "TIMEOUT", "STEP_TIMEOUT", _text(error) or "It took longer than it may"
    elif isinstance(error, InvalidPayload):
        category, code = "VALIDATION", "INVALID_PAYLOAD"
    elif isinstance(error, SystemExit):
        category, code, message = "APPLICATION", "SystemExit", f"It called sys.exit({message})"
    else:
        category, code = "APPLICATION", type(error).__name__
    return ErrorInfo(category=category, code=code, message=_clean(message), retryable=retryable)


def tell(log: logging.Logger, error: BaseException, info: ErrorInfo, who: str, what: str) -> None:
    """Logs a user's exception as it becomes history, which keeps no traceback (§ENG-52)."""
    expected = isinstance(error, _EXPECTED)
    said = str(error) if isinstance(error, StepFailed) else f"{info.message} ({info.code})"
    level = logging.INFO if expected else logging.WARNING
    log.log(level, "%s %s: %s", who, what, said, exc_info=None if expected else error)


def raise_failure(step: Step, kind: type[StepFailed] = StepFailed) -> NoReturn:
    """Raises what a failed step means to its handler: the same on its first day and on replay."""
    assert step.error_details is not None, "a failed step says why"
    info = codec.decode_as(step.error_details, ErrorInfo)
    kind = WaitTimeout if info.code == "WAIT_TIMEOUT" else kind
    raise kind(step.step_key, info.category, info.code, info.message)


def _text(error: BaseException) -> str:
    """What an exception says, if it can say anything."""
    try:
        return str(error)
    except Exception:
        return f"{type(error).__name__}, which cannot be shown"


def _clean(text: str) -> str:
    """Text that may be stored, whatever an exception said."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
