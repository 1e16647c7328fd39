"""Triggers that keep the core's laws in the database, made from its own tables (§TRN-33 to §TRN-35).

Events are never updated or deleted, rows in a terminal state are frozen, and a status only moves to
where some sequence of legal moves leads. Which states there are at all, a CHECK of each table says:
a trigger on every insert costs a tenth of the write rate. `0002_guards.sql` is what this module
writes; a test keeps the two the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from runstone.core.transitions import EFFECT, RUN, SIGNAL, STEP, TOOL_CALL, Machine

GUARDED: Final[dict[str, Machine]] = {
    "signals": SIGNAL,
    "runs": RUN,
    "steps": STEP,
    "effects": EFFECT,
    "tool_calls": TOOL_CALL,
}
"""The machine of each table that has a status of its own."""

_UNLESS_MAINTAINED: Final = "NOT EXISTS (SELECT 1 FROM maintenance)"


def sqlite_guards() -> str:
    """The whole migration."""
    header = "-- Generated from the core's transition tables by tools/generate.py. Do not edit.\n"
    return header + "".join(f"\n{statement}\n" for statement in _statements())


def _statements() -> Iterator[str]:
    yield from _immutable("orchestration_events", "events are immutable")
    yield from _immutable("step_corrections", "corrections are immutable")
    for table, machine in GUARDED.items():
        yield _frozen(table, machine, "UPDATE")
        yield _frozen(table, machine, "DELETE")
        yield _moves(table, machine)


def _immutable(table: str, message: str) -> Iterator[str]:
    for action in ("UPDATE", "DELETE"):
        yield _trigger(
            f"{table}_no_{action.lower()}", f"BEFORE {action} ON {table}", _UNLESS_MAINTAINED, message
        )


def _frozen(table: str, machine: Machine, action: str) -> str:
    return _trigger(
        f"{table}_frozen_{action.lower()}",
        f"BEFORE {action} ON {table}",
        f"OLD.status IN ({_listed(machine.terminal)}) AND {_UNLESS_MAINTAINED}",
        f"this {machine.entity} has ended and is frozen",
    )


def _moves(table: str, machine: Machine) -> str:
    allowed = " OR ".join(
        f"(OLD.status = '{state}' AND NEW.status IN ({_listed(machine.reachable(state))}))"
        for state in machine.states
        if state not in machine.terminal
    )
    return _trigger(
        f"{table}_moves",
        f"BEFORE UPDATE OF status ON {table}",
        f"OLD.status <> NEW.status AND NOT ({allowed})",
        f"no such transition of this {machine.entity}",
    )


def _trigger(name: str, moment: str, condition: str, message: str) -> str:
    return (
        f"CREATE TRIGGER {name} {moment}\n"
        f"WHEN {condition}\n"
        f"BEGIN\n    SELECT RAISE(ABORT, '{message}');\nEND;"
    )


def _listed(states: frozenset[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))
