"""Walking a fault through a scenario: the first operation fails, then the second, until none does.

A scenario is written as the contract wants callers to be: a commit whose outcome is unknown is
submitted again, a claim whose answer was lost is given back and made again. After each walk the
store is opened anew, and what it holds is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Lease
from runstone.core.decide import Case
from runstone.core.payloads import OutputResult, WaitSpec
from runstone.core.transitions import RUN
from runstone.errors import OutcomeUnknown, StoreUnusable
from runstone.ports.cases import carry_out
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.scene import LEASE, RANK, OpenStore, Scene
from runstone.testing.faults import Fault, FaultPlan, FaultyStore

_T = TypeVar("_T")

Scenario: TypeAlias = Callable[[Scene], Awaitable[str]]
"""Does something to a store that may fail once; gives the id of the run it was about."""

Check: TypeAlias = Callable[[Scene, str], Awaitable[None]]
"""Looks at what a scenario has left behind."""

TRIES: Final = 3
"""More than a caller needs who meets one fault."""

FAULTS: Final = (OutcomeUnknown, StoreUnusable, asyncio.CancelledError)


async def walk_faults(
    open_store: OpenStore, scenario: Scenario, check: Check, *, faults: Iterable[Fault] = Fault
) -> int:
    """Runs the scenario once for every operation it makes and every kind of fault; how many were hit."""
    hits = 0
    for fault in faults:
        for at in count(1):
            if not await _walk_once(open_store, scenario, check, FaultPlan(at, fault)):
                break
            hits += 1
    return hits


async def _walk_once(open_store: OpenStore, scenario: Scenario, check: Check, plan: FaultPlan) -> bool:
    """Whether the fault was hit."""
    clock = VirtualClock()
    faulty = FaultyStore(await open_store(clock), plan)
    scene = Scene(open_store, faulty, clock)
    try:
        run_id = await scenario(scene)
        await scene.reopen()
        await check(scene, run_id)
    except (Exception, asyncio.CancelledError) as error:
        error.add_note(f"The fault that was walked: {plan}")
        raise
    finally:
        await scene.store.close()
    return faulty.hit


async def again(operation: Callable[[], Awaitable[_T]]) -> _T:
    """Does what can be done twice, until its answer arrives."""
    for _ in range(TRIES - 1):
        try:
            return await operation()
        except FAULTS:
            continue
    return await operation()


async def persist(scene: Scene, case: Case, *wanted: Command, lease: Lease | None = None) -> Case:
    """Decides once, and submits that very commit until it is known to be there (§STO-19)."""
    decision = scene.decide(case, *wanted, lease=lease)
    await again(lambda: scene.store.commit(decision.commit))
    scene.acknowledged.append(decision.commit)
    return decision.case


async def take(scene: Scene, case: Case, worker_id: str, handler: str) -> Case:
    """Claims the run; a claim whose answer was lost is given back first, for nobody knows its fence."""
    for _ in range(TRIES):
        try:
            claims = await scene.store.claim(
                worker_id, handlers=[handler], code_rank=RANK, limit=1, lease=LEASE
            )
        except FAULTS:
            await again(lambda: scene.store.release(worker_id))
        else:
            assert [claim.run_id for claim in claims] == [case.run.stream_id]
            return msgspec.structs.replace(case, run_fence=claims[0].fence)
    raise AssertionError("a claim failed more often than there are faults")


async def one_run(scene: Scene) -> str:
    """From the signal to the end: a step, an effect, a wait that is answered, two owners."""
    handler = f"walk {scene.new_id()}"
    case = await persist(scene, scene.new_case(), scene.receive(), scene.create(plan_id=handler))
    case = await take(scene, case, "w1", handler)
    case = await persist(scene, case, commands.StartRun())
    effect_id = scene.new_id()
    case = await persist(
        scene,
        case,
        commands.StartStep(step_key="send", step_type="EFFECT_REQUEST"),
        commands.RequestEffect(step_key="send", effect_type="CUSTOM", spec={}, effect_id=effect_id),
        commands.CompleteStep(step_key="send", output=OutputResult(effect_spec=Raw(b"{}"))),
    )
    case = await persist(
        scene,
        case,
        commands.StartStep(step_key="ask", step_type="WAIT", wait=WaitSpec(name="answer")),
        commands.SuspendRun(waiting=("ask",)),
        lease=Lease(owner=None),
    )
    case = await _tell(scene, case, scene.control("ANSWER", "answer"))
    case = await take(scene, case, "w2", handler)
    await again(lambda: scene.store.heartbeat("w2", lease=LEASE))
    case = await persist(scene, case, commands.ReturnHandler(result=Raw(b"1e2")))
    outcome = commands.CompleteEffect(effect_id=effect_id, executor="d1", result=Raw(b"-0.0"))
    case = await persist(scene, case, outcome)
    return case.run.stream_id


async def _tell(scene: Scene, case: Case, control: Command) -> Case:
    """As a gateway does: a control signal that is sent again changes nothing (§ENG-25)."""
    context = scene.context()
    run_id = case.run.stream_id
    decision = await again(lambda: carry_out(scene.store, scene.tenant_id, run_id, control, context=context))
    return decision.case


ONE_RUN: Final = (
    "RUN_CREATED",
    "RUN_STARTED",
    "STEP_STARTED",
    "EFFECT_REQUESTED",
    "STEP_COMPLETED",
    "STEP_STARTED",
    "RUN_SUSPENDED",
    "SIGNAL_ACCEPTED",
    "STEP_COMPLETED",
    "RUN_HANDLER_RETURNED",
    "EFFECT_EXECUTING",
    "EFFECT_COMPLETED",
    "RUN_COMPLETED",
)


async def check_one_run(scene: Scene, run_id: str) -> None:
    """The same history as without a fault: nothing lost, nothing twice, one end."""
    events = await scene.everything(run_id)
    assert tuple(event.event_type for event in events) == ONE_RUN
    await check_acknowledged(scene)
    await scene.audit(run_id)
    shown = await scene.store.snapshot(scene.tenant_id, run_id)
    assert shown is not None
    assert shown.status in RUN.terminal


async def check_acknowledged(scene: Scene) -> None:
    """Every commit that was acknowledged is there, event for event."""
    for commit in scene.acknowledged:
        for event in commit.events:
            page = await scene.store.fetch(
                scene.tenant_id, event.stream_id, after_seq=event.run_seq - 1, limit=1
            )
            assert [kept.id for kept in page] == [event.id]
