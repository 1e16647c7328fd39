"""The suite of claims, leases and wake-ups: a due run has one owner, and is never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.commit import Lease
from runstone.core.decide import Case
from runstone.core.payloads import ErrorInfo, WaitSpec
from runstone.core.run import code_rank
from runstone.errors import CommitRefused, StaleFence, StaleSequence
from runstone.ports.cases import carry_out, load_case
from runstone.ports.store import Claim
from runstone.testing.conformance.scene import LEASE, Scene, Suite

FREE = Lease(owner=None)
"""What a worker makes of its lease when it lets a run go in good order."""

ERROR = ErrorInfo(category="APPLICATION", code="E1", message="wrong")

WAIT = commands.StartStep(step_key="ask", step_type="WAIT", wait=WaitSpec(name="answer"))


def ids(claims: Sequence[Claim]) -> list[str]:
    """The runs that were claimed, in order."""
    return [claim.run_id for claim in claims]


def only(claims: Sequence[Claim]) -> Claim:
    """The one claim there is."""
    assert len(claims) == 1
    return claims[0]


class ClaimSuite(Suite):
    """Who works on which run, and when."""

    # Eligibility

    async def test_a_new_run_can_be_claimed(self, scene: Scene) -> None:
        """§STO-20, §STO-21."""
        case = await scene.queued()
        claim = only(await scene.claim())
        assert (claim.run_id, claim.tenant_id) == (case.run.stream_id, scene.tenant_id)
        assert (claim.handler, claim.attempts) == ("handler", 1)
        stream = await scene.store.load(scene.tenant_id, claim.run_id)
        assert stream is not None
        assert stream.head.fence == claim.fence > 0

    async def test_a_claim_is_limited_and_takes_the_earliest_first(self, scene: Scene) -> None:
        runs: list[str] = []
        for _ in range(7):
            runs.append((await scene.queued()).run.stream_id)
            scene.clock.advance(1)
        assert ids(await scene.claim(limit=3)) == runs[:3]
        assert ids(await scene.claim(limit=3)) == runs[3:6]
        assert ids(await scene.claim(limit=3)) == runs[6:]
        assert ids(await scene.claim(limit=3)) == []

    async def test_a_claim_takes_only_known_handlers(self, scene: Scene) -> None:
        """§ENG-47."""
        mine = await scene.queued(plan_id="größe'1")
        await scene.queued(plan_id="other")
        assert ids(await scene.claim(handlers=[])) == []
        assert ids(await scene.claim(handlers=["größe'1", "third"])) == [mine.run.stream_id]

    async def test_a_claim_takes_only_code_up_to_its_own(self, scene: Scene) -> None:
        """§ENG-46: 1.10 is above 1.9."""
        old = await scene.queued(orchestrator_version="1.9")
        scene.clock.advance(1)
        new = await scene.queued(orchestrator_version="1.10")
        assert ids(await scene.claim(code_rank=code_rank("1.8"))) == []
        assert ids(await scene.claim(code_rank=code_rank("1.9"))) == [old.run.stream_id]
        assert ids(await scene.claim(code_rank=code_rank("1.10"))) == [new.run.stream_id]

    async def test_a_claim_serves_every_tenant(self, scene: Scene) -> None:
        other = scene.for_tenant(scene.new_id())
        mine, theirs = await scene.queued(), await other.queued()
        claims = await scene.claim()
        assert {(claim.tenant_id, claim.run_id) for claim in claims} == {
            (scene.tenant_id, mine.run.stream_id),
            (other.tenant_id, theirs.run.stream_id),
        }

    async def test_what_waits_for_approval_is_not_due(self, scene: Scene) -> None:
        """§TRN-11."""
        case = await scene.queued(approval_required=True)
        assert ids(await scene.claim()) == []
        await scene.carry(case, scene.control("APPROVE"))
        assert ids(await scene.claim()) == [case.run.stream_id]

    async def test_what_is_paused_is_not_due_until_it_is_resumed(self, scene: Scene) -> None:
        case = await scene.carry(await scene.running(), scene.control("PAUSE"))
        assert ids(await scene.claim()) == []
        case = await scene.carry(case, scene.control("RESUME"))
        assert ids(await scene.claim()) == [case.run.stream_id]

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
    async def test_what_has_ended_is_never_due(self, scene: Scene, end: str) -> None:
        """§ENT-25: it leaves the queue, and its owner."""
        case = await scene.claimed(await scene.queued())
        case = await scene.carry(case, commands.StartRun())
        ends: dict[str, commands.Command] = {
            "complete": commands.ReturnHandler(result=Raw(b"1")),
            "fail": commands.FailRun(error=ERROR),
            "cancel": scene.control("CANCEL"),
        }
        await scene.carry(case, ends[end])
        assert await scene.store.heartbeat("w1", lease=LEASE) == {}
        assert await scene.store.release("w1") == 0
        scene.clock.advance(timedelta(days=1000))
        assert ids(await scene.claim("w2")) == []

    # Lanes

    async def test_runs_of_one_lane_take_turns_in_the_order_of_their_creation(self, scene: Scene) -> None:
        """§ENG-45: with all workers together; other lanes, and other tenants' lanes, are others."""
        first = await scene.queued(lane="a")
        scene.clock.advance(1)
        second = await scene.queued(lane="a")
        scene.clock.advance(1)
        apart = await scene.queued(lane="b")
        theirs = await scene.for_tenant(scene.new_id()).queued(lane="a")
        claimed = ids(await scene.claim())
        assert set(claimed) == {run.run.stream_id for run in (first, apart, theirs)}
        assert ids(await scene.claim("w2")) == []
        case = await load_case(scene.store, scene.tenant_id, first.run.stream_id)
        assert case is not None
        case = await scene.carry(case, commands.StartRun())
        assert ids(await scene.claim("w2")) == []
        await scene.carry(case, commands.ReturnHandler(result=Raw(b"1")))
        assert ids(await scene.claim("w2")) == [second.run.stream_id]

    async def test_a_lane_is_as_wide_as_its_limit(self, scene: Scene) -> None:
        """§ENG-45."""
        runs: list[str] = []
        for _ in range(4):
            runs.append((await scene.queued(lane="a", lane_limit=3)).run.stream_id)
            scene.clock.advance(1)
        assert ids(await scene.claim()) == runs[:3]
        assert ids(await scene.claim("w2")) == []

    async def test_what_waits_for_approval_stands_in_no_line(self, scene: Scene) -> None:
        """§ENG-45: nobody knows whether it will ever be."""
        waiting = await scene.queued(lane="a", approval_required=True)
        scene.clock.advance(1)
        behind = await scene.queued(lane="a")
        assert ids(await scene.claim()) == [behind.run.stream_id]
        scene.clock.advance(1)
        await scene.carry(waiting, scene.control("APPROVE"))
        assert ids(await scene.claim("w2")) == [], "it is in line now, and the other is under way"
        await scene.store.release("w1")
        assert ids(await scene.claim("w2")) == [waiting.run.stream_id], "the elder goes first"

    async def test_what_has_started_keeps_its_lane_while_it_is_paused(self, scene: Scene) -> None:
        """§ENG-45: when it is resumed it goes on, and nobody may be in its way."""
        case = await scene.carry(await scene.running(lane="a"), scene.control("PAUSE"))
        behind = await scene.queued(lane="a")
        assert ids(await scene.claim()) == []
        case = await scene.claimed(await scene.carry(case, scene.control("RESUME")))
        assert ids(await scene.claim("w2")) == []
        await scene.carry(case, scene.control("CANCEL"))
        assert ids(await scene.claim("w2")) == [behind.run.stream_id]

    # One owner

    async def test_an_owned_run_is_not_claimed_while_its_lease_lives(self, scene: Scene) -> None:
        case = await scene.queued()
        assert ids(await scene.claim("w1")) == [case.run.stream_id]
        scene.clock.advance(LEASE - timedelta(seconds=1))
        assert ids(await scene.claim("w2")) == []
        scene.clock.advance(2)
        claim = only(await scene.claim("w2"))
        assert (claim.run_id, claim.attempts) == (case.run.stream_id, 2)

    async def test_concurrent_claims_never_share_a_run(self, scene: Scene) -> None:
        """§STO-20."""
        runs = [(await scene.queued()).run.stream_id for _ in range(20)]
        claims = await asyncio.gather(*(scene.claim(f"w{number}", limit=3) for number in range(10)))
        taken = [run_id for each in claims for run_id in ids(each)]
        assert sorted(taken) == sorted(runs)

    async def test_a_fleet_that_claims_at_once_shares_no_run_and_leaves_none(self, scene: Scene) -> None:
        """§STO-20: of workers that nobody has heard of before, each store knows its own at first."""
        runs = [case.run.stream_id for case in await asyncio.gather(*(scene.queued() for _ in range(200)))]
        async with scene.fleet(4) as fleet:
            workers = [(f"w{number}", fleet[number % 4]) for number in range(40)]
            claims = await asyncio.gather(*(each.claim(name, limit=7) for name, each in workers))
            owned = {name: sorted(ids(each)) for (name, _), each in zip(workers, claims, strict=True)}
            rest = await scene.claim("last", limit=len(runs))
            taken = [claim for each in claims for claim in each] + list(rest)
            assert sorted(ids(taken)) == sorted(runs)
            assert {claim.attempts for claim in taken} == {1}
            for name, each in workers:
                assert sorted(await each.store.heartbeat(name, lease=LEASE)) == owned[name]

    async def test_a_new_owner_shuts_the_old_one_out(self, scene: Scene) -> None:
        """§STO-24, §ORD-13: whatever the old one still does."""
        case = await scene.queued()
        mine = await scene.carry(await scene.claimed(case, "w1"), commands.StartRun())
        scene.clock.advance(LEASE * 2)
        theirs = await scene.claimed(mine, "w2")
        assert theirs.run_fence > mine.run_fence
        with pytest.raises(StaleFence):
            await scene.carry(mine, scene.set_variable())
        await scene.carry(theirs, scene.set_variable())
        with pytest.raises(CommitRefused):
            await scene.carry(mine, scene.set_variable())
        assert await scene.store.heartbeat("w1", lease=LEASE) == {}
        assert await scene.store.release("w1", [case.run.stream_id]) == 0
        assert list(await scene.store.heartbeat("w2", lease=LEASE)) == [case.run.stream_id]

    async def test_a_fence_survives_a_restart(self, scene: Scene) -> None:
        """§ORD-13: it never falls, so no two owners ever have the same."""
        case = await scene.claimed(await scene.queued(), "w1")
        await scene.reopen()
        scene.clock.advance(LEASE * 2)
        again = await scene.claimed(case, "w2")
        assert again.run_fence > case.run_fence

    # Leases

    async def test_a_heartbeat_keeps_all_runs_of_its_worker(self, scene: Scene) -> None:
        """§STO-22: one heartbeat, however many runs."""
        runs = {(await scene.queued()).run.stream_id for _ in range(3)}
        await scene.claim("w1")
        for _ in range(5):
            scene.clock.advance(LEASE * 0.9)
            assert set(await scene.store.heartbeat("w1", lease=LEASE)) == runs
            assert ids(await scene.claim("w2")) == []
        scene.clock.advance(LEASE * 1.1)
        assert set(ids(await scene.claim("w2"))) == runs

    async def test_a_claim_extends_the_lease_too(self, scene: Scene) -> None:
        first = await scene.queued()
        await scene.claim("w1")
        scene.clock.advance(LEASE * 0.9)
        second = await scene.queued()
        await scene.claim("w1")
        scene.clock.advance(LEASE * 0.9)
        assert ids(await scene.claim("w2")) == []
        scene.clock.advance(LEASE * 0.2)
        assert set(ids(await scene.claim("w2"))) == {first.run.stream_id, second.run.stream_id}

    async def test_a_heartbeat_brings_news(self, scene: Scene) -> None:
        """§STO-23: of what others wrote, and not of what the worker wrote itself."""
        case = await scene.claimed(await scene.queued())
        case = await scene.carry(case, commands.StartRun(), scene.set_variable())
        quiet = await scene.store.heartbeat("w1", lease=LEASE)
        case = await scene.carry(case, scene.control("ANSWER", "answer"))
        news = await scene.store.heartbeat("w1", lease=LEASE)
        assert news == {case.run.stream_id: case.run.news_seq}
        assert news[case.run.stream_id] == case.run.last_seq > quiet[case.run.stream_id]

    async def test_a_released_run_is_free_and_its_attempts_are_forgotten(self, scene: Scene) -> None:
        """§STO-25."""
        kept, given = await scene.queued(), await scene.queued()
        await scene.claim("w1")
        scene.clock.advance(LEASE * 2)
        assert {claim.attempts for claim in await scene.claim("w2")} == {2}
        assert await scene.store.release("w1") == 0
        assert await scene.store.release("w2", [given.run.stream_id, scene.new_id()]) == 1
        claim = only(await scene.claim("w3"))
        assert (claim.run_id, claim.attempts) == (given.run.stream_id, 1)
        assert await scene.store.release("w2") == 1
        claim = only(await scene.claim("w4"))
        assert (claim.run_id, claim.attempts) == (kept.run.stream_id, 1)

    async def test_a_commit_can_change_the_lease(self, scene: Scene) -> None:
        """§STO-25: progress forgets attempts; letting go is part of the commit that suspends."""
        case = await scene.queued()
        await scene.claim("w0")
        scene.clock.advance(LEASE * 2)
        mine = await scene.claimed(case, "w1")
        mine = await scene.carry(mine, commands.StartRun(), lease=Lease(owner="w1", attempts=0))
        assert list(await scene.store.heartbeat("w1", lease=LEASE)) == [case.run.stream_id]
        mine = await scene.carry(mine, scene.set_variable(), lease=FREE)
        assert await scene.store.heartbeat("w1", lease=LEASE) == {}
        claim = only(await scene.claim("w2"))
        assert (claim.run_id, claim.attempts) == (case.run.stream_id, 1)

    async def test_a_commit_without_a_lease_leaves_it_alone(self, scene: Scene) -> None:
        """A control signal lands beside the owner, and does not take the run from it (§ENG-28)."""
        case = await scene.claimed(await scene.queued())
        case = await scene.carry(case, commands.StartRun())
        case = await scene.carry(case, scene.control("ANSWER", "answer"))
        assert list(await scene.store.heartbeat("w1", lease=LEASE)) == [case.run.stream_id]
        assert ids(await scene.claim("w2")) == []
        await scene.carry(case, scene.set_variable())

    # Suspension and wake-ups

    async def test_a_suspended_run_wakes_at_its_deadline(self, scene: Scene) -> None:
        """§STO-27, §STO-29."""
        case = await _suspended(scene, timedelta(hours=1))
        assert ids(await scene.claim("w2")) == []
        scene.clock.advance(timedelta(hours=1) - timedelta(seconds=1))
        assert ids(await scene.claim("w2")) == []
        scene.clock.advance(1)
        assert ids(await scene.claim("w2")) == [case.run.stream_id]

    async def test_a_wake_up_survives_a_restart(self, scene: Scene) -> None:
        case = await _suspended(scene, timedelta(days=30))
        await scene.reopen()
        assert ids(await scene.claim("w2")) == []
        scene.clock.advance(timedelta(days=30))
        assert ids(await scene.claim("w2")) == [case.run.stream_id]

    async def test_without_a_deadline_only_an_answer_wakes(self, scene: Scene) -> None:
        case = await _suspended(scene, None)
        scene.clock.advance(timedelta(days=1000))
        assert ids(await scene.claim("w2")) == []
        await scene.carry(case, scene.control("ANSWER", "another"))
        assert ids(await scene.claim("w2")) == []
        await _answer(scene, case)
        assert ids(await scene.claim("w2")) == [case.run.stream_id]

    async def test_an_answer_before_the_suspension_wins(self, scene: Scene) -> None:
        """§STO-28: the suspension is stale, and its writer reads the answer."""
        waiting = await _waiting(scene)
        suspension = scene.decide(waiting, commands.SuspendRun(waiting=("ask",)), lease=FREE)
        await _answer(scene, waiting)
        with pytest.raises(StaleSequence):
            await scene.store.commit(suspension.commit)
        now = await load_case(scene.store, scene.tenant_id, waiting.run.stream_id)
        assert now is not None
        assert now.run.open_steps == {}
        await scene.store.release("w1")
        assert ids(await scene.claim("w2")) == [waiting.run.stream_id]

    async def test_an_answer_after_the_suspension_wakes(self, scene: Scene) -> None:
        """The answer was decided on the run before it was suspended."""
        waiting = await _waiting(scene)
        early = scene.decide(waiting, scene.control("ANSWER", "answer"))
        await scene.carry(waiting, commands.SuspendRun(waiting=("ask",)), lease=FREE)
        with pytest.raises(StaleSequence):
            await scene.store.commit(early.commit)
        assert ids(await scene.claim("w2")) == []
        await _answer(scene, waiting)
        assert ids(await scene.claim("w2")) == [waiting.run.stream_id]

    async def test_an_answer_is_never_lost_whoever_is_faster(self, scene: Scene) -> None:
        """Twenty runs suspend while they are answered; afterwards every one of them is due."""
        cases = [await _waiting(scene, f"w{number}") for number in range(20)]
        racers = [
            race
            for number, case in enumerate(cases)
            for race in (_suspend_or_go_on(scene, case, f"w{number}"), _answer(scene, case))
        ]
        await asyncio.gather(*racers)
        assert sorted(ids(await scene.claim("w"))) == sorted(case.run.stream_id for case in cases)
        await scene.audit(*(case.run.stream_id for case in cases))

    async def test_a_claimed_run_can_be_suspended_and_woken_many_times(self, scene: Scene) -> None:
        case = await scene.carry(await scene.queued(), commands.StartRun())
        for round_trip in range(5):
            case = await scene.claimed(case, f"w{round_trip}")
            deadline = scene.clock.now() + timedelta(minutes=1)
            case = await scene.carry(case, commands.SuspendRun(wake_at=deadline), lease=FREE)
            assert ids(await scene.claim("w")) == []
            scene.clock.advance(60)
        claim = only(await scene.claim("w"))
        assert claim.attempts == 1


