"""A dispatcher in a process of its own, which one effect kills as a crash in native code would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import ClassVar

import runstone as rs
from runstone.core.ids import DEFAULT_TENANT
from runstone.outbox.dispatcher import Dispatcher
from runstone.outbox.services import Service, as_executor
from runstone.ports.bell import Bell
from runstone.ports.clock import SystemClock, new_id
from runstone.stores.sqlite import SqliteStore

LEASE = timedelta(milliseconds=700)
"""Short, for each death is waited out."""


class Touch(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "TOUCH"

    deadly: bool


async def touch(spec: Touch) -> str:
    if spec.deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return "touched"


async def work(path: str) -> None:
    """Until nothing is left to do."""
    store = await SqliteStore.open(path)
    dispatcher = Dispatcher(
        store,
        {Touch.EFFECT_TYPE: Service(spec=Touch, executor=as_executor(touch))},
        worker_id=f"d{os.getpid()}",
        clock=SystemClock(),
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
    asyncio.run(work(sys.argv[1]))
