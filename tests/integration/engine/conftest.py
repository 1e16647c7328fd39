"""A store's file for each test; whatever the test did, its log and rows agree in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runstone.audit.verify import verify_all
from runstone.stores.sqlite import SqliteStore


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    """Where the test's store is; proven afterwards (§ENG-2)."""
    file = tmp_path / "runstone.db"
    yield str(file)
    if not file.exists():
        return
    async with await SqliteStore.open(file) as store:
        findings = [finding async for proof in verify_all(store) for finding in proof.findings]
    assert findings == []
