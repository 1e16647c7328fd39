"""An effect that kills whoever executes it, for real (§OUT-71, §OUT-72)."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import pytest

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.stores.sqlite import SqliteStore
from tests.integration.outbox.deadly import Touch

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).parents[3]


async def request(path: Path) -> None:
    """A run that asks for three effects, the second of which is deadly."""
    app = rs.App("laboratory")
    asked = asyncio.Event()

    @app.on()
    async def experiment(run: rs.Run) -> None:
        for deadly in (False, True, False):
            await run.effect(Touch(deadly=deadly), critical=not deadly)
        asked.set()

    async with await SqliteStore.open(path) as store, app.running(store, outbox=False):
        await app.start(experiment)
        await asyncio.wait_for(asked.wait(), 60)


async def dispatch(path: Path, deaths: int) -> int:
    """How a dispatcher ended, that came after so many others."""
    command = (sys.executable, "-m", "tests.integration.outbox.deadly", str(path), str(deaths))
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        return await asyncio.wait_for(child.wait(), 60)
    finally:
        if child.returncode is None:
            child.kill()


async def test_it_is_given_up_and_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await request(path)
    ends = [await dispatch(path, 0)]
    while ends[-1] != 0 and len(ends) < 10:
        ends.append(await dispatch(path, len(ends)))
    assert ends == [-signal.SIGKILL] * 5 + [0]
    async with await SqliteStore.open(path) as store:
        effects = await store.list_effects(DEFAULT_TENANT)
    first, deadly, last = sorted(effects, key=lambda effect: effect.id)
    assert (first.status, deadly.status, last.status) == ("COMPLETED", "DEAD_LETTER", "COMPLETED")
    error = msgspec.json.decode(deadly.error_details or b"")
    assert error["code"] == "DISPATCHER_LOST"
    assert "died 5 times" in error["message"]
