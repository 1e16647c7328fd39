"""Each kind of fault does what its name says, to the operation that the plan names and to no other."""

import asyncio
from datetime import timedelta

import pytest

from runstone.core.decide import Decision
from runstone.errors import OutcomeUnknown, RunstoneError, StoreBusy
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.faults import Fault, FaultPlan, FaultyStore
from runstone.testing.histories import five_step_history
from runstone.testing.memory import MemoryData, MemoryStore


def store_and_history() -> tuple[MemoryStore, list[Decision]]:
    clock = VirtualClock()
    new_id = SeededIds(0, clock)
    decisions = five_step_history(tenant_id=new_id(), clock=clock, new_id=new_id)
    return MemoryStore(MemoryData(), clock=clock), decisions


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.REFUSED, StoreBusy, False),
        (Fault.ANSWER_LOST, OutcomeUnknown, True),
        (Fault.CANCELLED_BEFORE, asyncio.CancelledError, False),
        (Fault.CANCELLED_AFTER, asyncio.CancelledError, True),
        (Fault.CANCELLED_MIDWAY, asyncio.CancelledError, False),
    ],
)
async def test_the_named_operation_fails(fault: Fault, error: type[BaseException], applied: bool) -> None:
    store, (first, second, third, *_) = store_and_history()
    faulty = FaultyStore(store, FaultPlan(2, fault))
    await faulty.commit(first.commit)
    before = faulty.hit
    with pytest.raises(error):
        await faulty.commit(second.commit)
    assert (before, faulty.hit) == (False, True)
    landed = await faulty.commit(second.commit)
    assert landed.repeated is applied
    await faulty.commit(third.commit)
    assert faulty.operations == 4


async def test_a_refusal_of_the_store_itself_does_not_hide_the_cancellation() -> None:
    store, (first, second, *_) = store_and_history()
    await store.commit(first.commit)
    await store.close()
    faulty = FaultyStore(store, FaultPlan(1, Fault.CANCELLED_MIDWAY))
    with pytest.raises(asyncio.CancelledError):
        await faulty.commit(second.commit)


async def test_every_operation_is_counted_and_can_fail() -> None:
    """Whatever a store can be asked has its number; only closing and iterating have none."""
    operations = {name for name in dir(MemoryStore) if not name.startswith("_")}
    assert {name for name in dir(FaultyStore) if not name.startswith("_")} == operations | {"hit"}
    store, _ = store_and_history()
    faulty = FaultyStore(store, FaultPlan(3, Fault.REFUSED))
    await faulty.fetch("tenant", "stream")
    assert await faulty.claim("w1", handlers=[], code_rank="", limit=1, lease=timedelta(seconds=1)) == []
    with pytest.raises(RunstoneError):
        await faulty.count_events()
    assert [found async for found in faulty.correlations()] == []
    assert await faulty.count_events() == 0
    assert faulty.operations == 4
    await faulty.close()
