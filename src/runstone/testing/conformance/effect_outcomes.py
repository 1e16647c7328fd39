"""The suite of what came of effects: whose outcome counts, and when (§OUT-13)."""

from __future__ import annotations

import pytest
from msgspec import Raw

from runstone.core import codec, commands
from runstone.core.commit import Hold
from runstone.core.decide import decide
from runstone.errors import StaleClaim, StaleSequence
from runstone.testing.conformance.outbox import (
    claim,
    failure,
    finish,
    requested,
)
from runstone.testing.conformance.scene import LEASE, Scene, Suite


class EffectOutcomeSuite(Suite):
    """Outcomes, and the fences of the claims that they come from."""

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
