"""The production store passes every suite, on the newest server and on an older one."""

import pytest

from runstone.ports.clock import Clock
from runstone.stores.postgres import PostgresStore
from runstone.testing.conformance import (
    EventLogSuite,
    HealthSuite,
    HostSuite,
    OpenStore,
    QueriesSuite,
    RetentionSuite,
)


def opens(url: str) -> OpenStore:
    async def open_store(clock: Clock) -> PostgresStore:
        return await PostgresStore.open(url, clock=clock)

    return open_store


class TestPostgresStore(EventLogSuite, HostSuite, QueriesSuite, RetentionSuite, HealthSuite):
    """With no more rights than the engine's role has (§TEN-13)."""

    @pytest.fixture
    def open_store(self, postgres_engine_url: str) -> OpenStore:
        return opens(postgres_engine_url)


class TestOlderPostgresStore(EventLogSuite, HostSuite, QueriesSuite, RetentionSuite, HealthSuite):
    @pytest.fixture
    def open_store(self, postgres_older_url: str) -> OpenStore:
        return opens(postgres_older_url)
