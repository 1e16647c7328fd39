"""Claims, heartbeats and releases: who works on which run (§STO-20 to §STO-25) and on which effect (§OUT-4).

A claim is one statement that locks what it takes and never waits: what others hold is left to them.
Runs of lanes are another matter. How many of a lane are under way is not to be seen in the rows that
are locked, so claims of lanes take turns, and look after their turn has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from runstone.ports.store import Claim, EffectClaim
from runstone.stores.postgres import reads
from runstone.stores.postgres.connections import Connection
from runstone.stores.sql import statements

_SQL: Final = statements("postgres")


class Claims:
    """Takes runs for workers; remembers whether there were lanes the last time."""

    def __init__(self) -> None:
        self._lanes = False

    async def claim(
        self,
        connection: Connection,
        worker_id: str,
        handlers: Sequence[str],
        code_rank: str,
        limit: int,
        now: datetime,
        lease_until: datetime,
    ) -> list[Claim]:
        """Takes due runs, an equal share for each tenant; what one does not use goes to the others."""
        taken: list[Any] = []
        while True:
            asked = (worker_id, lease_until, now, list(handlers), code_rank, limit - len(taken))
            lanes = self._lanes
            rows = await self._take(connection, lanes, *asked)
            self._lanes = rows[0]["lanes"]
            got = [row for row in rows if row["run_id"] is not None]
            taken += got
            shares = Counter(row["tenant_id"] for row in got)
            more = got and max(shares.values()) >= got[0]["share"]
            if len(taken) >= limit or not (more or (self._lanes and not lanes)):
                break
        taken.sort(key=lambda row: (row["wake_at"], row["run_id"]))
        return [
            Claim(
                run_id=row["run_id"],
                tenant_id=row["tenant_id"],
                handler=row["handler"],
                fence=row["fence"],
                attempts=row["attempts"],
            )
            for row in taken
        ]

    async def _take(self, connection: Connection, lanes: bool, *asked: Any) -> Sequence[Any]:
        if not lanes:
            return await connection.fetch(_SQL["claim"], *asked, False)
        async with connection.transaction():
            await connection.execute(_SQL["lanes_in_turn"])
            return await connection.fetch(_SQL["claim"], *asked, True)


async def heartbeat(
    connection: Connection, worker_id: str, lease_until: datetime
) -> tuple[dict[str, int], datetime]:
    """Keeps a worker's runs its own for another while; the news of each, and the server's time."""
    rows = await connection.fetch(_SQL["heartbeat"], worker_id, lease_until)
    owned = {row["run_id"]: row["news_seq"] for row in rows if row["run_id"] is not None}
    return owned, rows[0]["now"]


async def release(connection: Connection, worker_id: str, run_ids: Sequence[str] | None) -> int:
    """Gives runs back; a write of theirs that is still on its way comes too late then."""
    named = None if run_ids is None else list(run_ids)
    count: int = await connection.fetchval(_SQL["release"], worker_id, named)
    return count


# Effects


async def claim_effects(
    connection: Connection,
    worker_id: str,
    types: Sequence[str],
    limit: int,
    now: datetime,
    held_until: datetime,
    per_tenant: int | None,
    holding: Mapping[str, int],
) -> list[EffectClaim]:
    """Takes outbox entries that are due, an equal share for each tenant as far as it has room."""
    holds = Counter(holding)
    taken: list[str] = []
    while len(taken) < limit:
        left = limit - len(taken)
        room = (per_tenant, list(holds), list(holds.values()))
        asked = (worker_id, held_until, now, list(types), left, *room)
        rows = await connection.fetch(_SQL["claim_effects"], *asked)
        taken += (row["id"] for row in rows)
        got = Counter(row["tenant_id"] for row in rows)
        holds.update(got)
        if not rows or max(got.values()) < rows[0]["share"]:
            break
    return await reads.held_effects(connection, taken) if taken else []


async def extend_effects(
    connection: Connection, worker_id: str, effect_ids: Sequence[str], held_until: datetime
) -> list[EffectClaim]:
    """Keeps a worker's outbox entries its own for another while."""
    rows = await connection.fetch(_SQL["extend_effects"], worker_id, held_until, list(effect_ids))
    return await reads.held_effects(connection, [row[0] for row in rows]) if rows else []


async def release_effects(
    connection: Connection, worker_id: str, effect_ids: Sequence[str], until: datetime | None
) -> int:
    """Puts outbox entries back."""
    count: int = await connection.fetchval(_SQL["release_effects"], worker_id, list(effect_ids), until)
    return count


async def release_stray_effects(
    connection: Connection, worker_id: str, keeping: Sequence[str], since: datetime
) -> int:
    """Puts back what a worker has without its knowing."""
    count: int = await connection.fetchval(_SQL["release_stray_effects"], worker_id, since, list(keeping))
    return count
