"""The reference store passes every suite: they ask for nothing impossible."""

import pytest

from runstone.ports.clock import Clock
from runstone.testing.conformance import (
    EventLogSuite,
    HealthSuite,
    HostSuite,
    OpenStore,
    QueriesSuite,
    RetentionSuite,
)
from runstone.testing.memory import MemoryData, MemoryStore


class TestMemoryStore(EventLogSuite, HostSuite, QueriesSuite, RetentionSuite, HealthSuite):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        data = MemoryData()

        async def open_store(clock: Clock) -> MemoryStore:
            return MemoryStore(data, clock=clock)

        return open_store
