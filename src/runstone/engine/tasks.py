"""An app's handlers as tasks: what a schedule can start, and how."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from runstone.core.commands import CreateRun
from runstone.core.effect_specs import ScheduleTask
from runstone.engine.functions import Handler
from runstone.errors import InvalidPayload

_log = logging.getLogger("runstone.scheduler")


class HandlerTasks:
    """The handlers that this process has, at the app's version."""

    def __init__(self, handlers: Mapping[str, Handler[Any, Any]], version: str = "") -> None:
        self._handlers = handlers
        self._version = version

    @property
    def names(self) -> Sequence[str]:
        return sorted(self._handlers)

    def check(self, asked: ScheduleTask) -> None:
        """Refuses what it could not start as the code is now (§OUT-62)."""
        handler = self._handlers.get(asked.task)
        if handler is None:
            known = ", ".join(self.names)
            raise InvalidPayload("/task", f"no handler is called {asked.task!r}; those of this app: {known}")
        if handler.takes_schedule:
            return
        try:
            value = handler.as_seen(asked.arguments)
        except InvalidPayload as error:
            raise InvalidPayload("/arguments", error.reason) from error
        try:
            handler.create(value, "SCHEDULED_TASK", version=self._version)
        except Exception as error:
            raise InvalidPayload(
                "/arguments", f"the key of {asked.task} cannot be told from them: {error!r:.200}"
            ) from error

    def create(self, task: str, payload: Raw, arguments: Raw) -> CreateRun:
        handler = self._handlers[task]
        given = payload if handler.takes_schedule else arguments
        try:
            value = handler.as_seen(msgspec.json.decode(given))
            return handler.create(value, "SCHEDULED_TASK", version=self._version)
        except Exception as error:
            # The code has changed since it was scheduled. Its run fails for all to see, the schedule goes on.
            # Where only the key cannot be told, it runs: never all of them at once.
            _log.warning("task %s cannot be started as scheduled: %s", task, error)
            return handler.create(None, "SCHEDULED_TASK", version=self._version, keyed=False)
