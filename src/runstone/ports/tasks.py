"""The tasks port: what can be scheduled here, and the run that each is started as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw

from runstone.core.commands import CreateRun
from runstone.core.payloads import ErrorInfo


class Tasks(Protocol):
    """The handlers of one app, as schedules know them: by name, and by what they are started with."""

    @property
    def names(self) -> Sequence[str]:
        """All of them, in order."""
        ...

    def refusal(self, task: str, arguments: Raw) -> ErrorInfo | None:
        """Why it could not be started with these arguments; none: it could."""
        ...

    def create(self, task: str, payload: Raw, arguments: Raw) -> CreateRun:
        """The run of a task whose time has come; one that cannot be started is created too, and fails."""
        ...
