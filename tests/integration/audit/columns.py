"""The columns of a store: which of them are history, and so have to be proven."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from runstone.stores.sqlite.files import open_writer

OPERATIONAL: Final = {
    "streams": {"fence"},
    "orchestration_events": {"sequence_number", "persisted_at"},
    "outbox_events": {"owner", "fence", "held_until", "claims"},
    "run_queue": {"owner", "attempts"},
}
"""What the log says nothing of: leases, and a store's own place and time for an event."""

NO_HISTORY: Final = {"workers", "run_checkpoints", "migrations", "maintenance", "sqlite_sequence"}
"""Tables of the store's own."""


def history(*, nullable: bool = False) -> list[tuple[str, str]]:
    """Table and column of everything that `verify` has to prove; or of what may be NULL of it."""
    with closing(open_writer(":memory:")) as connection:
        return [
            (table, column)
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
            if table not in NO_HISTORY
            for _, column, _, required, _, key in connection.execute(f"PRAGMA table_info({table})").fetchall()
            if column not in OPERATIONAL.get(table, set())
            if not nullable or not (required or key)
        ]


def dump(path: Path, *, operational: bool = False) -> dict[str, list[tuple[object, ...]]]:
    """All that is history in a file, as SQLite reads it; with leases and the like if asked for."""
    by_table: dict[str, list[str]] = {}
    for table, column in history():
        by_table.setdefault(table, []).append(column)
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: sorted(
                connection.execute(f"SELECT {'*' if operational else ', '.join(names)} FROM {table}"),
                key=repr,
            )
            for table, names in by_table.items()
        }


def key_of(connection: sqlite3.Connection, table: str) -> str:
    """The primary key of a table."""
    found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
    (key,) = found
    return str(key)


class Behind:
    """Writes behind the store's back: no guards, no foreign keys; all guards stand again afterwards."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA ignore_check_constraints = ON")
        self._connection.execute("PRAGMA foreign_keys = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("BEGIN")

    def __enter__(self) -> sqlite3.Connection:
        named = self._connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        self._guards = [sql for _, sql in named]
        for name, _ in named:
            self._connection.execute(f"DROP TRIGGER {name}")
        return self._connection

    def __exit__(self, *error: object) -> None:
        for guard in self._guards:
            self._connection.execute(guard)
        self._connection.execute("COMMIT")
        self._connection.close()
