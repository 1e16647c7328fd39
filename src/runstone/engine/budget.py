"""How long writing may take, and what becomes of a step whose events take longer (§ENG-33, §ENG-34).

A start may be late: it is written behind the step's back, in order. An outcome may not: when the
budget is used up, the pen asks the log whether it landed, and if not the step fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec

from runstone.core.contract import TYPE_ALIASES
from runstone.errors import SettingsInvalid, StepFailed

MAY_BE_LATE: Final = frozenset({"STEP_STARTED"})
"""All that could ever fail open: a handler must not see an outcome that the log may not have (§ENG-13)."""

MUST_NOT: Final = frozenset({"STEP_COMPLETED", "STEP_FAILED"})

_NAMES: Final = {alias: name for name, alias in TYPE_ALIASES.items()}


class WriteBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a write may take, and which types of event may take longer."""

    limit: timedelta = timedelta(seconds=3)
    fail_open: frozenset[str] = MAY_BE_LATE
    """A step goes on while an event of these types is still to be written."""
    never_fail_open: frozenset[str] = MUST_NOT
    """A step fails when an event of these types cannot be written in time."""

    @property
    def starts_may_be_late(self) -> bool:
        """Whether a step may run before its start is durable."""
        return "STEP_STARTED" in self.fail_open

    def exceeded(self, step_key: str) -> StepFailed:
        """What a step fails with whose outcome could not be written in time."""
        return StepFailed(
            step_key,
            "INFRASTRUCTURE",
            "WRITE_BUDGET_EXCEEDED",
            f"It could not be written within {self.limit.total_seconds():g} s: what it did is not on record",
        )


def write_budget(milliseconds: int, fail_open: Iterable[str], never_fail_open: Iterable[str]) -> WriteBudget:
    """A budget as settings give it; `SettingsInvalid` for one that would break a promise of the log."""
    if milliseconds <= 0:
        raise SettingsInvalid(f"write_latency_budget_ms = {milliseconds} leaves no time: give it 1 or more")
    late = frozenset(_known("fail_open", name) for name in fail_open)
    never = frozenset(_known("never_fail_open", name) for name in never_fail_open)
    if late - MAY_BE_LATE:
        raise SettingsInvalid(
            f"fail_open names {min(late - MAY_BE_LATE)}, which must not be late: only STEP_STARTED may"
        )
    if MUST_NOT - never:
        raise SettingsInvalid(
            f"never_fail_open leaves out {min(MUST_NOT - never)}: outcomes are never left behind"
        )
    if late & never:
        raise SettingsInvalid(f"{min(late & never)} is in fail_open and in never_fail_open: choose one")
    return WriteBudget(limit=timedelta(milliseconds=milliseconds), fail_open=late, never_fail_open=never)


def _known(setting: str, name: str) -> str:
    """The type of event, by either of its names."""
    found = _NAMES.get(name, name)
    if found not in TYPE_ALIASES:
        raise SettingsInvalid(f"{setting} names {name!r}, which is no type of event, such as STEP_STARTED")
    return found
