"""The folder store passes the suite of the one part it has, with its thread and without."""

from pathlib import Path

import pytest

from runstone.ports.clock import Clock
from runstone.stores.folder import FolderStore
from runstone.testing.conformance import EventLogSuite, OpenStore


class TestFolderStore(EventLogSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_store(clock: Clock) -> FolderStore:
            return await FolderStore.open(tmp_path / "store", clock=clock)

        return open_store


class TestInlineFolderStore(EventLogSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_store(clock: Clock) -> FolderStore:
            return await FolderStore.open(tmp_path / "store", clock=clock, inline=True)

        return open_store
