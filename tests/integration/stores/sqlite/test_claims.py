"""Effects are read when they are claimed already: what becomes of them in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runstone.ports.store import EffectClaim
from runstone.stores.sqlite import SqliteStore, reads
from runstone.testing.clock import VirtualClock
from tests.integration.stores.sqlite import scene


@pytest.mark.parametrize("extended", [False, True])
async def test_what_another_has_taken_since_is_not_ones_own(
    extended: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    async with await SqliteStore.open(path, clock=clock) as store:
        effect = await scene.asked_for(store)
        clock.set(effect.requested_at)

        async def claim(worker_id: str) -> Sequence[EffectClaim]:
            return await store.claim_effects(
                worker_id, types=[effect.effect_type], limit=9, lease=scene.LEASE
            )

        if extended:
            assert len(await claim("slow")) == 1
        taken: list[EffectClaim] = []
        read = store._read

        async def slowly(query: Any, *arguments: Any) -> Any:
            if query is reads.find_held and arguments[0] == "slow":
                clock.advance(scene.LEASE)
                taken.extend(await claim("quick"))
            return await read(query, *arguments)

        monkeypatch.setattr(store, "_read", slowly)
        if extended:
            assert await store.extend_effects("slow", [effect.id], lease=scene.LEASE) == []
        else:
            assert await claim("slow") == []
        assert [one.effect.id for one in taken] == [effect.id]
