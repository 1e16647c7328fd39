"""Exceptions as the log keeps them, and back."""

from __future__ import annotations

import asyncio

import pytest

from runstone.core import codec
from runstone.core.payloads import ErrorInfo
from runstone.engine.failures import error_info
from runstone.errors import InvalidPayload, StepFailed, TerminalError


@pytest.mark.parametrize(
    ("error", "category", "code", "message"),
    [
        (ValueError("broken"), "APPLICATION", "ValueError", "broken"),
        (ValueError(), "APPLICATION", "ValueError", "ValueError"),
        (TerminalError("no"), "APPLICATION", "TerminalError", "no"),
        (TimeoutError(), "TIMEOUT", "STEP_TIMEOUT", "It took longer than it may"),
        (TimeoutError("the socket"), "TIMEOUT", "STEP_TIMEOUT", "the socket"),
        (InvalidPayload("/a", "wrong"), "VALIDATION", "INVALID_PAYLOAD", "wrong (at '/a')"),
        (StepFailed("s#1", "EXTERNAL", "HTTP_500", "down"), "EXTERNAL", "HTTP_500", "down"),
        (SystemExit(4), "APPLICATION", "SystemExit", "It called sys.exit(4)"),
        (asyncio.CancelledError(), "APPLICATION", "CancelledError", "CancelledError"),
    ],
)
def test_errors_have_one_form(error: BaseException, category: str, code: str, message: str) -> None:
    info = error_info(error)
    assert (info.category, info.code, info.message, info.retryable) == (category, code, message, False)


def test_whether_it_is_retried_is_said_by_who_knows() -> None:
    assert error_info(ValueError(), retryable=True).retryable is True


@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "x" * 10_000])
def test_whatever_an_exception_says_can_be_stored(text: str) -> None:
    raw = codec.canonical(error_info(ValueError(text)))
    assert 0 < len(codec.decode_as(raw, ErrorInfo).message) <= 2000
