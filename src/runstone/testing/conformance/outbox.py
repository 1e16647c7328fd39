"""The suite of the outbox: which effects may be claimed, by whom, and in which order (§OUT-4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.commit import Hold
from runstone.core.decide import Case, decide
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo, OutputResult
from runstone.ports.store import EffectClaim
from runstone.testing.conformance.scene import LEASE, Scene, Suite

TYPE: Final = "NOTIFY_USER"
BUSY: Final = ErrorInfo(category="EXTERNAL", code="BUSY", message="Not now", retryable=True)
GONE: Final = ErrorInfo(category="EXTERNAL", code="GONE", message="No such user")


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


def failure(claimed: EffectClaim, scene: Scene, seconds: float, error: ErrorInfo = BUSY) -> commands.Command:
    return commands.FailEffect(
        effect_id=claimed.effect.id,
        executor="d",
        error=error,
        next_retry_at=scene.clock.now() + timedelta(seconds=seconds),
    )


class OutboxSuite(Suite):
    """Claims of effects."""

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

    async def test_a_retry_comes_behind_what_was_due_before_it(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        await finish(scene, case, claimed, failure(claimed, scene, 60))
        newer = await requested(scene)
        scene.clock.advance(timedelta(seconds=60))
        assert [one.effect.id for one in await claim(scene)] == [effects_of(newer)[0].id, claimed.effect.id]

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

    @pytest.mark.parametrize("error", [None, GONE], ids=["completed", "dead_letter"])
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
        case = await finish(scene, case, claimed, failure(claimed, scene, 0, GONE))
        await scene.carry(case, commands.RequeueEffect(effect_id=claimed.effect.id))
        (again,) = await claim(scene)
        assert (again.effect.id, again.effect.retry_count) == (claimed.effect.id, 0)
        assert again.effect.idempotency_key == claimed.effect.idempotency_key

    async def test_a_claim_names_the_signal_of_its_run(self, scene: Scene) -> None:
        case = await requested(scene)
        (claimed,) = await claim(scene)
        assert claimed.signal_id == case.signal.stream_id

    async def test_a_large_spec_is_claimed_by_its_reference(self, scene: Scene) -> None:
        spec = {"user_id": "ann", "message": "x" * 5000}
        case = await requested(scene, spec=spec)
        (claimed,) = await claim(scene)
        assert len(bytes(claimed.effect.effect_spec)) < 2048
        whole = msgspec.json.decode(case.run.whole(claimed.effect.effect_spec))
        assert whole["message"] == spec["message"]
