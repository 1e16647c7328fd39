"""The suite of the feed: everything, in the order of commit, from any place on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from runstone.core.chain import portable
from runstone.core.commit import Commit
from runstone.ports.store import FeedItem, FeedPosition, Store
from runstone.testing.conformance.scene import Scene, Suite, meanwhile
from runstone.testing.histories import five_step_history


async def follow(store: Store, after: FeedPosition | None = None, limit: int = 7) -> list[FeedItem]:
    """The feed from a place to its end, page by page."""
    items: list[FeedItem] = []
    while page := await store.feed(items[-1].position if items else after, limit=limit):
        assert len(page) <= limit
        items += page
    return items


def assert_in_commit_order(items: Sequence[FeedItem], commits: Sequence[Commit]) -> None:
    """One commit after the other, whole, and every event behind what caused it (§ORD-21, §ORD-26)."""
    assert [portable(item.event) for item in items] == [e for commit in commits for e in commit.events]


class FeedSuite(Suite):
    """What consumers read."""

    async def test_the_feed_of_an_empty_store_is_empty(self, scene: Scene) -> None:
        assert list(await scene.store.feed()) == []

    async def test_the_feed_is_complete_and_in_the_order_of_commit(self, scene: Scene) -> None:
        """Over all tenants and streams."""
        other = scene.for_tenant(scene.new_id())
        mine = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        theirs = five_step_history(tenant_id=other.tenant_id, clock=scene.clock, new_id=scene.new_id)
        commits = [decision.commit for pair in zip(mine, theirs, strict=True) for decision in pair]
        for commit in commits:
            await scene.store.commit(commit)
        items = await follow(scene.store)
        assert_in_commit_order(items, commits)
        positions = [item.position for item in items]
        assert positions == sorted(set(positions))

    async def test_events_carry_their_place_in_the_feed_and_when_they_were_stored(self, scene: Scene) -> None:
        """§EVT-1, §ORD-25: numbers rise in a stream, and are unique over all of them."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        case = history[-1].case
        seen: list[int] = []
        for stream_id in (case.signal.stream_id, case.run.stream_id):
            events = await scene.everything(stream_id)
            assert all(event.persisted_at is not None for event in events)
            numbers = [event.sequence_number or 0 for event in events]
            assert numbers == sorted(numbers)
            seen += numbers
        assert min(seen) > 0
        assert len(set(seen)) == len(seen)

    async def test_the_feed_can_be_resumed_from_any_place(self, scene: Scene) -> None:
        """§STO-32: however often it is asked, and after a restart."""
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.carry_all(history)
        whole = await follow(scene.store)
        for _ in range(2):
            for place, item in enumerate(whole):
                for limit in (1, 5, 1000):
                    page = await scene.store.feed(item.position, limit=limit)
                    assert list(page) == whole[place + 1 : place + 1 + limit]
            await scene.reopen()

    async def test_the_feed_tells_of_appended_events_too(self, scene: Scene) -> None:
        history = five_step_history(tenant_id=scene.tenant_id, clock=scene.clock, new_id=scene.new_id)
        await scene.append_all(history)
        assert_in_commit_order(await follow(scene.store), [decision.commit for decision in history])

    async def test_a_reader_of_the_feed_never_misses_an_event(self, scene: Scene) -> None:
        """§ORD-26: it reads while fifty others write."""
        seen: list[FeedItem] = []

        async def read() -> None:
            seen.extend(await follow(scene.store, seen[-1].position if seen else None))

        async def write() -> None:
            case = await scene.running()
            for value in range(4):
                case = await scene.carry(case, scene.set_variable(value))

        async def write_all() -> None:
            await asyncio.gather(*(write() for _ in range(50)))

        await meanwhile(write_all(), read)
        written = {event.id for commit in scene.acknowledged for event in commit.events}
        assert len(seen) == len(written)
        assert {item.event.id for item in seen} == written
        assert [item.position for item in seen] == sorted(item.position for item in seen)
        places: dict[str, int] = {}
        for item in seen:
            assert item.event.run_seq == places.get(item.event.stream_id, 0) + 1
            places[item.event.stream_id] = item.event.run_seq

    async def test_a_refused_commit_is_not_in_the_feed(self, scene: Scene) -> None:
        case = await scene.running()
        late = scene.decide(case, scene.set_variable()).commit
        await scene.carry(case, scene.set_variable())
        await asyncio.gather(scene.store.commit(late), return_exceptions=True)
        assert_in_commit_order(await follow(scene.store), scene.acknowledged)
