"""The production store: one PostgreSQL database, any number of processes on any number of hosts."""

from runstone.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
