"""Dispatchers killed with kill -9 while hundreds of effects go out, and a receiver that keeps every request.

None is lost; each key is applied once at a receiver that applies by key; all attempts of one key carry the
same bytes; and no at-most-once effect is called twice, whatever becomes of the process that called.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runstone.core.commit import Context
from runstone.core.effect import Effect
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.verify import verify_causes, verify_stream
from runstone.outbox import operations
from runstone.ports.clock import SystemClock, new_id
from runstone.ports.store import Store
from runstone.runtime import open_store
from tests.acceptance.crew import Crew
from tests.acceptance.mailroom import EFFECTS, app, post
from tests.servers.http_receiver import HttpReceiver, Reply, Request

RUNS = int(os.environ.get("KILL_RUNS", "80"))
LEASE = 1.0
KILLS = 10
SEEDS = range(1, 1 + int(os.environ.get("KILL_SEEDS", "1")))
"""`KILL_RUNS=1000 make twice` sends thousands out, ten times on each store."""
ENOUGH = 180.0


class Receiver(HttpReceiver):
    """Applies by key, once; answers late, badly or not at all, as chance has it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(record=self._keep)
        self._chance = chance
        self.attempts: dict[str, list[Request]] = defaultdict(list)
        self.applied: dict[str, bytes] = {}

    def _keep(self, request: Request) -> None:
        key = request.headers["idempotency-key"]
        self.attempts[key].append(request)
        fate = self._chance.random()
        once = request.path == "/once"
        if fate < 0.04 and not once:  # refused, and not applied
            self.replies.append(Reply(status=503))
            return
        self.applied.setdefault(key, request.body)
        if fate < 0.08 and not once:  # applied, and not said so
            self.replies.append(Reply(status=500))
        elif fate < 0.10:  # applied, and no answer
            self.replies.append(Reply(cut_after=0))
        else:
            self.replies.append(Reply.of_json({"ok": True}))


def hired(location: str, log: Path) -> Crew:
    """Dispatchers of the mailroom."""
    command = [
        *("worker", "tests/acceptance/mailroom.py:app"),
        *("--only", "outbox", "--store", location, "--lease", str(LEASE), "--calls", "16"),
    ]
    return Crew(command, log)


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the store is: a file, or a database of its own."""
    if request.param == "sqlite":
        return str(tmp_path / "mailroom.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@asynccontextmanager
async def opened(location: str) -> AsyncIterator[Store]:
    store = await open_store(location)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_and_nothing_twice(location: str, tmp_path: Path, seed: int) -> None:
    """§OUT-3, §OUT-6, §OUT-13, §OUT-26."""
    chance = random.Random(seed)
    async with Receiver(random.Random(seed)) as receiver, opened(location) as store:
        await _ask(store, receiver.url)
        crew = hired(location, tmp_path / "crew.log")
        try:
            killing = asyncio.ensure_future(_kill(crew, chance, receiver))
            async with asyncio.timeout(ENOUGH):
                await killing
                effects = await _all_done(store, receiver)
        finally:
            codes = crew.end()
        assert set(codes) <= {0, -signal.SIGTERM}, (tmp_path / "crew.log").read_text()[-3000:]
        _check(effects, receiver)
        await _check_log(store)


async def _ask(store: Store, url: str) -> None:
    async with app.running(store, outbox=False):
        orders = [{"url": url, "name": f"order-{number}"} for number in range(RUNS)]
        handles = [await app.start(post, order) for order in orders]
        async with asyncio.timeout(ENOUGH):
            assert {await handle.result() for handle in handles} == {"posted"}


async def _kill(crew: Crew, chance: random.Random, receiver: Receiver) -> None:
    """Each time that some more have gone out: on no machine are they done before the killing is."""
    kills = 0
    while kills < KILLS:
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        if len(receiver.attempts) > RUNS * EFFECTS * (kills + 1) / (KILLS + 1):
            crew.kill_one(chance)
            kills += 1


async def _all_done(store: Store, receiver: Receiver) -> list[Effect]:
    """Waits for the end, and finds out for each unknown outcome what the receiver knows of it."""
    while True:
        effects = [effect async for effect in operations.select(store, DEFAULT_TENANT)]
        left = [effect for effect in effects if effect.status != "COMPLETED"]
        if not left:
            return effects
        assert {effect.status for effect in left} <= {"PENDING", "EXECUTING", "FAILED", "UNKNOWN"}
        for effect in left:
            if effect.status == "UNKNOWN":
                sent = effect.idempotency_key in receiver.applied
                context = Context(now=SystemClock().now(), new_id=new_id, actor="test")
                await operations.apply(store, effect, operations.reconcile(sent, "asked it"), context)
        await asyncio.sleep(0.2)


def _check(effects: list[Effect], receiver: Receiver) -> None:
    keys = {effect.idempotency_key: effect for effect in effects}
    assert len(keys) == len(effects) == RUNS * EFFECTS
    assert set(receiver.applied) == set(keys), "none is lost, and nothing came that nobody asked for"
    bodies: set[bytes] = set()
    for key, requests in receiver.attempts.items():
        assert {(request.path, request.body) for request in requests} == {
            (requests[0].path, requests[0].body)
        }
        assert {request.headers["x-idempotency-key"] for request in requests} == {key}
        bodies.add(requests[0].body)
        if keys[key].delivery == "at_most_once":
            assert len(requests) == 1, f"{key} was called {len(requests)} times"
    assert len(bodies) == RUNS * EFFECTS, "each applied once: no two of them are the same"
    assert any(len(requests) > 1 for requests in receiver.attempts.values()), "nothing was ever sent again"


async def _check_log(store: Store) -> None:
    assert await store.self_check() == []
    completed = 0
    async for tenant_id, correlation_id in store.correlations(DEFAULT_TENANT):
        streams = await store.correlation(tenant_id, correlation_id)
        assert verify_causes(streams) == []
        for stream in streams:
            assert verify_stream(stream, await store.rows(tenant_id, stream.head.stream_id)) == []
            completed += [event.event_type for event in stream.events].count("RUN_COMPLETED")
    assert completed == RUNS
