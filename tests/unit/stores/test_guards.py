"""The guards are written from the core's tables, and the migration holds what was written."""

from __future__ import annotations

import re

import pytest

from runstone.core.transitions import MACHINES, SCHEDULE
from runstone.stores.guards import GUARDED, IMMUTABLE, postgres_guards, sqlite_guards
from runstone.stores.sql import migrations


@pytest.mark.parametrize(
    ("backend", "guards"), [("sqlite", sqlite_guards()), ("postgres", postgres_guards())]
)
def test_the_migration_is_what_the_core_says_today(backend: str, guards: str) -> None:
    (migration,) = (one for one in migrations(backend) if one.name == "0002_guards")
    assert migration.script == guards


def test_every_machine_guards_a_table() -> None:
    """Unless every state of it leads to every other, in which case there is nothing to refuse."""
    closed = {m.aggregate for m in MACHINES if any(m.reachable(state) != set(m.states) for state in m.states)}
    assert {machine.aggregate for machine in GUARDED.values()} == closed


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_schedule_has_no_other_states(backend: str) -> None:
    (migration,) = (one for one in migrations(backend) if one.name.endswith("_schedules"))
    listed = ", ".join(f"'{state}'" for state in sorted(SCHEDULE.states))
    assert f"CHECK (status IN ({listed}))" in migration.script


def test_every_guarded_table_has_every_guard() -> None:
    made = set(re.findall(r"^CREATE TRIGGER (\w+)", sqlite_guards(), re.MULTILINE))
    guards = ("frozen_update", "frozen_delete", "moves")
    wanted = {f"{table}_{guard}" for table in GUARDED for guard in guards}
    wanted |= {f"{table}_no_{action}" for table in IMMUTABLE for action in ("update", "delete")}
    assert made == wanted


def test_postgres_has_them_too_and_more() -> None:
    """There a table can be truncated, and a stream's head is guarded as well."""
    pattern = re.compile(r"^CREATE TRIGGER (\w+)", re.MULTILINE)
    more = set(pattern.findall(postgres_guards())) - set(pattern.findall(sqlite_guards()))
    truncated = {f"{table}_no_truncate" for table in (*GUARDED, *IMMUTABLE, "streams")}
    assert more == truncated | {"streams_no_way_back", "streams_no_delete"}


def test_postgres_checks_for_the_states_of_each_machine() -> None:
    for table, machine in GUARDED.items():
        pattern = rf"ADD CONSTRAINT {table}_states CHECK \(\s*status IN \(([^)]*)\)"
        (states,) = re.findall(pattern, postgres_guards())
        assert set(re.findall(r"'(\w+)'", states)) == set(machine.states)


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
