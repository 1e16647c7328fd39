"""Claims, heartbeats and releases: who works on which run (§STO-20 to §STO-25), which effect (§OUT-4)."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from runstone.ports.store import Claim
from runstone.stores.sql import statements

_T = TypeVar("_T")
_SQL: Final = statements("sqlite")
_ANY_TIME: Final = 2**62
"""Later than whatever is due."""


def claim(
    connection: sqlite3.Connection,
    worker_id: str,
    handlers: Sequence[str],
    code_rank: str,
    limit: int,
    now: int,
    lease_until: int,
) -> list[Claim]:
    """Takes due runs for a worker, and shuts their former owners out."""
    connection.execute(_SQL["extend_lease"], {"worker_id": worker_id, "lease_until": lease_until})
    due = {
        "worker_id": worker_id,
        "handlers": json.dumps(list(handlers)),
        "code_rank": code_rank,
        "now": now,
    }

    def take(tenant_id: str, most: int) -> list[tuple[Any, ...]]:
        return connection.execute(_SQL["claim"], {**due, "tenant_id": tenant_id, "limit": most}).fetchall()

    rows = _take_fairly(take, _tenants(connection, _SQL["next_due_tenant"], now), limit)
    return [_claimed(connection, row) for row in sorted(rows, key=lambda row: (row[4], row[0]))]


def _tenants(connection: sqlite3.Connection, next_tenant: str, now: int) -> list[str]:
    """Who has something due."""
    found: list[str] = []
    place = {"tenant_id": "", "now": now}
    while row := connection.execute(next_tenant, place).fetchone():
        found.append(row[0])
        place["tenant_id"] = row[0]
    return found


def _take_fairly(
    take: Callable[[str, int], list[_T]],
    tenants: list[str],
    limit: int,
    room: Callable[[str], int | None] = lambda tenant_id: None,
) -> list[_T]:
    """An equal share for each tenant, as far as it has room; what one does not use goes to the others."""
    taken: list[_T] = []
    while tenants and len(taken) < limit:
        share = max(1, (limit - len(taken)) // len(tenants))
        for tenant_id in list(tenants):
            left = room(tenant_id)
            most = min(share, limit - len(taken), share if left is None else left)
            got = take(tenant_id, most) if most > 0 else []
            taken += got
            if len(got) < most or most <= 0:
                tenants.remove(tenant_id)
    return taken


def _claimed(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Claim:
    run_id, tenant_id, handler, attempts, _ = row
    (fence,) = connection.execute(_SQL["raise_fence"], {"stream_id": run_id}).fetchone()
    return Claim(run_id=run_id, tenant_id=tenant_id, handler=handler, fence=fence, attempts=attempts)


def heartbeat(connection: sqlite3.Connection, worker_id: str, lease_until: int) -> dict[str, int]:
    """Keeps a worker's runs its own for another while."""
    connection.execute(_SQL["extend_lease"], {"worker_id": worker_id, "lease_until": lease_until})
    return dict(connection.execute(_SQL["owned"], {"worker_id": worker_id}))


def release(connection: sqlite3.Connection, worker_id: str, run_ids: Sequence[str] | None) -> int:
    """Gives runs back; a write of theirs that is still on its way comes too late then."""
    named = None if run_ids is None else json.dumps(list(run_ids))
    released = connection.execute(_SQL["release"], {"worker_id": worker_id, "run_ids": named}).fetchall()
    for (run_id,) in released:
        connection.execute(_SQL["raise_fence"], {"stream_id": run_id}).fetchone()
    connection.execute(_SQL["retire_worker"], {"worker_id": worker_id})
    return len(released)


def claim_effects(
    connection: sqlite3.Connection,
    worker_id: str,
    types: Sequence[str],
    limit: int,
    now: int,
    held_until: int,
    per_tenant: int | None,
    holding: Mapping[str, int],
) -> list[str]:
    """Takes outbox entries that are due, fairly between tenants; the ids of their effects."""
    due = {"worker_id": worker_id, "types": json.dumps(list(types)), "now": now, "held_until": held_until}
    taken = Counter(holding)

    def take(tenant_id: str, most: int) -> list[str]:
        wanted = {**due, "tenant_id": tenant_id, "limit": most}
        (effect_ids,) = connection.execute(_SQL["claimable_effects"], wanted).fetchone()
        connection.execute(_SQL["claim_effects"], {**due, "effect_ids": effect_ids})
        got: list[str] = json.loads(effect_ids)
        taken[tenant_id] += len(got)
        return got

    def room(tenant_id: str) -> int | None:
        return None if per_tenant is None else per_tenant - taken[tenant_id]

    return _take_fairly(take, _tenants(connection, _SQL["next_tenant_with_effects"], now), limit, room)


def extend_effects(
    connection: sqlite3.Connection, worker_id: str, effect_ids: Sequence[str], held_until: int
) -> list[str]:
    """Keeps a worker's outbox entries its own for another while; the ids of their effects."""
    named = {"worker_id": worker_id, "effect_ids": json.dumps(list(effect_ids)), "held_until": held_until}
    return [row[0] for row in connection.execute(_SQL["extend_effects"], named).fetchall()]


def release_effects(
    connection: sqlite3.Connection, worker_id: str, effect_ids: Sequence[str], held_until: int
) -> int:
    """Puts outbox entries back."""
    named = {"worker_id": worker_id, "effect_ids": json.dumps(list(effect_ids)), "held_until": held_until}
    return connection.execute(_SQL["release_effects"], named).rowcount


def release_stray_effects(
    connection: sqlite3.Connection, worker_id: str, keeping: Sequence[str], since: int
) -> int:
    """Puts back what a worker has without its knowing, in whatever tenant."""
    named = {"worker_id": worker_id, "keeping": json.dumps(list(keeping)), "since": since}
    return sum(
        connection.execute(_SQL["release_stray_effects"], {**named, "tenant_id": tenant_id}).rowcount
        for tenant_id in _tenants(connection, _SQL["next_tenant_with_effects"], _ANY_TIME)
    )
