"""What a pen writes in the place of commands that can never be written as they are.

An effect's key that stands for another effect fails the step that asks for it. What no event can hold
fails the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeGuard

import msgspec

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Lease
from runstone.core.payloads import ErrorInfo
from runstone.engine.failures import error_info
from runstone.engine.fitting import Wanted
from runstone.errors import InvalidPayload, RunstoneError


def without_taken_key(
    taken: Sequence[Wanted], refusal: RunstoneError
) -> tuple[Sequence[Wanted], Wanted | None]:
    """The same, but for the effect whose key stands for another one: the step that asks fails (§IDM-27).

    A refusal does not say which one it is. Where several have keys, this also gives where the next commit
    has to stop, so that the first of them goes by itself.
    """
    named = [one.command for one in taken if _has_own_key(one.command)]
    if not named:
        raise refusal
    if len(named) == 1:
        return _without_effect(taken, named[0], refusal), None
    steps = [getattr(one.command, "step_key", None) for one in taken]
    return taken, taken[steps.index(named[1].step_key)]


def unstorable(taken: Sequence[Wanted], error: InvalidPayload, now: datetime) -> Sequence[Wanted]:
    """What no event can hold fails the run: it would be the same for the next worker (§ENG-13)."""
    started = [one for one in taken if isinstance(one.command, commands.StartRun)]
    return [*started, Wanted(commands.FailRun(error=error_info(error)), now, Lease(owner=None))]


def _has_own_key(command: Command) -> TypeGuard[commands.RequestEffect]:
    return isinstance(command, commands.RequestEffect) and command.effect_key is not None


def _without_effect(
    wanted: Sequence[Wanted], effect: commands.RequestEffect, refusal: RunstoneError
) -> list[Wanted]:
    """The step fails that asks for this effect; its start stays."""
    message = f"The key {effect.effect_key!r} stands for another effect: give this one a key of its own"
    error = ErrorInfo(category="VALIDATION", code="EFFECT_KEY_TAKEN", message=f"{message} ({refusal})")
    kept: list[Wanted] = []
    for one in wanted:
        own = getattr(one.command, "step_key", None) == effect.step_key
        if not own or isinstance(one.command, commands.StartStep):
            kept.append(one)
        elif isinstance(one.command, commands.CompleteStep):
            failed = commands.FailStep(step_key=effect.step_key, error=error)
            kept.append(msgspec.structs.replace(one, command=failed))
    return kept
