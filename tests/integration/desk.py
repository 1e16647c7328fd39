"""A store with something in it, and `runstone` to look at it with: what tests of the verbs share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from runstone.cli.main import NAME, cli
from runstone.ports.clock import Clock
from runstone.ports.store import Store
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.scene import Scene


class Desk(ABC):
    """A store that the suite's own scenes have filled: a file, unless a test opens another."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.tenant_id = ""
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        async def open_store(clock: Any) -> Any:
            return await self.open(clock)

        clock = VirtualClock()
        async with await open_store(clock) as store:
            scene = Scene(open_store, store, clock)
            self.tenant_id = scene.tenant_id
            await self.fill(scene)

    async def open(self, clock: Clock) -> Store:
        return await SqliteStore.open(self.path, clock=clock)

    @abstractmethod
    async def fill(self, scene: Scene) -> None: ...

    def call(self, *arguments: str, **more: Any) -> Result:
        given = [*arguments, "--store", str(self.path), "--tenant", self.tenant_id]
        return CliRunner().invoke(cli, given, prog_name=NAME, **more)

    def lines(self, *arguments: str) -> list[str]:
        done = self.call(*arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output.splitlines()
