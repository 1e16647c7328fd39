"""The suite of the ledger of effects, and of the lists that people look at (§OUT-8)."""

from __future__ import annotations

from runstone.testing.conformance.outbox import (
    BUSY,
    GONE,
    TYPE,
    claim,
    effects_of,
    failure,
    finish,
    requested,
)
from runstone.testing.conformance.scene import Scene, Suite


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
        for error in (GONE, BUSY, GONE):
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
