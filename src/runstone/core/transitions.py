"""The state machines, one table each (§TRN-5 to §TRN-10).

Everything that knows about states comes from these tables: the fold, the database's triggers,
the diagrams in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from runstone.errors import StateTransitionError

SignalStatus: TypeAlias = Literal["PENDING", "PROCESSING", "PROCESSED", "FAILED"]
RunStatus: TypeAlias = Literal["PENDING", "APPROVED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]
StepStatus: TypeAlias = Literal["RUNNING", "COMPLETED", "FAILED", "SKIPPED"]
EffectStatus: TypeAlias = Literal[
    "PENDING", "EXECUTING", "COMPLETED", "FAILED", "DEAD_LETTER", "UNKNOWN", "CANCELLED"
]
ToolCallStatus: TypeAlias = Literal["PENDING", "COMPLETED", "FAILED"]
ScheduleStatus: TypeAlias = Literal["ACTIVE", "DONE", "CANCELLED"]

Table: TypeAlias = Mapping[str, frozenset[str]]


class Machine:
    """One aggregate's states and the moves between them."""

    def __init__(self, aggregate: str, initial: str, table: dict[str, tuple[str, ...]]) -> None:
        self.aggregate = aggregate
        self.initial = initial
        self.table: Table = {state: frozenset(targets) for state, targets in table.items()}
        self.terminal = frozenset(state for state, targets in table.items() if not targets)
        """States that nothing leaves: their rows are frozen."""

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.table)

    def check(self, aggregate_id: str, from_state: str, to_state: str) -> None:
        """Refuses a move that is not in the table."""
        if to_state not in self.table[from_state]:
            raise StateTransitionError(self.aggregate, aggregate_id, from_state, to_state)

    def reachable(self, from_state: str) -> frozenset[str]:
        """Every state that some sequence of moves leads to.

        A commit may hold several moves of one aggregate; the database sees only the first and the
        last state, so this is what its triggers allow (§TRN-33).
        """
        found: set[str] = set()
        ahead = set(self.table[from_state])
        while ahead:
            found |= ahead
            ahead = {target for state in ahead for target in self.table[state]} - found
        return frozenset(found)


SIGNAL: Final = Machine(
    "signal",
    "PENDING",
    {
        "PENDING": ("PROCESSING",),
        "PROCESSING": ("PROCESSED", "FAILED"),
        "PROCESSED": (),
        "FAILED": (),
    },
)

RUN: Final = Machine(
    "run",
    "PENDING",
    {
        "PENDING": ("APPROVED", "RUNNING", "FAILED", "CANCELLED"),
        "APPROVED": ("RUNNING", "FAILED", "CANCELLED"),
        "RUNNING": ("PAUSED", "COMPLETED", "FAILED", "CANCELLED"),
        "PAUSED": ("RUNNING", "FAILED", "CANCELLED"),
        "COMPLETED": (),
        "FAILED": (),
        "CANCELLED": (),
    },
)

STEP: Final = Machine(
    "step",
    "RUNNING",
    {
        "RUNNING": ("COMPLETED", "FAILED", "SKIPPED"),
        "COMPLETED": (),
        "FAILED": (),
        "SKIPPED": (),
    },
)

EFFECT: Final = Machine(
    "effect",
    "PENDING",
    {
        "PENDING": ("EXECUTING", "CANCELLED"),
        "EXECUTING": ("COMPLETED", "FAILED", "UNKNOWN"),
        "FAILED": ("EXECUTING", "DEAD_LETTER"),
        "DEAD_LETTER": ("PENDING", "CANCELLED"),
        "UNKNOWN": ("COMPLETED", "PENDING"),
        "COMPLETED": (),
        "CANCELLED": (),
    },
)

TOOL_CALL: Final = Machine(
    "tool call",
    "PENDING",
    {
        "PENDING": ("COMPLETED", "FAILED"),
        "COMPLETED": (),
        "FAILED": (),
    },
)

SCHEDULE: Final = Machine(
    "schedule",
    "ACTIVE",
    {
        "ACTIVE": ("ACTIVE", "DONE", "CANCELLED"),
        "DONE": ("ACTIVE",),
        "CANCELLED": ("ACTIVE",),
    },
)
"""It never ends: its name can be scheduled again."""

MACHINES: Final = (SIGNAL, RUN, STEP, EFFECT, TOOL_CALL, SCHEDULE)
