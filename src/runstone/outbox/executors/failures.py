"""Failures as the port wants them, and the words in them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from runstone.core.payloads import ErrorCategory, ErrorInfo
from runstone.ports.executor import Failed

_LONGEST: Final = 500


def failed(
    category: ErrorCategory,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    nothing_sent: bool = False,
    target_down: bool = False,
    retry_after: timedelta | None = None,
) -> Failed:
    """A failure with its flags."""
    return Failed(
        error=ErrorInfo(category=category, code=code, message=message, retryable=retryable),
        retry_after=retry_after,
        nothing_sent=nothing_sent,
        target_down=target_down,
    )


def patience(configured: float, within: timedelta) -> float:
    """How many seconds to wait: a little less than the dispatcher, for the executor knows what was sent."""
    return min(configured, 0.95 * within.total_seconds())


def excerpt(said: bytes | str) -> str:
    """The beginning of what a peer said, on one line, fit to be stored."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 2 * _LONGEST]).split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"


def reason(error: BaseException) -> str:
    """What an exception of a library says."""
    return excerpt(str(error)) or type(error).__name__
