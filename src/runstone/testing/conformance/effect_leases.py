"""The suite of the leases of effects: who keeps them, who gives them back, and how often they were given."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runstone.core import commands
from runstone.core.commit import Hold
from runstone.core.decide import decide
from runstone.errors import StaleClaim
from runstone.testing.conformance.outbox import (
    claim,
    effects_of,
    failure,
    finish,
    requested,
)
from runstone.testing.conformance.scene import LEASE, Scene, Suite


class EffectLeaseSuite(Suite):
    """How long an effect is its claimant's, and how often it was claimed (§OUT-71)."""

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

    async def test_leases_outlive_a_restart(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        await scene.reopen()
        assert await claim(scene, "d2") == []
        await finish(scene, case, claimed)
        assert await claim(scene, "d2") == []

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

    async def test_what_a_worker_does_not_know_of_is_put_back(self, scene: Scene) -> None:
        """§OUT-76: of all tenants, and without counting; neither what it names, nor what another has."""
        since = scene.clock.now()
        case = await requested(scene, 3)
        other = scene.for_tenant(scene.new_id())
        elsewhere = await requested(other)
        taken = await claim(scene, "d1")
        kept = next(one for one in taken if one.effect.run_id == case.run.stream_id)
        lost = [one for one in taken if one is not kept]
        assert {one.effect.tenant_id for one in lost} == {scene.tenant_id, other.tenant_id}
        await requested(scene)
        (others,) = await claim(scene, "d2")
        assert await scene.store.release_stray_effects("d1", keeping=[kept.effect.id], since=since) == 3
        assert await scene.store.release_stray_effects("d1", keeping=[kept.effect.id], since=since) == 0
        again = await claim(scene, "d3")
        assert {one.effect.id: one.claims for one in again} == {one.effect.id: 1 for one in lost}
        fences = {one.effect.id: one.fence for one in again}
        assert all(fences[one.effect.id] > one.fence for one in lost)
        assert await scene.store.extend_effects("d1", [kept.effect.id], lease=LEASE) == [kept]
        assert await scene.store.extend_effects("d2", [others.effect.id], lease=LEASE) == [others]
        cases = {one.run.stream_id: one for one in (case, elsewhere)}
        for stale in lost:
            with pytest.raises(StaleClaim):
                await finish(scene, cases[stale.effect.run_id], stale)
        await finish(scene, case, kept)

    async def test_a_stray_is_found_by_how_long_it_is_leased(self, scene: Scene) -> None:
        """§OUT-76: after its lease too. One whose effect has ended is none."""
        await requested(scene)
        (claimed,) = await claim(scene, "d1")
        withdrawn = await requested(scene)
        assert len(await claim(scene, "d1")) == 1
        since = scene.clock.now()
        await scene.carry(withdrawn, commands.CancelRun(exit_reason="ENOUGH"))
        scene.clock.advance(LEASE * 2)
        assert await scene.store.release_stray_effects("d1", keeping=[], since=scene.clock.now()) == 0
        assert await scene.store.release_stray_effects("d1", keeping=[], since=since) == 1
        (again,) = await claim(scene, "d2")
        assert (again.effect.id, again.claims) == (claimed.effect.id, 1)

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
