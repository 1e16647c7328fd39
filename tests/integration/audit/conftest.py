"""One store file for all tests of the audit; each test that changes it has a copy of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.integration.audit import scene


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store, all of it in its one file. Nobody writes to it."""
    path = tmp_path_factory.mktemp("audit") / "pristine.db"
    asyncio.run(scene.build(path, archived=True))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture
def store_path(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    path = tmp_path / "runstone.db"
    path.write_bytes(pristine.read_bytes())
    return path
