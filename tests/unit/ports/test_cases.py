"""Deciding on a store: again when others were faster, never twice, and not without the run."""

import asyncio

import pytest

from runstone.core import commands
from runstone.core.commit import Commit
from runstone.errors import (
    DuplicateKey,
    NotFound,
    OutcomeUnknown,
    StaleFence,
    StaleSequence,
    StoreUnusable,
)
from runstone.ports import cases
from runstone.ports.cases import carry_out, load_case
from runstone.ports.clock import Clock
from runstone.ports.store import Committed
from runstone.testing.conformance.scene import OpenStore, Scene, open_scene
from runstone.testing.memory import MemoryData, MemoryStore


def opener(store: type[MemoryStore] = MemoryStore) -> OpenStore:
    data = MemoryData()

    async def open_store(clock: Clock) -> MemoryStore:
        return store(data, clock=clock)

    return open_store


class Forgetful(MemoryStore):
    """Loses the answers to its first commits, which it makes."""

    lost = 0

    async def commit(self, commit: Commit) -> Committed:
        done = await super().commit(commit)
        if self.lost > 0:
            self.lost -= 1
            raise OutcomeUnknown
        return done


class Fading(MemoryStore):
    """Makes a commit, loses its answer, and cannot be reached from then on."""

    faded: bool | None = None

    async def commit(self, commit: Commit) -> Committed:
        if self.faded:
            raise StoreUnusable
        done = await super().commit(commit)
        if self.faded is False:
            self.faded = True
            raise OutcomeUnknown
        return done


class Restless(MemoryStore):
    """Somebody else is always faster."""

    async def commit(self, commit: Commit) -> Committed:
        write = commit.writes[-1]
        if write.expected_seq:
            raise StaleSequence(write.stream_id, write.expected_seq, write.expected_seq + 1)
        return await super().commit(commit)


async def test_a_case_is_loaded_with_its_fences() -> None:
    async with open_scene(opener()) as scene:
        case = await scene.claimed(await scene.queued())
        loaded = await load_case(scene.store, scene.tenant_id, case.run.stream_id)
        assert loaded == case
        assert loaded.run_fence == 1


async def test_there_is_no_case_without_a_run() -> None:
    async with open_scene(opener()) as scene:
        case = await scene.carry(scene.new_case(), scene.receive())
        for stream_id in (case.run.stream_id, case.signal.stream_id):
            assert await load_case(scene.store, scene.tenant_id, stream_id) is None
        with pytest.raises(NotFound):
            await carry(scene, case.run.stream_id)


async def carry(scene: Scene, run_id: str, fence: int | None = None) -> object:
    return await carry_out(
        scene.store, scene.tenant_id, run_id, scene.set_variable(), context=scene.context(), fence=fence
    )


async def test_losers_decide_again() -> None:
    async with open_scene(opener()) as scene:
        case = await scene.running()
        await asyncio.gather(*(carry(scene, case.run.stream_id) for _ in range(10)))
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 10


async def test_a_lost_answer_is_asked_for_again() -> None:
    async with open_scene(opener(Forgetful)) as scene:
        assert isinstance(scene.store, Forgetful)
        case = await scene.running()
        scene.store.lost = cases.RESUBMISSIONS - 1
        await carry(scene, case.run.stream_id)
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 1
        scene.store.lost = cases.RESUBMISSIONS
        with pytest.raises(OutcomeUnknown):
            await carry(scene, case.run.stream_id)


async def test_the_owner_of_a_run_stops_when_it_is_lost() -> None:
    async with open_scene(opener()) as scene:
        case = await scene.claimed(await scene.queued(), "w1")
        await carry(scene, case.run.stream_id, fence=case.run_fence)
        await scene.store.release("w1")
        await scene.claimed(case, "w2")
        with pytest.raises(StaleFence):
            await carry(scene, case.run.stream_id, fence=case.run_fence)
        await carry(scene, case.run.stream_id)


async def test_a_stream_that_never_rests_is_given_up() -> None:
    async with open_scene(opener(Restless)) as scene:
        case = await scene.queued()
        with pytest.raises(StaleSequence):
            await carry(scene, case.run.stream_id)


async def test_a_duplicate_is_not_tried_again() -> None:
    async with open_scene(opener()) as scene:
        first, second = await scene.running(), await scene.running()
        step = commands.StartStep(step_key="send", step_type="EFFECT_REQUEST")
        effect = commands.RequestEffect(step_key="send", effect_type="CUSTOM", spec={}, effect_key="pay")
        await scene.carry(first, step, effect)
        run_id = second.run.stream_id
        with pytest.raises(DuplicateKey):
            await carry_out(scene.store, scene.tenant_id, run_id, step, effect, context=scene.context())
        assert len(await scene.everything(run_id)) == second.run.last_seq


async def test_what_changes_nothing_writes_nothing() -> None:
    """A control signal that is sent again (§ENG-25)."""
    async with open_scene(opener()) as scene:
        case = await scene.running()
        control = scene.control("PAUSE")
        context = scene.context()
        run_id = case.run.stream_id
        first = await carry_out(scene.store, scene.tenant_id, run_id, control, context=context)
        again = await carry_out(scene.store, scene.tenant_id, run_id, control, context=context)
        assert again.commit.events == ()
        assert len(await scene.everything(run_id)) == first.case.run.last_seq


async def test_a_store_that_is_gone_does_not_say_that_nothing_was_written() -> None:
    """Nothing was, the second time; what became of the first is as open as before."""
    async with open_scene(opener(Fading)) as scene:
        case = await scene.running()
        store = scene.store
        assert isinstance(store, Fading)
        store.faded = False
        with pytest.raises(OutcomeUnknown):
            await carry(scene, case.run.stream_id)
        with pytest.raises(StoreUnusable):
            await carry(scene, case.run.stream_id)
        assert len(await scene.everything(case.run.stream_id)) == case.run.last_seq + 1
