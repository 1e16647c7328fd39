"""Apps that benchmarks run through the real engine, and a store that remembers what they commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

import msgspec

from runstone import App, Run
from runstone.core.commit import Commit
from runstone.engine.functions import Handler
from runstone.ports.store import Committed
from runstone.stores.sqlite import SqliteStore

STEPS: Final = 5


class Playable(msgspec.Struct, frozen=True):
    """An app and the handler to start."""

    app: App
    handler: Handler[Any, str]


def five_steps(lap: Callable[[float], None] = lambda seconds: None) -> Playable:
    """A specialist is asked five times; `lap` hears how many seconds each step took."""
    app = App("benchmark")

    @app.specialist
    async def ask(number: int) -> dict[str, Any]:
        return {"value": number, "text": "what a specialist has to say about it"}

    @app.on()
    async def five_steps(run: Run, question: int) -> str:
        for number in range(STEPS):
            began = perf_counter()
            await run.call(ask, number)
            lap(perf_counter() - began)
        return "done"

    return Playable(app, five_steps)


def nap() -> Playable:
    """Sleeps for so many seconds."""
    app = App("benchmark")

    @app.on()
    async def nap(run: Run, seconds: float) -> str:
        await run.sleep(timedelta(seconds=seconds))
        return "awake"

    return Playable(app, nap)


class RememberingStore(SqliteStore):
    """The store, which also keeps every commit that it was given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commits: list[Commit] = []

    async def commit(self, commit: Commit) -> Committed:
        self.commits.append(commit)
        return await super().commit(commit)
