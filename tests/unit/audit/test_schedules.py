"""The proof of a schedule and of its runs: each firing takes as much as any other, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from runstone.audit.verify import verify_all
from runstone.testing.conformance.scene import Scene
from runstone.testing.conformance.schedules import HOUR, due, fired, put
from runstone.testing.memory import MemoryData, MemoryStore

READS = ("fetch", "load", "examine", "heads", "get_schedule", "find_tombstone", "rows")


class Counting(MemoryStore):
    """Counts what is asked of it."""

    def __init__(self, data: MemoryData, **given: Any) -> None:
        super().__init__(data, **given)
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._counted(name, found) if name in READS else found

    def _counted(self, name: str, found: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def count(*given: Any, **named: Any) -> Any:
            self.asked[name] += 1
            return await found(*given, **named)

        return count


async def test_the_proof_of_each_firing_takes_as_many_reads_as_that_of_the_first() -> None:
    data = MemoryData()

    async def open_store(clock: Any) -> MemoryStore:
        return MemoryStore(data, clock=clock)

    scene = Scene(open_store, None)  # type: ignore[arg-type]
    scene.store = MemoryStore(data, clock=scene.clock)
    await put(scene, scene.clock.now())
    reads: list[Counter[str]] = []
    for _ in range(3):
        for _ in range(10):
            (found,) = await due(scene)
            await scene.store.commit(fired(scene, found, scene.clock.now() + HOUR)[0])
            scene.clock.advance(HOUR)
        store = Counting(data, clock=scene.clock)
        parts = [part async for part in verify_all(store)]
        assert [finding for part in parts for finding in part.findings] == []
        reads.append(store.asked)
    assert reads[2] - reads[1] == reads[1] - reads[0]
    assert (reads[1] - reads[0]).total() == 10 * 6, "heads, two streams, and what names the others"
