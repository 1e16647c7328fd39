"""A clock in step with the database's (§ORD-24).

Hosts disagree about the time, and leases are promises between hosts. So each heartbeat compares this
machine's clock with the server's and remembers by how much it is off. It is corrected only when the
difference is more than the way there and back can explain.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from runstone.ports.clock import Clock, SystemClock
from runstone.stores.postgres.connections import Connection
from runstone.stores.sql import statements

_SQL: Final = statements("postgres")


class DatabaseClock:
    """This machine's clock, corrected to tell the server's time."""

    def __init__(self, local: Clock | None = None) -> None:
        self._local = local or SystemClock()
        self.offset = timedelta(0)
        """How far the server is ahead of this machine."""

    def now(self) -> datetime:
        return self._local.now() + self.offset

    def read(self) -> datetime:
        """This machine's own time: to be asked before and after the server is."""
        return self._local.now()

    def compare(self, before: datetime, server: datetime, after: datetime) -> None:
        """The server told its time at some moment between these two of ours."""
        doubt = (after - before) / 2
        offset = server - (before + doubt)
        if abs(offset - self.offset) > doubt:
            self.offset = offset

    async def ask(self, connection: Connection) -> None:
        """Compares itself with the server."""
        before = self.read()
        server: datetime = await connection.fetchval(_SQL["time"])
        self.compare(before, server, self.read())
