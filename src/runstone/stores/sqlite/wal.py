"""The length of SQLite's write-ahead log.

After a checkpoint the log starts anew if nobody is reading from it. Reads that overlap leave no
such moment, and the log would grow for as long as they go on. So when it is long, the writer asks
for that moment and waits a little: who comes meanwhile reads from the file itself.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final

from runstone.stores.sqlite.files import LOG_BYTES, NOTICE_SECONDS

PATIENCE: Final = 0.1
"""For how many seconds commits wait for readers in each attempt to start a long log anew."""

ATTEMPTS: Final = 3
"""How often it is tried, each time that the log has doubled.

SQLite waits for the places of the readers that it found, and would wait in vain where others keep
taking them over; when it looks again, it sees that those need nothing of what is old.
"""


class WriteAheadLog:
    """The log of one file, as the file's writer sees it."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path + "-wal"
        self._limit = LOG_BYTES

    def trim(self) -> None:
        """Starts the log anew if it is too long; if readers do not let it, again when it has doubled."""
        with suppress(sqlite3.Error, OSError):  # what was committed stays so, and a long log is no harm
            size = os.stat(self._path).st_size
            if size > self._limit:
                self._limit = 2 * size
                self._restart()
            elif size <= LOG_BYTES:
                self._limit = LOG_BYTES

    def _restart(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000:.0f}")
        try:
            for _ in range(ATTEMPTS):
                busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
                if not busy:
                    break
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {NOTICE_SECONDS * 1000:.0f}")
