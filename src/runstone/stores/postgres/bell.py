"""The bell between processes: LISTEN and NOTIFY, as a hint and never the truth (§STO-30).

It rings on connections of its own, after the commit: a notice inside the writing transaction would make
all writers queue for one lock. Whatever is rung within a few milliseconds goes as one notice. When the
server cannot be reached, nothing is rung; whoever works polls anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from runstone.errors import RunstoneError
from runstone.ports.bell import Bell
from runstone.stores.postgres.connections import Connection, close
from runstone.stores.postgres.faults import DRIVER
from runstone.stores.sql import statements

CHANNEL: Final = "runstone_bell"
EVERY: Final = 0.005
"""Seconds between two notices of one process."""
MOST: Final = 200
"""Run ids in one notice, which may have 8,000 bytes; of more, the rest goes with the next."""
RETRY: Final = 1.0
"""Seconds before a lost connection is opened again."""
LONGEST: Final = 10.0
"""Seconds that the server may take for a notice; then the connection is taken for lost."""
LOOK_AFTER: Final = 30.0
"""Seconds of silence after which a listener asks whether there still is somebody."""
PARTING: Final = 2.0
"""Seconds that a bell which is stopped has for what was rung: a process may live for one ring only."""

_SQL: Final = statements("postgres")


class PostgresBell(Bell):
    """A bell that rings in this process at once, and in all others of the database a moment later."""

    def __init__(self, open_connection: Callable[[], Awaitable[Connection]]) -> None:
        super().__init__()
        self._open = open_connection
        self._rung: dict[str, None] = {}
        self._pressed = asyncio.Event()
        self._told = asyncio.Event()
        """Whatever was rung is on its way, or nobody can be told."""
        self._told.set()
        self._own: int | None = None
        """The process of the connection that rings: what it says was heard here before."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._listen()), asyncio.ensure_future(self._send())]

    async def stop(self) -> None:
        if self._tasks:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), PARTING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def ring(self, run_id: str) -> None:
        super().ring(run_id)
        if self._tasks:
            self._rung[run_id] = None
            self._told.clear()
            self._pressed.set()

    async def _send(self) -> None:
        connection: Connection | None = None
        try:
            while True:
                await self._pressed.wait()
                self._pressed.clear()
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._open()
                        self._own = connection.get_server_pid()
                    while self._rung:
                        run_ids = list(self._rung)[:MOST]
                        for run_id in run_ids:
                            del self._rung[run_id]
                        await connection.execute(_SQL["ring"], " ".join(run_ids), timeout=LONGEST)
                        await asyncio.sleep(EVERY)
                    self._told.set()
                except (*DRIVER, RunstoneError):
                    self._rung.clear()
                    self._told.set()
                    if connection is not None:
                        connection.terminate()
                    await asyncio.sleep(RETRY)
        finally:
            if connection is not None:
                await close(connection)

    async def _listen(self) -> None:
        while True:
            try:
                connection = await self._open()
            except (*DRIVER, RunstoneError):
                await asyncio.sleep(RETRY)
                continue
            lost = asyncio.Event()
            connection.add_termination_listener(lambda *_, lost=lost: lost.set())
            try:
                async with asyncio.timeout(LONGEST):
                    await connection.add_listener(CHANNEL, self._notified)
                await _until(lost, connection)
            except DRIVER:
                pass
            finally:
                await close(connection)
            await asyncio.sleep(RETRY)

    def _notified(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if pid != self._own:
            for run_id in str(payload).split():
                super().ring(run_id)


async def _until(lost: asyncio.Event, connection: Connection) -> None:
    """Until a connection is lost, also by a network that tells nobody."""
    while not lost.is_set():
        try:
            await asyncio.wait_for(lost.wait(), LOOK_AFTER)
        except TimeoutError:
            await connection.execute(_SQL["time"], timeout=LONGEST)
