"""A dispatcher in a process of its own, which one effect kills as a crash in native code would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.outbox.dispatcher import Dispatcher
from runstone.outbox.services import Service, as_executor
from runstone.ports.bell import Bell
from runstone.ports.clock import new_id
from runstone.stores.sqlite import SqliteStore

LEASE = timedelta(minutes=10)
"""Longer than any machine stalls: whoever comes next has a clock by which it is over."""


class Later:
    """The clock of this place, set forward."""

    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return datetime.now(UTC) + self._by


class Touch(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "TOUCH"

    deadly: bool


async def touch(spec: Touch) -> str:
    if spec.deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return "touched"


async def work(path: str, deaths: int) -> None:
    """Until nothing is left to do; the leases of those who died before are over."""
    clock = Later(deaths * (LEASE + timedelta(minutes=1)))
    store = await SqliteStore.open(path, clock=clock)
    dispatcher = Dispatcher(
        store,
        {Touch.EFFECT_TYPE: Service(spec=Touch, executor=as_executor(touch))},
        worker_id=f"d{os.getpid()}",
        clock=clock,
        new_id=new_id,
        bell=Bell(),
        lease=LEASE,
        poll=0.02,
    )
    running = asyncio.ensure_future(dispatcher.run())
    while await store.list_effects(DEFAULT_TENANT, status="PENDING"):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await dispatcher.drain()
    await running
    await store.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
