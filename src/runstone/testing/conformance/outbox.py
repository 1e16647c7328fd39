"""The suite of the outbox: who may claim what, whose outcome counts, what the ledger says (§OUT-4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw

from runstone.core import codec, commands
from runstone.core.commit import Hold
from runstone.core.decide import Case, decide
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo, OutputResult
from runstone.errors import StaleClaim, StaleSequence
from runstone.ports.store import EffectClaim
from runstone.testing.conformance.scene import LEASE, Scene, Suite

TYPE: Final = "NOTIFY_USER"
_BUSY: Final = ErrorInfo(category="EXTERNAL", code="BUSY", message="Not now", retryable=True)
_GONE: Final = ErrorInfo(category="EXTERNAL", code="GONE", message="No such user")


async def requested(scene: Scene, count: int = 1, **of_effect: Any) -> Case:
    """A run that has asked for so many effects."""
    case = await scene.running()
    asked: dict[str, Any] = {"step_key": "ask", "effect_type": TYPE, "spec": {"user_id": "ann"}} | of_effect
    return await scene.carry(
        case,
        commands.StartStep(step_key="ask", step_type="EFFECT_REQUEST"),
        *(commands.RequestEffect(ordinal=number, **asked) for number in range(count)),
        commands.CompleteStep(step_key="ask", output=OutputResult()),
    )


def effects_of(case: Case) -> list[Effect]:
    return sorted(case.run.effects.values(), key=lambda effect: effect.id)


async def claim(
    scene: Scene, worker_id: str = "d1", *, limit: int = 100, **asked: Any
) -> Sequence[EffectClaim]:
    wanted: dict[str, Any] = {"types": [TYPE], "lease": LEASE} | asked
    return await scene.store.claim_effects(worker_id, limit=limit, **wanted)


async def finish(
    scene: Scene, case: Case, claimed: EffectClaim, command: commands.Command | None = None
) -> Case:
    """Records an outcome under the fence of its claim."""
    done = command or commands.CompleteEffect(effect_id=claimed.effect.id, executor="d", result=Raw(b"1"))
    hold = Hold(claimed.effect.id, claimed.fence)
    decision = decide(case, done, context=scene.context(), holds=(hold,))
    await scene.store.commit(decision.commit)
    return decision.case


def failure(claimed: EffectClaim, scene: Scene, seconds: float, error: ErrorInfo = _BUSY) -> commands.Command:
    return commands.FailEffect(
        effect_id=claimed.effect.id,
        executor="d",
        error=error,
        next_retry_at=scene.clock.now() + timedelta(seconds=seconds),
    )


class OutboxSuite(Suite):
    """Claims of effects, their leases and fences."""

    async def test_a_pending_effect_is_claimed_as_it_is(self, scene: Scene) -> None:
        """§OUT-4, §OUT-5."""
        case = await requested(scene)
        (effect,) = effects_of(case)
        before = await scene.store.load(scene.tenant_id, case.run.stream_id)
        (claimed,) = await claim(scene)
        assert claimed.effect == effect
        assert claimed.fence >= 1
        after = await scene.store.load(scene.tenant_id, case.run.stream_id)
        assert after == before, "a claim writes no event, and leaves the run's own fence alone"
        await scene.audit(case.run.stream_id)

    async def test_a_claimed_effect_is_nobody_elses_until_its_lease_is_over(self, scene: Scene) -> None:
        """§OUT-6."""
        await requested(scene)
        (first,) = await claim(scene, "d1")
        scene.clock.advance(LEASE - timedelta(seconds=1))
        assert await claim(scene, "d2") == []
        assert await claim(scene, "d1") == []
        scene.clock.advance(timedelta(seconds=1))
        (second,) = await claim(scene, "d2")
        assert second.effect == first.effect
        assert second.fence > first.fence

    async def test_claims_at_once_share_nothing(self, scene: Scene) -> None:
        case = await requested(scene, 12)
        claims = await asyncio.gather(*(claim(scene, f"d{number}", limit=5) for number in range(4)))
        taken = Counter(claimed.effect.id for batch in claims for claimed in batch)
        assert taken == Counter({effect.id: 1 for effect in effects_of(case)})

    async def test_a_fleet_that_claims_at_once_shares_no_effect_and_leaves_none(self, scene: Scene) -> None:
        """§OUT-4: each of its stores has the same data, and knows nothing of the others' claims."""
        cases = await asyncio.gather(*(requested(scene, 10) for _ in range(20)))
        asked = sorted(effect.id for case in cases for effect in effects_of(case))
        async with scene.fleet(4) as fleet:
            claims = await asyncio.gather(
                *(claim(fleet[number % 4], f"d{number}", limit=7) for number in range(40))
            )
            rest = await claim(scene, "last", limit=len(asked))
        taken = [claimed for each in (*claims, rest) for claimed in each]
        assert sorted(claimed.effect.id for claimed in taken) == asked

    async def test_only_the_types_asked_for(self, scene: Scene) -> None:
        await requested(scene)
        await requested(scene, effect_type="CHARGE_CARD")
        assert [one.effect.effect_type for one in await claim(scene, types=["CHARGE_CARD", "OTHER"])] == [
            "CHARGE_CARD"
        ]
        assert await claim(scene, types=[]) == []

    async def test_what_has_been_due_longest_goes_first(self, scene: Scene) -> None:
        cases = []
        for _ in range(4):
            cases.append(await requested(scene))
            scene.clock.advance(timedelta(seconds=1))
        (early,) = await claim(scene, limit=1)
        rest = await claim(scene, limit=2)
        assert early.effect == effects_of(cases[0])[0]
        assert [one.effect for one in rest] == [effects_of(case)[0] for case in cases[1:3]]

    async def test_tenants_get_equal_shares(self, scene: Scene) -> None:
        for _ in range(3):
            await requested(scene, 10)
        other = scene.for_tenant(scene.new_id())
        await requested(other, 2)
        taken = Counter(claimed.effect.tenant_id for claimed in await claim(scene, limit=6))
        assert taken == {scene.tenant_id: 4, other.tenant_id: 2}

    async def test_a_tenant_gets_no_more_than_its_bound(self, scene: Scene) -> None:
        await requested(scene, 10)
        other = scene.for_tenant(scene.new_id())
        await requested(other, 10)
        holding = {scene.tenant_id: 3}
        claims = await claim(scene, per_tenant=5, holding=holding)
        assert Counter(claimed.effect.tenant_id for claimed in claims) == {
            scene.tenant_id: 2,
            other.tenant_id: 5,
        }
        assert await claim(scene, per_tenant=5, holding={scene.tenant_id: 5, other.tenant_id: 6}) == []

    async def test_a_failed_effect_is_claimed_when_its_retry_is_due(self, scene: Scene) -> None:
        """§OUT-4."""
        case = await requested(scene)
        (claimed,) = await claim(scene)
        case = await finish(scene, case, claimed, failure(claimed, scene, 60))
        scene.clock.advance(timedelta(seconds=59))
        assert await claim(scene) == []
        scene.clock.advance(timedelta(seconds=1))
        (again,) = await claim(scene, "d2")
        assert (again.effect.status, again.effect.retry_count) == ("FAILED", 1)
        assert again.effect == effects_of(case)[0]
        assert again.fence > claimed.fence

    async def test_an_outcome_ends_the_claim(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        await finish(scene, case, claimed, failure(claimed, scene, 0))
        assert len(await claim(scene, "d2")) == 1, "its lease has not run out, but it is over"

    @pytest.mark.parametrize("error", [None, _GONE], ids=["completed", "dead_letter"])
    async def test_an_effect_that_has_an_outcome_is_not_claimed(
        self, scene: Scene, error: ErrorInfo | None
    ) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        await finish(scene, case, claimed, failure(claimed, scene, 0, error) if error else None)
        scene.clock.advance(LEASE * 10)
        assert await claim(scene) == []
        await scene.audit(case.run.stream_id)

    async def test_effects_of_a_cancelled_run_are_not_claimed(self, scene: Scene) -> None:
        case = await requested(scene)
        await scene.carry(case, commands.CancelRun(exit_reason="ENOUGH"))
        assert await claim(scene) == []

    async def test_a_requeued_dead_letter_is_claimed_again(self, scene: Scene) -> None:
        """§OUT-31, §OUT-32."""
        case = await requested(scene)
        (claimed,) = await claim(scene)
        case = await finish(scene, case, claimed, failure(claimed, scene, 0, _GONE))
        await scene.carry(case, commands.RequeueEffect(effect_id=claimed.effect.id))
        (again,) = await claim(scene)
        assert (again.effect.id, again.effect.retry_count) == (claimed.effect.id, 0)
        assert again.effect.idempotency_key == claimed.effect.idempotency_key

    # Whose outcome counts

    async def test_the_outcome_of_a_stale_claim_is_refused(self, scene: Scene) -> None:
        """§OUT-13."""
        case = await requested(scene)
        (stale,) = await claim(scene, "d1")
        scene.clock.advance(LEASE)
        (valid,) = await claim(scene, "d2")
        with pytest.raises(StaleClaim) as refused:
            await finish(scene, case, stale)
        assert (refused.value.effect_id, refused.value.fence) == (stale.effect.id, stale.fence)
        assert refused.value.actual == valid.fence
        head = await scene.store.load(scene.tenant_id, case.run.stream_id)
        assert head is not None
        assert head.head.last_seq == case.run.last_seq, "nothing was written"
        late = commands.ReportLateOutcome(effect_id=stale.effect.id, executor="d1", result=Raw(b'"sent"'))
        case = await scene.carry(case, late)
        (ledger,) = await scene.store.extend_effects("d2", [valid.effect.id], lease=LEASE)
        assert ledger.effect.execution_result == Raw(b'"sent"'), "the ledger has it before the next call"
        await finish(scene, case, valid)
        await scene.audit(case.run.stream_id)

    async def test_a_claim_that_ran_out_is_good_until_another_has_it(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        scene.clock.advance(LEASE * 2)
        await finish(scene, case, claimed)

    async def test_a_stale_sequence_is_told_before_a_stale_claim(self, scene: Scene) -> None:
        """Whoever decided on an old state reads first: the effect may have ended meanwhile."""
        case = await requested(scene)
        (stale,) = await claim(scene, "d1")
        scene.clock.advance(LEASE)
        await claim(scene, "d2")
        await scene.carry(case, scene.set_variable())
        with pytest.raises(StaleSequence):
            await finish(scene, case, stale)

    async def test_one_stale_hold_refuses_the_whole_commit(self, scene: Scene) -> None:
        case = await requested(scene, 2)
        first, second = await claim(scene, "d1")
        assert await scene.store.release_effects("d1", [second.effect.id]) == 1
        outcomes = [
            commands.CompleteEffect(effect_id=one.effect.id, executor="d1", result=codec.NULL)
            for one in (first, second)
        ]
        holds = tuple(Hold(one.effect.id, one.fence) for one in (first, second))
        with pytest.raises(StaleClaim):
            await scene.store.commit(decide(case, *outcomes, context=scene.context(), holds=holds).commit)
        await finish(scene, case, first)

    async def test_a_hold_can_outlive_its_commit(self, scene: Scene) -> None:
        """§OUT-7: the beginning of an at-most-once effect is durable, and it stays claimed."""
        case = await requested(scene, delivery="at_most_once")
        (claimed,) = await claim(scene)
        begin = commands.BeginEffect(effect_id=claimed.effect.id, executor="d1", fence=claimed.fence)
        hold = Hold(claimed.effect.id, claimed.fence, release=False)
        decision = decide(case, begin, context=scene.context(), holds=(hold,))
        await scene.store.commit(decision.commit)
        assert await claim(scene, "d2") == []
        await finish(scene, decision.case, claimed)
        await scene.audit(case.run.stream_id)

    async def test_an_effect_under_way_is_claimed_when_its_worker_is_dead(self, scene: Scene) -> None:
        """§OUT-26: whoever finds it sees that it was begun."""
        case = await requested(scene, delivery="at_most_once")
        (claimed,) = await claim(scene)
        begin = commands.BeginEffect(effect_id=claimed.effect.id, executor="d1", fence=claimed.fence)
        hold = Hold(claimed.effect.id, claimed.fence, release=False)
        decision = decide(case, begin, context=scene.context(), holds=(hold,))
        await scene.store.commit(decision.commit)
        scene.clock.advance(LEASE)
        (found,) = await claim(scene, "d2")
        assert found.effect.status == "EXECUTING"
        lost = commands.LoseEffect(effect_id=found.effect.id, executor="d1")
        await finish(scene, decision.case, found, lost)
        scene.clock.advance(LEASE * 10)
        assert await claim(scene, "d3") == []

    async def test_the_same_outcome_again_is_repeated(self, scene: Scene) -> None:
        """§STO-19: also after the entry was released and claimed again."""
        case = await requested(scene)
        (claimed,) = await claim(scene)
        hold = (Hold(claimed.effect.id, claimed.fence),)
        decision = decide(case, failure(claimed, scene, 0), context=scene.context(), holds=hold)
        await scene.store.commit(decision.commit)
        await claim(scene, "d2")
        assert (await scene.store.commit(decision.commit)).repeated

    # Leases

    async def test_a_lease_can_be_extended(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene, "d1")
        for _ in range(3):
            scene.clock.advance(LEASE / 2)
            assert await scene.store.extend_effects("d1", [claimed.effect.id], lease=LEASE) == [claimed]
        assert await claim(scene, "d2") == []
        await finish(scene, case, claimed)

    async def test_nobody_extends_what_another_has(self, scene: Scene) -> None:
        await requested(scene)
        (claimed,) = await claim(scene, "d1")
        assert await scene.store.extend_effects("d2", [claimed.effect.id], lease=LEASE) == []
        scene.clock.advance(LEASE)
        (again,) = await claim(scene, "d2")
        assert await scene.store.extend_effects("d1", [claimed.effect.id], lease=LEASE) == []
        assert await scene.store.extend_effects("d2", [claimed.effect.id, scene.new_id()], lease=LEASE) == [
            again
        ]

    async def test_extending_shows_what_became_of_the_effect(self, scene: Scene) -> None:
        """§OUT-9: its run was cancelled while it waited for its call."""
        case = await requested(scene)
        (claimed,) = await claim(scene)
        await scene.carry(case, commands.CancelRun(exit_reason="ENOUGH"))
        (now,) = await scene.store.extend_effects("d1", [claimed.effect.id], lease=LEASE)
        assert now.effect.status == "CANCELLED"

    async def test_released_effects_are_claimed_at_once(self, scene: Scene) -> None:
        case = await requested(scene, 2)
        first, second = await claim(scene, "d1")
        assert await scene.store.release_effects("d2", [first.effect.id]) == 0
        assert await scene.store.release_effects("d1", [first.effect.id]) == 1
        (again,) = await claim(scene, "d2")
        assert again.effect == first.effect
        with pytest.raises(StaleClaim):
            await finish(scene, case, first)
        await finish(scene, case, second)

    async def test_released_effects_can_be_given_a_rest(self, scene: Scene) -> None:
        """A circuit is open: put back for later, and no retry is counted."""
        await requested(scene)
        (claimed,) = await claim(scene)
        until = scene.clock.now() + timedelta(minutes=5)
        assert await scene.store.release_effects("d1", [claimed.effect.id], until=until) == 1
        scene.clock.advance(timedelta(minutes=4, seconds=59))
        assert await claim(scene) == []
        scene.clock.advance(timedelta(seconds=1))
        (again,) = await claim(scene)
        assert again.effect == claimed.effect

    # How often it was claimed

    async def test_claims_are_counted_until_there_is_an_outcome(self, scene: Scene) -> None:
        """§OUT-71: whoever executes it may not live to say so."""
        case = await requested(scene, 2)
        other = effects_of(case)[1].id
        for count in (1, 2, 3):
            claims = await claim(scene, f"d{count}")
            assert [one.claims for one in claims] == [count, count]
            await scene.reopen()
            scene.clock.advance(LEASE)
        claimed, _ = await claim(scene, "d4")
        (kept,) = await scene.store.extend_effects("d4", [claimed.effect.id], lease=LEASE)
        assert (kept.claims, kept.fence) == (4, claimed.fence), "who keeps a claim does not claim"
        case = await finish(scene, case, claimed, failure(claimed, scene, 0))
        scene.clock.advance(LEASE)
        assert {one.effect.id: one.claims for one in await claim(scene, "d5")} == {
            claimed.effect.id: 1,
            other: 5,
        }
        await scene.audit(case.run.stream_id)

    async def test_a_claim_that_is_given_back_does_not_count(self, scene: Scene) -> None:
        """§OUT-71, but those before it do."""
        await requested(scene)
        await claim(scene, "d1")
        scene.clock.advance(LEASE)
        for _ in range(3):
            (claimed,) = await claim(scene, "d2")
            assert claimed.claims == 2
            assert await scene.store.release_effects("d2", [claimed.effect.id]) == 1

    async def test_the_beginning_of_an_effect_is_no_outcome(self, scene: Scene) -> None:
        """§OUT-71."""
        case = await requested(scene, delivery="at_most_once")
        (claimed,) = await claim(scene)
        begin = commands.BeginEffect(effect_id=claimed.effect.id, executor="d1", fence=claimed.fence)
        hold = Hold(claimed.effect.id, claimed.fence, release=False)
        await scene.store.commit(decide(case, begin, context=scene.context(), holds=(hold,)).commit)
        scene.clock.advance(LEASE)
        (found,) = await claim(scene, "d2")
        assert found.claims == 2

    async def test_a_rebuild_keeps_the_count_of_claims(self, scene: Scene) -> None:
        case = await requested(scene)
        await claim(scene, "d1")
        run_id = case.run.stream_id
        rows = await scene.store.rows(scene.tenant_id, run_id)
        await scene.store.replace_rows(scene.tenant_id, run_id, case.run.last_seq, rows)
        scene.clock.advance(LEASE)
        (claimed,) = await claim(scene, "d2")
        assert claimed.claims == 2

    async def test_a_claim_names_the_signal_of_its_run(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        assert claimed.signal_id == case.signal.stream_id

    async def test_leases_outlive_a_restart(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        await scene.reopen()
        assert await claim(scene, "d2") == []
        await finish(scene, case, claimed)
        assert await claim(scene, "d2") == []

    async def test_a_large_spec_is_claimed_by_its_reference(self, scene: Scene) -> None:
        spec = {"user_id": "ann", "message": "x" * 5000}
        case = await requested(scene, spec=spec)
        (claimed,) = await claim(scene)
        assert len(bytes(claimed.effect.effect_spec)) < 2048
        whole = msgspec.json.decode(case.run.whole(claimed.effect.effect_spec))
        assert whole["message"] == spec["message"]


class EffectQueriesSuite(Suite):
    """The ledger and the lists that people look at."""

    async def test_an_effect_is_found_by_id_and_by_key(self, scene: Scene) -> None:
        """§OUT-8."""
        case = await requested(scene, effect_key="pay-1")
        (effect,) = effects_of(case)
        assert await scene.store.get_effect(scene.tenant_id, effect.id) == effect
        assert await scene.store.find_effect(scene.tenant_id, "pay-1") == effect
        assert await scene.store.find_effect(scene.tenant_id, "pay-2") is None
        assert await scene.store.get_effect(scene.tenant_id, scene.new_id()) is None
        stranger = scene.new_id()
        assert await scene.store.get_effect(stranger, effect.id) is None
        assert await scene.store.find_effect(stranger, "pay-1") is None
        assert await scene.store.list_effects(stranger) == []
        assert await scene.store.effect_groups(stranger) == []

    async def test_effects_are_listed_by_status_type_and_error(self, scene: Scene) -> None:
        pending = effects_of(await requested(scene, effect_type="CHARGE_CARD"))
        dead = []
        for error in (_GONE, _BUSY, _GONE):
            case = await requested(scene, max_retries=0)
            (claimed,) = await claim(scene)
            case = await finish(scene, case, claimed, failure(claimed, scene, 0, error))
            dead += effects_of(case)
        newest_first = sorted([*pending, *dead], key=lambda effect: effect.id, reverse=True)
        tenant = scene.tenant_id
        assert list(await scene.store.list_effects(tenant)) == newest_first
        assert list(await scene.store.list_effects(tenant, limit=2)) == newest_first[:2]
        assert (
            list(await scene.store.list_effects(tenant, after=newest_first[1].id, limit=2))
            == newest_first[2:4]
        )
        assert list(await scene.store.list_effects(tenant, status="PENDING")) == pending
        assert list(await scene.store.list_effects(tenant, effect_type="CHARGE_CARD")) == pending
        gone = await scene.store.list_effects(tenant, status="DEAD_LETTER", error_code="GONE")
        assert {effect.id for effect in gone} == {dead[0].id, dead[2].id}
        groups = await scene.store.effect_groups(tenant, status="DEAD_LETTER")
        assert [(group.effect_type, group.error_code, group.count) for group in groups] == [
            (TYPE, "BUSY", 1),
            (TYPE, "GONE", 2),
        ]
        everything = await scene.store.effect_groups(tenant)
        assert [(group.status, group.error_code, group.count) for group in everything] == [
            ("DEAD_LETTER", "BUSY", 1),
            ("DEAD_LETTER", "GONE", 2),
            ("PENDING", None, 1),
        ]
