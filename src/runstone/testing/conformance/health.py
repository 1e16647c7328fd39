"""The suite of `Health`: a store knows how the work in it is going."""

from __future__ import annotations

from datetime import timedelta

from runstone.core import commands
from runstone.testing.conformance.retention import dies, with_effect
from runstone.testing.conformance.scene import LEASE, Scene, Suite


class HealthSuite(Suite):
    """What `runstone doctor` goes by."""

    async def test_nothing_is_wrong_with_an_empty_store(self, scene: Scene) -> None:
        vitals = await scene.store.vitals()
        assert vitals.latest is None
        assert (vitals.lost_workers, vitals.paused) == ((), ())
        assert (vitals.due_runs.count, vitals.due_runs.since, vitals.due_effects.count) == (0, None, 0)
        assert (vitals.dead_letters, vitals.unknown_effects) == (0, 0)

    async def test_runs_that_nobody_takes(self, scene: Scene) -> None:
        first = await scene.queued()
        since = scene.clock.now()
        scene.clock.advance(timedelta(minutes=5))
        await scene.queued()
        vitals = await scene.store.vitals()
        assert vitals.due_runs.count == 2
        assert (vitals.due_runs.since, vitals.due_runs.example) == (since, first.run.stream_id)
        assert vitals.latest == scene.clock.now()
        await scene.claim()
        assert (await scene.store.vitals()).due_runs.count == 0

    async def test_runs_that_are_not_due(self, scene: Scene) -> None:
        case = await scene.running()
        later = scene.clock.now() + timedelta(hours=1)
        await scene.carry(case, commands.SuspendRun(wake_at=later))
        assert (await scene.store.vitals()).due_runs.count == 0
        scene.clock.advance(timedelta(hours=1))
        assert (await scene.store.vitals()).due_runs.since == later

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
        assert vitals.due_runs.count == 1
        await scene.claim("w2")
        assert (await scene.store.vitals()).lost_workers == ()

    async def test_effects_that_nobody_sends(self, scene: Scene) -> None:
        await with_effect(scene)
        since = scene.clock.now()
        scene.clock.advance(timedelta(minutes=5))
        due = (await scene.store.vitals()).due_effects
        assert (due.count, due.since) == (1, since)
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
        assert (vitals.dead_letters, vitals.unknown_effects, vitals.due_effects.count) == (1, 1, 0)

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
