"""Several worker processes on one file, killed with kill -9 while a hundred runs go through.

What must hold then is what the simulation checks: every run ends once and right, the log is whole, rows are
its fold, and no step is finished twice in one attempt.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from runstone.core.ids import DEFAULT_TENANT
from runstone.core.verify import verify_causes, verify_stream
from runstone.errors import ControlRefused
from runstone.stores.sqlite import SqliteStore
from tests.acceptance.crew import Crew
from tests.acceptance.shop import app, buy, expected

RUNS = int(os.environ.get("KILL_RUNS", "120"))
CALLS = 4
"""What each run notes of its calls outside, at the least."""
LEASE = 1.0
PATIENCE = 300.0
KILLS = 12
SEEDS = range(1, 1 + int(os.environ.get("KILL_SEEDS", "2")))
"""`KILL_RUNS=1000 make kill SEEDS=10` plays more of them, with more runs."""


def hired(store: Path, notes: Path) -> Crew:
    """Workers of the shop."""
    command = [
        *("worker", "tests/acceptance/shop.py:app"),
        *("--store", str(store), "--lease", str(LEASE), "--concurrency", "32"),
        # A disk that hangs for seconds is not what this is about; no step is to fail for it.
        *("--write-latency-budget-ms", "60000"),
    ]
    return Crew(command, store.with_suffix(".log"), {"SHOP_NOTES": str(notes)})


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_run_survives_kill_9(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path, notes = tmp_path / "shop.db", tmp_path / "notes"
    async with app.running(str(path), worker=False):
        handles = [await app.start(buy, order, key=f"order-{order}") for order in range(RUNS)]
        crew = hired(path, notes)
        try:
            killing = asyncio.ensure_future(_kill(crew, chance, notes))
            answering = asyncio.ensure_future(_release(handles))
            async with asyncio.timeout(PATIENCE):
                results = await asyncio.gather(*(handle.result() for handle in handles))
            await killing
            await answering
        finally:
            codes = crew.end()
    assert results == [expected(order) for order in range(RUNS)]
    assert set(codes) <= {0, -signal.SIGTERM}, "one that was only just starting is ended by the signal itself"
    await _check_log(path)


async def _kill(crew: Crew, chance: random.Random, notes: Path) -> None:
    """Each time that some more was done: on no machine is all of it done before the killing is."""
    kills = 0
    while kills < KILLS:
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        if _noted(notes) > RUNS * CALLS * (kills + 1) / (KILLS + 1):
            crew.kill_one(chance)
            kills += 1


def _noted(notes: Path) -> int:
    return notes.read_bytes().count(b"\n") if notes.exists() else 0


async def _release(handles: list) -> None:  # type: ignore[type-arg]
    """Answers every second order, some before they wait."""
    for order, handle in enumerate(handles):
        if order % 2 == 0:
            await handle.answer("release", "released")


async def _check_log(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        assert await store.self_check() == []
        ends: Counter[tuple[str, str | None, int | None]] = Counter()
        runs = 0
        async for tenant_id, correlation_id in store.correlations(DEFAULT_TENANT):
            streams = await store.correlation(tenant_id, correlation_id)
            assert verify_causes(streams) == []
            for stream in streams:
                assert verify_stream(stream, await store.rows(tenant_id, stream.head.stream_id)) == []
                types = [event.event_type for event in stream.events]
                runs += types.count("RUN_COMPLETED")
                ends.update(
                    (event.stream_id, event.step_key, event.logical_attempt)
                    for event in stream.events
                    if event.event_type in ("STEP_COMPLETED", "STEP_FAILED")
                )
        assert runs == RUNS
        assert set(ends.values()) == {1}


async def test_sigterm_drains_and_gives_back(tmp_path: Path) -> None:
    """What cannot finish before the deadline is another worker's at once, with its attempts reset."""
    path = tmp_path / "shop.db"
    async with app.running(str(path), worker=False):
        handle = await app.start(buy, 2)
        crew = hired(path, tmp_path / "notes")
        try:
            async with asyncio.timeout(PATIENCE):
                async for event in handle.events(follow=True):
                    if event.event_type == "RUN_SUSPENDED" and event.run_seq > 20:
                        break
        finally:
            crew.end()
        with pytest.raises(ControlRefused):
            await handle.resume()
        await handle.answer("release", "released")
        crew = hired(path, tmp_path / "notes")
        try:
            async with asyncio.timeout(PATIENCE):
                assert await handle.result() == expected(2)
        finally:
            crew.end()
