"""Every error of the driver and of the system has a word in the port (§STO-3)."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnusable,
)
from runstone.stores.sqlite.faults import is_outage, translate, translated

PATH = "/data/runstone.db"


def driver(name: str, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind("what SQLite says")
    error.sqlite_errorname = name
    return error


OUTAGES = [
    (driver("SQLITE_FULL"), StoreFull),
    (driver("SQLITE_READONLY"), StoreReadOnly),
    (driver("SQLITE_READONLY_DIRECTORY"), StoreReadOnly),
    (driver("SQLITE_CANTOPEN"), StoreReadOnly),
    (driver("SQLITE_PERM"), StoreReadOnly),
    (driver("SQLITE_CORRUPT", sqlite3.DatabaseError), StoreCorrupt),
    (driver("SQLITE_CORRUPT_INDEX", sqlite3.DatabaseError), StoreCorrupt),
    (driver("SQLITE_NOTADB", sqlite3.DatabaseError), StoreCorrupt),
    (sqlite3.OperationalError("Could not decode to UTF-8 column 'actor' with text '\\xff'"), StoreCorrupt),
    (driver("SQLITE_BUSY"), StoreBusy),
    (driver("SQLITE_BUSY_SNAPSHOT"), StoreBusy),
    (driver("SQLITE_LOCKED"), StoreBusy),
    (driver("SQLITE_IOERR_READ"), StoreUnusable),
    (driver("SQLITE_ERROR"), StoreUnusable),
    (driver("SQLITE_INTERNAL", sqlite3.InternalError), StoreUnusable),
    (TimeoutError("process 7 has held the lock for over 30 s"), StoreBusy),
    (PermissionError(errno.EACCES, "Permission denied"), StoreReadOnly),
    (OSError(errno.EROFS, "Read-only file system"), StoreReadOnly),
    (OSError(errno.ENOSPC, "No space left on device"), StoreFull),
    (OSError(errno.EMFILE, "Too many open files"), StoreUnusable),
    (MemoryError(), StoreUnusable),
]

REFUSALS = [
    (sqlite3.IntegrityError("UNIQUE constraint failed: runs.tenant_id, runs.key"), DuplicateKey),
    (sqlite3.IntegrityError("FOREIGN KEY constraint failed"), CommitRefused),
    (sqlite3.DataError("string or blob too big"), CommitRefused),
    (sqlite3.InterfaceError("Error binding parameter 1"), CommitRefused),
    (sqlite3.ProgrammingError("Error binding parameter 1"), CommitRefused),
    (OverflowError("Python int too large to convert to SQLite INTEGER"), CommitRefused),
    (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), CommitRefused),
]


@pytest.mark.parametrize(("error", "wanted"), OUTAGES)
def test_an_outage_is_everybodys(error: Exception, wanted: type[StoreError]) -> None:
    found = translate(error, PATH)
    assert type(found) is wanted
    assert str(found).startswith(f"{PATH}: {error}")
    assert found.__cause__ is error
    assert is_outage(error)


@pytest.mark.parametrize(("error", "wanted"), REFUSALS)
def test_a_refusal_is_its_own_callers(error: Exception, wanted: type[StoreError]) -> None:
    found = translate(error, PATH, committing=True)
    assert type(found) is wanted
    assert found.__cause__ is error
    assert not is_outage(error)


def test_a_duplicate_names_the_key() -> None:
    found = translate(REFUSALS[0][0], PATH)
    assert isinstance(found, DuplicateKey)
    assert found.what == "runs.tenant_id, runs.key"


@pytest.mark.parametrize("name", ["SQLITE_IOERR", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE"])
def test_the_outcome_is_unknown_only_while_committing(name: str) -> None:
    assert type(translate(driver(name), PATH, committing=True)) is OutcomeUnknown
    assert type(translate(driver(name), PATH)) is StoreUnusable


def test_a_full_disk_while_committing_is_known_to_have_written_nothing() -> None:
    assert type(translate(driver("SQLITE_FULL"), PATH, committing=True)) is StoreFull


def test_errors_are_translated_at_the_edge_and_others_pass() -> None:
    with pytest.raises(StoreFull), translated(PATH):
        raise driver("SQLITE_FULL")
    with pytest.raises(StoreFull), translated(PATH):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyError), translated(PATH):
        raise KeyError("ours")
