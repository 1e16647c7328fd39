"""What a pen still has to write after somebody else wrote to the run: only what makes sense now.

A step that has ended does not end again. A paused run begins no step; what it had not begun is
done when it is resumed. A run whose wait was answered does not suspend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Lease
from runstone.core.effect import EFFECT_WAIT
from runstone.core.fold import RunFold
from runstone.core.state import RunState


class Wanted(msgspec.Struct, frozen=True):
    """A command, when it came up, and what becomes of the lease with it."""

    command: Command
    moment: datetime
    lease: Lease | None = None
    instead: Callable[[], Sequence[Wanted]] | None = None
    """What is to be written if this cannot be in time; nothing: it is tried again."""


def fitting(wanted: Sequence[Wanted], state: RunState | RunFold) -> list[Wanted]:
    """Those that fit the run as it is after those before them."""
    view = _View(state)
    return [one for one in wanted if view.fits(one.command)]


class _View:
    """The run as it will be after each command that fits."""

    def __init__(self, state: RunState | RunFold) -> None:
        status = state.run.status if state.run else None
        self._startable = status in ("PENDING", "APPROVED")
        self._running = status == "RUNNING" and not state.handler_returned
        self._closed = False
        """The handler is through: what was under way ended with it."""
        self._state = state
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._failed: set[str] = set()
        self._retried: set[str] = set()
        self._tools: set[str | None] = set()
        self._answers_taken: Counter[str] = Counter()

    def fits(self, command: Command) -> bool:
        """Whether it makes sense here; if so, what comes after it is judged by what it does."""
        match command:
            case commands.StartStep():
                return self._start(command)
            case commands.CompleteStep() | commands.SkipStep() | commands.FailStep():
                return self._end(command)
            case commands.RetryStep():
                return self._retry(command)
            case commands.CallTool():
                return self._call_tool(command)
            case commands.CompleteTool() | commands.FailTool():
                return command.tool_call_id in self._tools
            case commands.RequestEffect():
                return self._open(command.step_key)
            case commands.StartRun():
                started, self._startable, self._running = self._startable, False, True
                return started
            case commands.SuspendRun():
                return self._running and all(map(self._unfinished, command.waiting))
            case commands.PauseRun():
                ran, self._running = self._running, False
                return ran
            case commands.ReturnHandler() | commands.FailRun() | commands.ContinueRun():
                self._closed |= self._running
                ran, self._running = self._running, False
                return ran
            case _:
                return self._running

    def _open(self, key: str) -> bool:
        begun = key in self._begun or key in self._state.open_steps
        return begun and key not in self._ended and not self._closed

    def _due(self, key: str) -> bool:
        return key in self._retried or (key in self._state.due_attempts and key not in self._begun)

    def _unfinished(self, key: str) -> bool:
        return self._open(key) or self._due(key)

    def _start(self, command: commands.StartStep) -> bool:
        key = command.step_key
        known = key in self._state.latest_steps or key in self._begun
        if not self._running or self._open(key) or (known and not self._due(key)):
            return False
        self._begun.add(key)
        self._ended.discard(key)
        self._retried.discard(key)
        if command.wait is not None and (
            self._take_answer(command.wait.name) or self._has_outcome(command.wait.name)
        ):
            self._ended.add(key)
        return True

    def _take_answer(self, name: str | None) -> bool:
        """Whether an answer that came before ends the wait as it begins."""
        if name is None or self._answers_taken[name] >= len(self._state.answers.get(name, ())):
            return False
        self._answers_taken[name] += 1
        return True

    def _has_outcome(self, name: str | None) -> bool:
        """Whether it is the wait for an effect that has ended already."""
        effect = self._state.effects.get((name or "").removeprefix(EFFECT_WAIT))
        return effect is not None and effect.has_outcome

    def _end(self, command: commands.CompleteStep | commands.SkipStep | commands.FailStep) -> bool:
        key = command.step_key
        if not self._open(key):
            return False
        self._ended.add(key)
        if isinstance(command, commands.FailStep):
            self._failed.add(key)
        return True

    def _retry(self, command: commands.RetryStep) -> bool:
        if command.step_key not in self._failed:
            return False
        self._retried.add(command.step_key)
        return True

    def _call_tool(self, command: commands.CallTool) -> bool:
        if not self._open(command.step_key):
            return False
        self._tools.add(command.tool_call_id)
        return True
