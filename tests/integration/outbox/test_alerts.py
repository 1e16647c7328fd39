"""Alerts about dead letters through Apprise, to a real receiver (§OUT-29)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import runstone as rs
from runstone.outbox.builtin import alert_by_apprise
from runstone.stores.sqlite import SqliteStore
from tests.integration.outbox.test_dispatcher import House, Ring, failed
from tests.servers.http_receiver import HttpReceiver


async def test_operators_hear_of_a_dead_letter(tmp_path: Path) -> None:
    house = House()
    house.failures["front"] = [failed("NO_SUCH_DOOR", retryable=False)]

    @house.app.on()
    async def visit(run: rs.Run) -> None:
        await run.effect(Ring(door="front"))

    async with (
        HttpReceiver() as operators,
        await SqliteStore.open(tmp_path / "house.db") as house.store,
    ):
        notify = alert_by_apprise([f"json://127.0.0.1:{operators.port}", "nonsense"])
        async with house.app.running(house.store, poll=0.01, notify=notify):
            await house.app.start(visit)
            (effect,) = await house.settled("DEAD_LETTER")
            async with asyncio.timeout(60):
                await operators.arrival()
        said = operators.requests[0].json()
    assert said["title"] == "Dead letter: RING"
    assert effect.id in said["message"]
    assert "NO_SUCH_DOOR" in said["message"]
