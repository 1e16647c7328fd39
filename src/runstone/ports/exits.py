"""Who asked for an end: a process is stopped from outside; `sys.exit` in a step ends that step alone."""

from __future__ import annotations

import functools
import signal
import traceback
from types import CodeType


def stops_the_process(error: BaseException) -> bool:
    """Whether the process is to stop: Ctrl-C, or a signal handler that calls `sys.exit` (§ENG-52)."""
    if isinstance(error, KeyboardInterrupt):
        return True
    if not isinstance(error, SystemExit):
        return False
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: object) -> CodeType | None:
    """What a signal handler runs; none if it is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
