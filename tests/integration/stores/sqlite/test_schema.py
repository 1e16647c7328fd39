"""The file itself: tables that mirror the core's structs, and settings under which nothing is lost."""

from __future__ import annotations

import sqlite3
import time
import types
import typing
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Raw

from runstone.stores.sql import migrations
from runstone.stores.sqlite import commits
from runstone.stores.sqlite.files import APPLICATION_ID, open_reader, open_writer
from runstone.stores.sqlite.rows import CHECKPOINTS, EVENTS, ROWS, STREAMS, TOMBSTONES, Table
from tests.integration.stores.sqlite import scene

TABLES: Final[list[Table[Any]]] = [EVENTS, STREAMS, CHECKPOINTS, TOMBSTONES, *ROWS.values()]
MIRRORED: Final = {table.name: table for table in TABLES}

OPERATIONAL: Final = {
    "run_queue": {"owner", "attempts"},
    "outbox_events": {"owner", "fence", "held_until", "claims"},
}
"""Columns that no event tells of: leases, safe to lose."""

OF_ITS_OWN: Final = {
    "workers": {"id", "lease_until"},
    "maintenance": {"id", "reason", "over"},
    "migrations": {"version", "name", "checksum"},
}
"""Tables without a struct."""

GIVEN_BY_STORE: Final = {"orchestration_events": {"sequence_number", "persisted_at"}}
"""Columns that are never null, of fields that are none until the store has the event."""

SQL_TYPES: Final[dict[Any, str]] = {
    **dict.fromkeys((str, Raw, Any), "TEXT"),
    **dict.fromkeys((int, bool, datetime), "INTEGER"),
    bytes: "BLOB",
}


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(str(path))) as connection:
        yield connection


def columns(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, bool]]:
    """The type of each column, and whether it may be null."""
    info = connection.execute(f"PRAGMA table_info({table})")
    return {name: (kind, not (required or key)) for _, name, kind, required, _, key in info}


def tables(connection: sqlite3.Connection) -> dict[str, bool]:
    """All tables, and which of them are strict."""
    listed = connection.execute("SELECT name, strict FROM pragma_table_list WHERE type = 'table'")
    return {name: bool(strict) for name, strict in listed if not name.startswith("sqlite_")}


def field(hint: Any) -> tuple[str, bool]:
    """What a struct's field is in SQL, and whether it may be null."""
    if typing.get_origin(hint) is typing.Annotated:
        return field(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (kind,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        return field(kind)[0], True
    if typing.get_origin(hint) is typing.Literal:
        return "TEXT", False
    return SQL_TYPES[hint], hint is Any


@pytest.mark.parametrize("name", MIRRORED)
def test_a_tables_columns_are_its_structs_fields(name: str, connection: sqlite3.Connection) -> None:
    table = MIRRORED[name]
    hints = typing.get_type_hints(table.struct, include_extras=True)
    wanted = {column: field(hints[of]) for column, of in zip(table.columns, table.fields, strict=True)}
    wanted |= {given: (wanted[given][0], False) for given in GIVEN_BY_STORE.get(name, ())}
    found = columns(connection, name)
    assert {column: found.pop(column, None) for column in wanted} == wanted
    assert found.keys() == OPERATIONAL.get(name, set())


def test_there_is_no_table_that_nobody_declared(connection: sqlite3.Connection) -> None:
    assert tables(connection).keys() == MIRRORED.keys() | OF_ITS_OWN.keys()
    for name, declared in OF_ITS_OWN.items():
        assert columns(connection, name).keys() == declared


def test_every_table_is_strict(connection: sqlite3.Connection) -> None:
    assert [name for name, strict in tables(connection).items() if not strict] == []
    with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value in INTEGER column"):
        connection.execute("INSERT INTO workers (id, lease_until) VALUES ('w', 'soon')")


@pytest.mark.parametrize("open_connection", [open_writer, open_reader])
def test_every_connection_is_durable_and_guarded(open_connection: Any, path: Path) -> None:
    with closing(open_writer(str(path))), closing(open_connection(str(path))) as connection:
        settings = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers")
        found = [connection.execute(f"PRAGMA {setting}").fetchone()[0] for setting in settings]
    assert found == ["wal", 2, 1, 1]  # 2 is FULL: the log is synced at every commit


def test_a_reader_cannot_write(path: Path) -> None:
    open_writer(str(path)).close()
    with closing(open_reader(str(path))) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO workers (id, lease_until) VALUES ('w', 1)")


def test_the_file_says_what_it_is(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    header = path.read_bytes()[:72]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
    assert APPLICATION_ID.to_bytes(4, "big") == b"RUNS"
    assert int.from_bytes(header[60:64], "big") == len(migrations("sqlite"))


def test_the_summary_of_a_run_is_computed_when_it_is_read(connection: sqlite3.Connection, path: Path) -> None:
    """§ENT-12"""
    commits.apply(connection, list(map(commits.Packed, scene.usual(1))), 0, str(path))
    (summary,) = connection.execute(
        "SELECT duration_seconds, total_steps, failed_steps, success_rate FROM run_summary"
    ).fetchall()
    ((started, completed, total, failed),) = connection.execute(
        "SELECT started_at, completed_at, total_steps, failed_steps FROM runs"
    ).fetchall()
    now = time.time()
    duration, *rest = summary
    assert duration == pytest.approx((completed / 1e6 if completed else now) - started / 1e6, abs=60)
    assert rest == [total, failed, pytest.approx((total - failed) / total)]
