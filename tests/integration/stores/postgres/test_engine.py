"""The engine on PostgreSQL, as a fleet of two: every run ends once, whoever works on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import runstone as rs
from runstone.engine.functions import Handler
from runstone.stores.postgres import PostgresStore
from tests.integration.stores.sqlite import scene

PATIENCE = 60.0


def shop(seen: Counter[int]) -> tuple[rs.App, Handler[Any, Any]]:
    app = rs.App("shop", version="1")

    @app.specialist()
    async def double(number: int) -> int:
        seen[number] += 1
        return 2 * number

    @app.on()
    async def work(run: rs.Run, number: int) -> int:
        total = 0
        for _ in range(3):
            total += await run.call(double, number)
        if number % 5 == 0:
            total += await run.wait("more", int, timeout=rs.days(1))
        return total

    return app, work


async def test_two_workers_share_the_runs_of_one_database(store: PostgresStore, other: PostgresStore) -> None:
    seen: Counter[int] = Counter()
    (here, work), (there, _) = shop(seen), shop(seen)
    async with (
        here.running(store, worker=False),
        there.running(other),
        asyncio.timeout(PATIENCE),
    ):
        handles = [await here.start(work, number) for number in range(40)]
        waiting = handles[::5]
        for handle in waiting:
            await handle.answer("more", 100)
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert results == [6 * number + (100 if number % 5 == 0 else 0) for number in range(40)]
    assert seen == dict.fromkeys(range(40), 3)
    assert await store.count_runs() == {"COMPLETED": 40}
    assert await scene.problems(store) == []  # type: ignore[arg-type]
