"""The tasks port: what a scheduler can start here, and the run that each is started as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw

from runstone.core.commands import CreateRun


class Tasks(Protocol):
    """The handlers of one app, as schedules know them: by name, and by what they are started with."""

    @property
    def names(self) -> Sequence[str]:
        """All of them, in order."""
        ...

    def create(self, task: str, payload: Raw, arguments: Raw) -> CreateRun:
        """The run of a task whose time has come; one that cannot be started is created too, and fails."""
        ...
