"""Opening a SQLite file: durable settings, migrations, and what its schema has to be."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Final, TypeAlias

from runstone.errors import StoreTooNew, StoreUnusable
from runstone.stores.sql import Migration, migrations, statements
from runstone.stores.sqlite.faults import translated

APPLICATION_ID: Final = 0x52554E53
"""`RUNS`, in the file's header: tells a Runstone store from any other SQLite file."""

Turn: TypeAlias = Callable[[], AbstractContextManager[None]]
"""What a writer goes through before it asks for SQLite's lock."""

BUSY_SECONDS: Final = 30.0
"""How long a writer waits for others before it gives up."""

NOTICE_SECONDS: Final = 2.0
"""How long it waits before it says so."""

STATEMENTS_KEPT: Final = 256
CHECKPOINT_PAGES: Final = 4000
LOG_BYTES: Final = 64 * 1024 * 1024
"""How long the write-ahead log may stay; a checkpoint of `CHECKPOINT_PAGES` keeps it well below that."""

_SQL: Final = statements("sqlite")
_MIGRATIONS_TABLE: Final = """
CREATE TABLE IF NOT EXISTS migrations (
    version     INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    checksum    TEXT NOT NULL
) STRICT
"""


def connect(path: str) -> sqlite3.Connection:
    """A connection whose commits survive the loss of power.

    Transactions are opened by hand (`isolation_level=None`); threads hand a connection over
    whole and never share it. With recursive triggers, `INSERT OR REPLACE` asks the guards before
    it deletes what it replaces.
    """
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_KEPT,
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def open_writer(path: str, turn: Turn = nullcontext) -> sqlite3.Connection:
    """The connection that writes: the file is created or brought up to date if need be.

    That takes a turn, for SQLite refuses at once whoever changes a file's journal beside another.
    """
    with translated(path):
        connection = connect(path)
        try:
            if not _is_ready(connection, path):
                with turn():
                    _keep_log(connection, path)
                    migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _is_ready(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the file is as it has to be; refuses what is not ours before anything is changed."""
    known = migrations("sqlite")
    connection.execute("BEGIN")
    try:
        version = _version(connection, path)
        if version == len(known):
            _check_checksums(connection, known)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return version == len(known) and _journal_mode(connection) == "wal"


def _journal_mode(connection: sqlite3.Connection, change: str = "") -> str:
    mode: str = connection.execute(f"PRAGMA journal_mode{change}").fetchone()[0]
    return mode


def _keep_log(connection: sqlite3.Connection, path: str) -> None:
    mode = _journal_mode(connection, " = WAL")
    if mode != ("memory" if is_memory(path) else "wal"):
        raise StoreUnusable(f"{path}: SQLite cannot keep a write-ahead log on this file system")


def open_reader(path: str) -> sqlite3.Connection:
    """A connection that can only read."""
    with translated(path):
        connection = connect(path)
        connection.execute("PRAGMA query_only = ON")
        return connection


def migrate(connection: sqlite3.Connection, path: str = ":memory:") -> None:
    """Runs the migrations that the file has not seen, in one transaction under the writer's lock."""
    known = migrations("sqlite")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path)
        connection.execute(_MIGRATIONS_TABLE)
        _check_checksums(connection, known)
        for migration in known[version:]:
            for statement in split(migration.script):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migrations (version, name, checksum) VALUES (?, ?, ?)",
                (migration.version, migration.name, migration.checksum),
            )
        connection.execute(f"PRAGMA user_version = {len(known)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def pending(path: str) -> list[Migration]:
    """The migrations that a file has not seen; nothing is changed, and nothing made."""
    known = migrations("sqlite")
    if not Path(path).exists():
        return known
    with translated(path), closing(open_reader(path)) as connection:
        return known[_version(connection, path) :]


def split(script: str) -> Iterator[str]:
    """A script's statements; a trigger's body holds semicolons of its own."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in pending.splitlines()):
        raise ValueError(f"a migration ends in the middle of a statement: {pending!r}")


def _version(connection: sqlite3.Connection, path: str) -> int:
    """How many migrations the file has seen; refuses what is not ours, or newer than we are."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application_id != APPLICATION_ID and (tables or application_id or version):
        raise StoreUnusable(f"{path} is a SQLite file of another program: choose another path")
    known = len(migrations("sqlite"))
    if version > known:
        raise StoreTooNew(
            f"{path} has schema version {version}, and this Runstone knows up to {known}: upgrade it"
        )
    return version


def _check_checksums(connection: sqlite3.Connection, known: list[Migration]) -> None:
    applied = dict(connection.execute("SELECT version, checksum FROM migrations"))
    for migration in known:
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            raise StoreUnusable(
                f"Migration {migration.name} was changed after this store had run it: "
                "install the version of Runstone that made the store, or restore the migration"
            )


def schema_problems(connection: sqlite3.Connection) -> list[str]:
    """How the file's tables, indexes and triggers differ from those that the migrations make."""
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(fresh)
        wanted = dict(fresh.execute(_SQL["schema"]))
    finally:
        fresh.close()
    there = dict(connection.execute(_SQL["schema"]))
    missing = [f"{name} is missing" for name in wanted.keys() - there.keys()]
    changed = [f"{name} was changed" for name in wanted.keys() & there.keys() if wanted[name] != there[name]]
    foreign = [f"{name} is not ours" for name in there.keys() - wanted.keys() if name.startswith("trigger ")]
    return sorted(missing + changed + foreign)


def is_memory(path: str | Path) -> bool:
    return str(path) == ":memory:"