async def _waiting(scene: Scene, worker_id: str = "w1") -> Case:
    """A claimed run with an open wait, about to be suspended."""
    case = await scene.claimed(await scene.queued(), worker_id)
    return await scene.carry(case, commands.StartRun(), WAIT)


async def _suspended(scene: Scene, after: timedelta | None) -> Case:
    deadline = None if after is None else scene.clock.now() + after
    suspend = commands.SuspendRun(wake_at=deadline, waiting=("ask",))
    return await scene.carry(await _waiting(scene), suspend, lease=FREE)


async def _answer(scene: Scene, case: Case) -> None:
    control = scene.control("ANSWER", "answer")
    run_id = case.run.stream_id
    await carry_out(scene.store, scene.tenant_id, run_id, control, context=scene.context())


async def _suspend_or_go_on(scene: Scene, case: Case, worker_id: str) -> None:
    """What an engine does: suspends; if an answer came first, takes it, and here lets others go on."""
    try:
        await scene.carry(case, commands.SuspendRun(waiting=("ask",)), lease=FREE)
    except StaleSequence:
        stream = await scene.store.load(scene.tenant_id, case.run.stream_id)
        assert stream is not None
        assert stream.events[-1].event_type == "STEP_COMPLETED"
        await scene.store.release(worker_id, [case.run.stream_id])
