"""The suite of `Host`: commits, claims, the outbox, the feed, checkpoints, and recovery from every fault."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from runstone.core.checkpoint import Checkpoint, checkpoint
from runstone.testing.conformance.claims import ClaimSuite
from runstone.testing.conformance.commits import CommitSuite
from runstone.testing.conformance.effect_leases import EffectLeaseSuite
from runstone.testing.conformance.effect_outcomes import EffectOutcomeSuite
from runstone.testing.conformance.feeds import FeedSuite
from runstone.testing.conformance.outbox import OutboxSuite
from runstone.testing.conformance.rules import RuleSuite
from runstone.testing.conformance.scene import OpenStore, Scene, Suite
from runstone.testing.conformance.walks import check_one_run, one_run, walk_faults
from runstone.testing.faults import Fault


class CheckpointSuite(Suite):
    """Checkpoints, a cache that may be lost (§ENG-35)."""

    async def _taken(self, scene: Scene, index: int, run_id: str | None = None) -> Checkpoint:
        case = await scene.running()
        taken = checkpoint(case.run, scene.new_id(), scene.clock.now())
        return msgspec.structs.replace(taken, checkpoint_index=index, run_id=run_id or taken.run_id)

    async def test_checkpoints_come_back_the_newest_first(self, scene: Scene) -> None:
        first = await self._taken(scene, 0)
        others = [await self._taken(scene, index, first.run_id) for index in (2, 1)]
        for kept in (first, *others):
            await scene.store.put_checkpoint(kept)
        await scene.store.put_checkpoint(await self._taken(scene, 0))
        found = await scene.store.checkpoints(scene.tenant_id, first.run_id)
        assert list(found) == [others[0], others[1], first]
        assert found[-1].read() == first.read() is not None

    async def test_a_checkpoint_replaces_the_one_of_its_index(self, scene: Scene) -> None:
        old = await self._taken(scene, 0)
        new = await self._taken(scene, 0, old.run_id)
        await scene.store.put_checkpoint(old)
        await scene.store.put_checkpoint(new)
        assert list(await scene.store.checkpoints(scene.tenant_id, old.run_id)) == [new]

    async def test_checkpoints_expire(self, scene: Scene) -> None:
        """§STO-33."""
        old = await self._taken(scene, 0)
        await scene.store.put_checkpoint(old)
        scene.clock.advance(timedelta(days=6))
        new = await self._taken(scene, 1, old.run_id)
        await scene.store.put_checkpoint(new)
        assert list(await scene.store.checkpoints(scene.tenant_id, old.run_id)) == [new, old]
        assert await scene.store.delete_checkpoints() == 0
        scene.clock.advance(timedelta(days=1, seconds=1))
        assert list(await scene.store.checkpoints(scene.tenant_id, old.run_id)) == [new]
        assert await scene.store.delete_checkpoints() == 1
        assert await scene.store.delete_checkpoints() == 0

    async def test_the_checkpoints_of_a_run_can_be_deleted(self, scene: Scene) -> None:
        mine = [await self._taken(scene, 0)]
        mine.append(await self._taken(scene, 1, mine[0].run_id))
        other = await self._taken(scene, 0)
        for kept in (*mine, other):
            await scene.store.put_checkpoint(kept)
        assert await scene.store.delete_checkpoints(run_id=mine[0].run_id) == 2
        assert list(await scene.store.checkpoints(scene.tenant_id, mine[0].run_id)) == []
        assert list(await scene.store.checkpoints(scene.tenant_id, other.run_id)) == [other]

    async def test_a_tenant_sees_no_checkpoint_of_another(self, scene: Scene) -> None:
        """§TEN-6."""
        kept = await self._taken(scene, 0)
        await scene.store.put_checkpoint(kept)
        assert list(await scene.store.checkpoints(scene.new_id(), kept.run_id)) == []


class FaultSuite(Suite):
    """Whatever fails, a caller who follows the contract ends where it would have ended anyway."""

    @pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
    async def test_a_run_survives_a_fault_of_any_operation(self, open_store: OpenStore, fault: Fault) -> None:
        """§STO-19."""
        assert await walk_faults(open_store, one_run, check_one_run, faults=[fault]) > 10


class HostSuite(
    CommitSuite,
    RuleSuite,
    ClaimSuite,
    OutboxSuite,
    EffectOutcomeSuite,
    EffectLeaseSuite,
    FeedSuite,
    CheckpointSuite,
    FaultSuite,
):
    """What a store that hosts the engine has to pass."""
