"""Cases for the recorder: many in one read, the latest when it matters, and one bad one harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runstone.core.decide import Case
from runstone.core.stream import Stream
from runstone.errors import NotFound, StoreBusy, UnknownEventType
from runstone.outbox import cases as module
from runstone.outbox.cases import Cases
from runstone.ports.store import Place
from runstone.testing.conformance.scene import Scene
from runstone.testing.memory import MemoryData, MemoryStore


class Counting(MemoryStore):
    """Notes what was read at once, and fails as it is told."""

    reads: list[int]
    failures: list[Exception]
    unreadable: str | None = None

    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        self.reads.append(len(places))
        if self.failures:
            raise self.failures.pop(0)
        if self.unreadable in {place.stream_id for place in places}:
            raise UnknownEventType("RUN_FLEW")
        return await super().load_many(places)


@pytest.fixture
def scene() -> Scene:
    async def open_store(clock: Any) -> Any:
        raise AssertionError("there is one")

    scene = Scene(open_store, None)  # type: ignore[arg-type]
    scene.store = store = Counting(MemoryData(), clock=scene.clock)
    store.reads, store.failures = [], []
    return scene


def store_of(scene: Scene) -> Counting:
    assert isinstance(scene.store, Counting)
    return scene.store


def place_of(case: Case) -> tuple[str, str]:
    return case.run.tenant_id, case.run.stream_id


async def test_what_is_asked_for_in_one_turn_is_one_read(scene: Scene) -> None:
    known = [await scene.running() for _ in range(3)]
    cases = Cases(scene.store)
    for case in known:
        cases.expect(place_of(case), case.signal.stream_id)
    found = await asyncio.gather(*(cases.last_seen(place_of(case)) for case in known))
    assert list(found) == known
    assert store_of(scene).reads == [6], "three runs and their signals"
    assert await cases.last_seen(place_of(known[0])) == known[0]
    assert store_of(scene).reads == [6]


async def test_without_the_signal_it_takes_two(scene: Scene) -> None:
    known = [await scene.running() for _ in range(3)]
    cases = Cases(scene.store)
    assert list(await asyncio.gather(*(cases.last_seen(place_of(case)) for case in known))) == known
    assert store_of(scene).reads == [3, 6]


async def test_a_signal_of_another_run_is_not_believed(scene: Scene) -> None:
    case, other = await scene.running(), await scene.running()
    cases = Cases(scene.store)
    cases.expect(place_of(case), other.signal.stream_id)
    assert await cases.last_seen(place_of(case)) == case


async def test_the_latest_is_read_anew(scene: Scene) -> None:
    case = await scene.running()
    cases = Cases(scene.store)
    assert await cases.last_seen(place_of(case)) == case
    later = await scene.carry(case, scene.set_variable())
    assert await cases.last_seen(place_of(case)) == case
    assert await cases.latest(place_of(case)) == later
    assert await cases.last_seen(place_of(case)) == later


async def test_the_latest_is_not_what_a_read_under_way_brings(scene: Scene) -> None:
    case = await scene.running()
    cases = Cases(scene.store)
    cases.expect(place_of(case), case.signal.stream_id)
    await asyncio.sleep(0)  # it has been handed over
    await asyncio.sleep(0)
    later = await scene.carry(case, scene.set_variable())
    assert await cases.latest(place_of(case)) == later


async def test_a_run_that_there_is_not_harms_no_other(scene: Scene) -> None:
    case = await scene.running()
    cases = Cases(scene.store)
    nowhere = (scene.tenant_id, scene.new_id())
    found = await asyncio.gather(
        *(cases.last_seen(place) for place in (nowhere, place_of(case))), return_exceptions=True
    )
    assert isinstance(found[0], NotFound)
    assert found[1] == case


async def test_a_run_that_cannot_be_read_harms_no_other(scene: Scene) -> None:
    known = [await scene.running() for _ in range(3)]
    cases = Cases(scene.store)
    store_of(scene).unreadable = known[1].run.stream_id
    found = await asyncio.gather(*(cases.last_seen(place_of(case)) for case in known), return_exceptions=True)
    assert [found[0], found[2]] == [known[0], known[2]]
    assert isinstance(found[1], UnknownEventType)


async def test_a_store_in_trouble_is_everybodys(scene: Scene) -> None:
    known = [await scene.running() for _ in range(3)]
    cases = Cases(scene.store)
    store_of(scene).failures.append(StoreBusy())
    found = await asyncio.gather(*(cases.last_seen(place_of(case)) for case in known), return_exceptions=True)
    assert [type(one) for one in found] == [StoreBusy] * 3
    assert store_of(scene).reads == [3], "it is not asked again for each"
    assert await cases.last_seen(place_of(known[0])) == known[0]


async def test_who_stops_waiting_takes_the_answer_from_nobody(scene: Scene) -> None:
    case = await scene.running()
    cases = Cases(scene.store)
    first, second = (asyncio.ensure_future(cases.last_seen(place_of(case))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == case


async def test_only_so_many_are_kept(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "AT_ONCE", 2)
    known = [await scene.running() for _ in range(3)]
    cases = Cases(scene.store)
    for case in known:
        cases.expect(place_of(case), case.signal.stream_id)
    assert list(await asyncio.gather(*(cases.last_seen(place_of(case)) for case in known))) == known
    assert sorted(store_of(scene).reads) == [2, 4]
    for case in known:
        assert await cases.last_seen(place_of(case)) == case
    assert len(store_of(scene).reads) > 2, "one of them was no longer there"
