"""Opening a SQLite file: durable settings, migrations, and its errors in the port's words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnusable,
)
from runstone.stores.sql import Migration, migrations

APPLICATION_ID: Final = 0x52554E53
"""`RUNS`, in the file's header: tells a Runstone store from any other SQLite file."""

BUSY_SECONDS: Final = 30.0
STATEMENTS_KEPT: Final = 256
CHECKPOINT_PAGES: Final = 4000

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
    whole and never share it.
    """
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_KEPT,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    return connection


def open_writer(path: str) -> sqlite3.Connection:
    """The connection that writes: the file is created or brought up to date if need be."""
    with translated(path):
        connection = connect(path)
        try:
            _refuse_foreign(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def open_reader(path: str) -> sqlite3.Connection:
    """A connection that can only read."""
    with translated(path):
        connection = connect(path)
        connection.execute("PRAGMA query_only = ON")
        return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Runs the migrations that the file has not seen, in one transaction under the writer's lock."""
    known = migrations("sqlite")
    if _version(connection) == len(known):
        _check_checksums(connection, known)
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_MIGRATIONS_TABLE)
        _check_checksums(connection, known)
        for migration in known[_version(connection) :]:
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


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _refuse_foreign(connection: sqlite3.Connection, path: str) -> None:
    """Leaves alone what is not ours, or newer than we are."""
    version = _version(connection)
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application_id != APPLICATION_ID:
        raise StoreUnusable(f"{path} is a SQLite file of another program: choose another path")
    if version > len(migrations("sqlite")):
        raise StoreTooNew(
            f"{path} has schema version {version}, and this Runstone knows up to "
            f"{len(migrations('sqlite'))}: upgrade it"
        )


def _check_checksums(connection: sqlite3.Connection, known: list[Migration]) -> None:
    applied = dict(connection.execute("SELECT version, checksum FROM migrations"))
    for migration in known:
        if applied.get(migration.version, migration.checksum) != migration.checksum:
            raise StoreUnusable(
                f"Migration {migration.name} was changed after this store had run it: "
                "install the version of Runstone that made the store, or restore the migration"
            )


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turns the driver's errors into the port's."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: str, *, committing: bool = False) -> StoreError:
    """The port's word for a driver's error; while committing, a failed sync leaves the outcome open."""
    name = getattr(error, "sqlite_errorname", None) or ""
    said = f"{path}: {error}"
    if isinstance(error, sqlite3.IntegrityError):
        return _refusal(error)
    if name.startswith("SQLITE_FULL"):
        return StoreFull(f"{said}. Free some space; nothing that was acknowledged is lost")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreReadOnly(f"{said}. Check the permissions of the file and of its folder")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(f"{said}. Restore a backup, or import bundles into a new file")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{said}. Another program held the file for {BUSY_SECONDS:.0f} s")
    if name.startswith("SQLITE_IOERR") and committing:
        return OutcomeUnknown(f"{said}. It is unknown what of this commit is on the disk: submit it again")
    return StoreUnusable(f"{said} ({name})")


def _refusal(error: sqlite3.IntegrityError) -> StoreError:
    text = str(error)
    if text.startswith("UNIQUE constraint failed: "):
        return DuplicateKey(text.removeprefix("UNIQUE constraint failed: "))
    return CommitRefused(f"The store's own rules refuse this: {text}")


def is_memory(path: str | Path) -> bool:
    return str(path) == ":memory:"
