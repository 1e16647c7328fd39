"""Triggers that keep the core's laws in the database, made from its own tables (§TRN-33 to §TRN-35).

Events are never updated or deleted, rows in a terminal state are frozen, and a status only moves to
where some sequence of legal moves leads. Which states there are at all, a CHECK of each table says:
a trigger on every insert costs a tenth of the write rate. `0002_guards.sql` of each database is what this
module writes; a test keeps them the same.

PostgreSQL asks the condition of a trigger without calling anything, so its one function is only ever
called to refuse, or in maintenance.
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

IMMUTABLE: Final = {
    "orchestration_events": "events are immutable",
    "step_corrections": "corrections are immutable",
}
"""Tables whose rows never change, and what whoever tries is told."""

_UNLESS_MAINTAINED: Final = "NOT EXISTS (SELECT 1 FROM maintenance)"
_REBUILD: Final = ("REBUILD", "RETENTION")
"""What may change or delete folded rows on PostgreSQL; events are deleted by retention alone."""


def sqlite_guards() -> str:
    """The whole migration."""
    return _migration(_sqlite_statements())


def postgres_guards() -> str:
    """The same laws in PostgreSQL's words; there the tables' CHECKs are made from the core's states too."""
    return _migration(_postgres_statements())


def _migration(statements: Iterator[str]) -> str:
    header = "-- Generated from the core's transition tables by tools/generate.py. Do not edit.\n"
    return header + "".join(f"\n{statement}\n" for statement in statements)


def _sqlite_statements() -> Iterator[str]:
    for table, message in IMMUTABLE.items():
        yield from _immutable(table, message)
    for table, machine in GUARDED.items():
        yield _frozen(table, machine, "UPDATE")
        yield _frozen(table, machine, "DELETE")
        yield _moves(table, machine)


def _postgres_statements() -> Iterator[str]:
    yield _REFUSE
    for table, message in IMMUTABLE.items():
        folded = table != "orchestration_events"
        yield _refusal(table, "no_update", "UPDATE", message, doors=_REBUILD if folded else ())
        yield _refusal(table, "no_delete", "DELETE", message, doors=_REBUILD if folded else ("RETENTION",))
        yield _refusal(table, "no_truncate", "TRUNCATE", message)
    yield from _head_guards()
    for table, machine in GUARDED.items():
        yield from _machine_guards(table, machine)


def _head_guards() -> Iterator[str]:
    """A stream's head only moves on, and its tenant stays (§TEN-3)."""
    back = "NEW.last_seq < OLD.last_seq OR NEW.fence < OLD.fence"
    other = "(NEW.id, NEW.tenant_id) <> (OLD.id, OLD.tenant_id)"
    message = "the head of a stream does not go back"
    yield _refusal("streams", "no_way_back", "UPDATE", message, f"{back} OR {other}")
    message = "a stream does not vanish"
    yield _refusal("streams", "no_delete", "DELETE", message, doors=("RETENTION",))
    yield _refusal("streams", "no_truncate", "TRUNCATE", message)


def _machine_guards(table: str, machine: Machine) -> Iterator[str]:
    ended = f"OLD.status IN ({_listed(machine.terminal)})"
    frozen = f"this {machine.aggregate} has ended and is frozen"
    yield f"ALTER TABLE runstone.{table} ADD CONSTRAINT {table}_states CHECK (\n    {_states(machine)}\n);"
    if machine is RUN:
        yield (
            "ALTER TABLE runstone.runs ADD CONSTRAINT runs_exit_reason CHECK (\n"
            "    status NOT IN ('FAILED', 'CANCELLED') OR exit_reason IS NOT NULL\n);"
        )
    yield _refusal(table, "frozen_update", "UPDATE", frozen, ended, doors=_REBUILD)
    yield _refusal(table, "frozen_delete", "DELETE", frozen, ended, doors=_REBUILD)
    yield _refusal(
        table, "no_truncate", "TRUNCATE", f"rows of a {machine.aggregate} that has ended are frozen"
    )
    message = f"no such transition of this {machine.aggregate}"
    moved = f"OLD.status IS DISTINCT FROM NEW.status AND NOT ({_allowed(machine)})"
    yield _refusal(table, "moves", "UPDATE OF status", message, moved)


def _states(machine: Machine) -> str:
    return f"status IN ({_listed(frozenset(machine.states))})"


def _refusal(
    table: str, name: str, action: str, message: str, condition: str = "", doors: tuple[str, ...] = ()
) -> str:
    """A trigger that refuses, but for maintenance of the kinds named."""
    each = "STATEMENT" if action == "TRUNCATE" else "ROW"
    when = f" WHEN (\n    {condition}\n)" if condition else ""
    arguments = ", ".join(f"'{argument}'" for argument in (message, *doors))
    return (
        f"CREATE TRIGGER {table}_{name} BEFORE {action} ON runstone.{table}\n"
        f"FOR EACH {each}{when} EXECUTE FUNCTION runstone.refuse({arguments});"
    )


_REFUSE: Final = """\
-- Refuses what a trigger found, unless maintenance of a kind that its further arguments name is under way.
CREATE FUNCTION runstone.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_NARGS > 1 AND EXISTS (SELECT 1 FROM runstone.maintenance WHERE kind = ANY (TG_ARGV[1:])) THEN
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '%', TG_ARGV[0]
        USING SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END $$;"""


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
        f"this {machine.aggregate} has ended and is frozen",
    )


def _moves(table: str, machine: Machine) -> str:
    return _trigger(
        f"{table}_moves",
        f"BEFORE UPDATE OF status ON {table}",
        f"OLD.status <> NEW.status AND NOT ({_allowed(machine)})",
        f"no such transition of this {machine.aggregate}",
    )


def _allowed(machine: Machine) -> str:
    return " OR ".join(
        f"(OLD.status = '{state}' AND NEW.status IN ({_listed(machine.reachable(state))}))"
        for state in machine.states
        if state not in machine.terminal
    )


def _trigger(name: str, moment: str, condition: str, message: str) -> str:
    return (
        f"CREATE TRIGGER {name} {moment}\n"
        f"WHEN {condition}\n"
        f"BEGIN\n    SELECT RAISE(ABORT, '{message}');\nEND;"
    )


def _listed(states: frozenset[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))
