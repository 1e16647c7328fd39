"""The embedded store passes every suite, in a file with its threads and in memory without any."""

from pathlib import Path

import pytest

from runstone.ports.clock import Clock
from runstone.stores.sqlite import SqliteStore
from runstone.testing.conformance import (
    EventLogSuite,
    HealthSuite,
    HostSuite,
    OpenStore,
    QueriesSuite,
    RetentionSuite,
)


class TestSqliteStore(EventLogSuite, HostSuite, QueriesSuite, RetentionSuite, HealthSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_store(clock: Clock) -> SqliteStore:
            return await SqliteStore.open(tmp_path / "store.db", clock=clock)

        return open_store


class TestInlineSqliteStore(EventLogSuite, HostSuite, QueriesSuite, RetentionSuite, HealthSuite):
    """As a simulation runs it: in the caller's thread."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_store(clock: Clock) -> SqliteStore:
            return await SqliteStore.open(tmp_path / "store.db", clock=clock, inline=True)

        return open_store
