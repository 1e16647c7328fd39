"""The suite of `Health`: a store knows how the work in it is going."""

from __future__ import annotations

from datetime import datetime, timedelta

from runstone.core import commands
from runstone.core.decide import Case
from runstone.ports.health import DueRuns
from runstone.testing.conformance.retention import dies, with_effect
from runstone.testing.conformance.scene import HANDLER, LEASE, Scene, Suite


class HealthSuite(Suite):
    """What `runstone doctor` goes by."""

    async def test_nothing_is_wrong_with_an_empty_store(self, scene: Scene) -> None:
        vitals = await scene.store.vitals()
        assert vitals.latest is None
        assert (vitals.lost_workers, vitals.paused) == ((), ())
        assert (vitals.due_runs, vitals.due_effects.since, vitals.due_effects.count) == ((), None, 0)
        assert (vitals.dead_letters, vitals.unknown_effects, vitals.tenants) == ({}, {}, {})

    async def test_runs_that_nobody_takes(self, scene: Scene) -> None:
        """By what a worker has to have for them: the handler, and the version of its code."""
        first = await scene.queued(orchestrator_version="1.0")
        since = scene.clock.now()
        scene.clock.advance(timedelta(minutes=5))
        await scene.queued(orchestrator_version="1.0")
        older = await scene.queued(orchestrator_version="0.9")
        other = await scene.queued(plan_id="another", orchestrator_version="1.0")
        now = scene.clock.now()
        vitals = await scene.store.vitals()

        def due(handler: str, version: str, count: int, since: datetime, example: Case) -> DueRuns:
            return DueRuns(
                handler=handler,
                version=version,
                count=count,
                since=since,
                example=example.run.stream_id,
                tenant_id=scene.tenant_id,
            )

        of_another = due("another", "1.0", 1, now, other)
        assert vitals.due_runs == (
            of_another,
            due(HANDLER, "0.9", 1, now, older),
            due(HANDLER, "1.0", 2, since, first),
        )
        assert vitals.latest == now
        await scene.claim()
        assert (await scene.store.vitals()).due_runs == (of_another,)

    async def test_runs_that_are_not_due(self, scene: Scene) -> None:
        case = await scene.running()
        later = scene.clock.now() + timedelta(hours=1)
        await scene.carry(case, commands.SuspendRun(wake_at=later))
        assert (await scene.store.vitals()).due_runs == ()
        scene.clock.advance(timedelta(hours=1))
        assert [due.since for due in (await scene.store.vitals()).due_runs] == [later]

    async def test_workers_that_are_gone(self, scene: Scene) -> None:
        """Their runs are due again."""
        await scene.queued()
        await scene.claim("w1")
        assert (await scene.store.vitals()).lost_workers == ()
        until = scene.clock.now() + LEASE
        scene.clock.advance(LEASE)
        vitals = await scene.store.vitals()
        (lost,) = vitals.lost_workers
        assert (lost.worker_id, lost.lease_until, lost.runs) == ("w1", until, 1)
        assert [due.count for due in vitals.due_runs] == [1]
        await scene.claim("w2")
        assert (await scene.store.vitals()).lost_workers == ()

    async def test_effects_that_nobody_sends(self, scene: Scene) -> None:
        await with_effect(scene)
        since = scene.clock.now()
        scene.clock.advance(timedelta(minutes=5))
        due = (await scene.store.vitals()).due_effects
        assert (due.count, due.since, due.tenant_id) == (1, since, scene.tenant_id)
        assert await scene.store.claim_effects("d1", types=["SEND_EMAIL"], limit=1, lease=LEASE)
        assert (await scene.store.vitals()).due_effects.count == 0

    async def test_effects_that_wait_for_a_person(self, scene: Scene) -> None:
        await with_effect(scene, dies(scene))
        await with_effect(
            scene,
            lambda of: commands.BeginEffect(effect_id=of, executor="mail"),
            lambda of: commands.LoseEffect(effect_id=of, executor="mail"),
            delivery="at_most_once",
        )
        vitals = await scene.store.vitals()
        mine = {scene.tenant_id: 1}
        assert (vitals.dead_letters, vitals.unknown_effects, vitals.due_effects.count) == (mine, mine, 0)
        assert vitals.tenants == {scene.tenant_id: 2}

    async def test_whose_it_is(self, scene: Scene) -> None:
        """What is counted is counted by tenant, and an example is named with its own."""
        other = scene.for_tenant(scene.new_id())
        for each, count in ((scene, 1), (other, 2)):
            for _ in range(count):
                await with_effect(each, dies(each))
                each.clock.advance(timedelta(minutes=1))
            await each.carry(await each.running(), commands.PauseRun(reason=each.tenant_id))
        vitals = await scene.store.vitals()
        assert vitals.dead_letters == {scene.tenant_id: 1, other.tenant_id: 2}
        assert vitals.tenants == {scene.tenant_id: 2, other.tenant_id: 3}
        assert all(paused.tenant_id == paused.reason for paused in vitals.paused)
        assert len(vitals.paused) == 2

    async def test_runs_that_are_paused_by_reason(self, scene: Scene) -> None:
        """The last reason counts."""
        cases = [await scene.running() for _ in range(3)]
        first = await scene.carry(cases[0], commands.PauseRun(reason="OPERATOR"))
        first = await scene.carry(first, scene.control("RESUME"))
        await scene.carry(first, commands.PauseRun(reason="NON_DETERMINISTIC"))
        await scene.carry(cases[1], commands.PauseRun(reason="NON_DETERMINISTIC"))
        await scene.carry(cases[2], commands.PauseRun(reason="OPERATOR"))
        paused = (await scene.store.vitals()).paused
        assert [(one.reason, one.count) for one in paused] == [("NON_DETERMINISTIC", 2), ("OPERATOR", 1)]
        assert paused[1].example == cases[2].run.stream_id
