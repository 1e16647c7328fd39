"""A schedule and its head as of one moment, though others write meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from runstone.ports.schedules import load_schedule
from runstone.testing.conformance.scene import Scene
from runstone.testing.conformance.schedules import HOUR, due, fired, put
from runstone.testing.memory import MemoryData, MemoryStore


class Moving(MemoryStore):
    """The schedule is fired behind the first reads of its row."""

    scene: Scene
    left = 2

    async def get_schedule(self, tenant_id: str, stream_id: str) -> Any:
        row = await super().get_schedule(tenant_id, stream_id)
        if self.left:
            self.left -= 1
            (found,) = await due(self.scene)
            assert found.schedule.next_at is not None
            commit, _ = fired(self.scene, found, found.schedule.next_at + timedelta(minutes=1))
            await self.scene.store.commit(commit)
        return row


async def test_row_and_head_are_of_one_moment() -> None:
    data = MemoryData()

    async def open_store(clock: Any) -> MemoryStore:
        return MemoryStore(data, clock=clock)

    scene = Scene(open_store, None)  # type: ignore[arg-type]
    scene.store = MemoryStore(data, clock=scene.clock)
    state = await put(scene, scene.clock.now() - HOUR)
    store = Moving(data, clock=scene.clock)
    store.scene = scene
    scene.clock.advance(1)
    known = await load_schedule(store, scene.tenant_id, state.stream_id)
    assert known is not None
    assert (known.head.last_seq, known.schedule.fired) == (3, 2)
    stream = await scene.store.load(scene.tenant_id, state.stream_id)
    assert stream is not None
    assert known.head == stream.head
    assert await load_schedule(store, scene.tenant_id, scene.new_id()) is None
