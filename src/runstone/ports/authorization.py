"""Who may do what to a run. A refusal is recorded, with who and why (§ENG-26)."""

from __future__ import annotations

from typing import Protocol

from runstone.core.payloads import ControlKind
from runstone.core.run import Run


class Authorization(Protocol):
    """Decides before a control signal is taken in."""

    async def objection(self, sender: str, kind: ControlKind, run: Run) -> str | None:
        """Why the sender may not do that to the run; nothing if they may."""
        ...


class AllowAll:
    """The embedded default: whoever can reach the store may do anything."""

    async def objection(self, sender: str, kind: ControlKind, run: Run) -> str | None:
        return None
