"""What goes wrong below the store, in the port's words (§STO-3)."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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
    StoreUnusable,
)

_NOT_UTF8: Final = "Could not decode to UTF-8"
_RESTORE: Final = "Restore a backup, or import bundles into a new file"


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turns the driver's errors into the port's."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise translate(error, path) from error
    except UnicodeDecodeError as error:  # SQLite quotes the damaged text that it complains of
        raise StoreCorrupt(f"{path}: {error}. {_RESTORE}") from error


def is_outage(error: Exception) -> bool:
    """Whether it is the store that failed, and not what it was given."""
    outages = (sqlite3.OperationalError, sqlite3.InternalError, OSError, MemoryError)
    return isinstance(error, outages) or type(error) is sqlite3.DatabaseError


def translate(error: Exception, path: str, *, committing: bool = False) -> StoreError:
    """The port's word for an error; while committing, a failed sync leaves the outcome open."""
    if not is_outage(error):
        found = _refusal(error)
    elif isinstance(error, OSError):
        found = _of_system(error, path)
    else:
        found = _of_driver(error, path, committing)
    found.__cause__ = error
    return found


def _of_driver(error: Exception, path: str, committing: bool) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or ""
    said = f"{path}: {error}"
    if name.startswith("SQLITE_FULL"):
        return StoreFull(f"{said}. Free some space; nothing that was acknowledged is lost")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StoreReadOnly(f"{said}. Check that its folder exists, and the permissions of both")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or str(error).startswith(_NOT_UTF8):
        return StoreCorrupt(f"{said}. {_RESTORE}")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{said}. Another program holds the file, and did not let go in time")
    if name.startswith("SQLITE_IOERR") and committing:
        return OutcomeUnknown(f"{said}. It is unknown what of this commit is on the disk: submit it again")
    return StoreUnusable(f"{said} ({name or type(error).__name__})")


def _of_system(error: OSError, path: str) -> StoreError:
    said = f"{path}: {error}"
    if isinstance(error, TimeoutError):
        return StoreBusy(said)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreReadOnly(f"{said}. Check the permissions of its folder, and of the lock files in it")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{said}. Free some space; nothing that was acknowledged is lost")
    return StoreUnusable(said)


def _refusal(error: Exception) -> StoreError:
    text = str(error)
    if text.startswith("UNIQUE constraint failed: "):
        return DuplicateKey(text.removeprefix("UNIQUE constraint failed: "))
    return CommitRefused(f"The store's own rules refuse this: {text}")
