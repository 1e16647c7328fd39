"""The embedded store: one SQLite file, any number of processes, nothing to configure."""

from runstone.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
