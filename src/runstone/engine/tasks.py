"""An app's handlers as tasks: what a schedule can start, and how."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from runstone.core.commands import CreateRun
from runstone.core.payloads import ErrorInfo
from runstone.engine.functions import Handler
from runstone.errors import InvalidPayload

UNKNOWN_TASK = "UNKNOWN_TASK"
MISFIT = "INVALID_ARGUMENTS"

_log = logging.getLogger("runstone.scheduler")


class HandlerTasks:
    """The handlers that this process has, at the app's version."""

    def __init__(self, handlers: Mapping[str, Handler[Any, Any]], version: str = "") -> None:
        self._handlers = handlers
        self._version = version

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._handlers)

    def refusal(self, task: str, arguments: Raw) -> ErrorInfo | None:
        handler = self._handlers.get(task)
        if handler is None:
            known = ", ".join(self.names) or "there are none"
            message = f"No handler is called {task!r}; those of this app: {known}"
            return ErrorInfo(category="APPLICATION", code=UNKNOWN_TASK, message=message[:2000])
        if handler.takes_schedule:
            return None
        try:
            handler.as_seen(msgspec.json.decode(arguments))
        except InvalidPayload as error:
            return ErrorInfo(category="VALIDATION", code=MISFIT, message=str(error)[:2000])
        return None

    def create(self, task: str, payload: Raw, arguments: Raw) -> CreateRun:
        handler = self._handlers[task]
        given = payload if handler.takes_schedule else arguments
        try:
            value = handler.as_seen(msgspec.json.decode(given))
            return handler.create(value, "SCHEDULED_TASK", version=self._version)
        except Exception as error:
            # The code has changed since it was scheduled. Its run fails for all to see: the schedule goes on.
            _log.warning("task %s cannot be started as scheduled: %s", task, error)
            return handler.create(None, "SCHEDULED_TASK", version=self._version, lane=False)
