"""The guards are written from the core's tables, and the migration holds what was written."""

from __future__ import annotations

import re

from runstone.core.transitions import MACHINES
from runstone.stores.guards import GUARDED, sqlite_guards
from runstone.stores.sql import migrations


def test_the_migration_is_what_the_core_says_today() -> None:
    (migration,) = (one for one in migrations("sqlite") if one.name == "0002_guards")
    assert migration.script == sqlite_guards()


def test_every_machine_guards_a_table() -> None:
    assert {machine.entity for machine in GUARDED.values()} == {machine.entity for machine in MACHINES}


def test_every_guarded_table_has_every_guard() -> None:
    made = set(re.findall(r"^CREATE TRIGGER (\w+)", sqlite_guards(), re.MULTILINE))
    guards = ("frozen_update", "frozen_delete", "moves")
    wanted = {f"{table}_{guard}" for table in GUARDED for guard in guards}
    immutable = ("orchestration_events", "step_corrections")
    wanted |= {f"{table}_no_{action}" for table in immutable for action in ("update", "delete")}
    assert made == wanted


def test_every_state_is_named_in_its_tables_guards() -> None:
    for table, machine in GUARDED.items():
        about = "".join(part for part in sqlite_guards().split("\n\n") if f" ON {table}\n" in part)
        assert set(re.findall(r"'([A-Z_]+)'", about)) == set(machine.states)


def test_each_table_checks_for_the_states_of_its_machine() -> None:
    (tables,) = (one.script for one in migrations("sqlite") if one.name == "0001_tables")
    for table, machine in GUARDED.items():
        columns = tables.partition(f"CREATE TABLE {table} (")[2].partition(") STRICT")[0]
        (states,) = re.findall(r"CHECK \(\s*status IN \(([^)]*)\)\s*\)", columns)
        assert re.findall(r"'(\w+)'", states) == list(machine.states)
