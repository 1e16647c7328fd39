"""Claims, heartbeats and releases: who works on which run (§STO-20 to §STO-25)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from runstone.ports.store import Claim
from runstone.stores.sql import statements

_SQL: Final = statements("sqlite")


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
    rows = _take_fairly(connection, due, _tenants(connection, now), limit)
    return [_claimed(connection, row) for row in sorted(rows, key=lambda row: (row[4], row[0]))]


def _tenants(connection: sqlite3.Connection, now: int) -> list[str]:
    """Who has something due."""
    found: list[str] = []
    place = {"tenant_id": "", "now": now}
    while row := connection.execute(_SQL["next_due_tenant"], place).fetchone():
        found.append(row[0])
        place["tenant_id"] = row[0]
    return found


def _take_fairly(
    connection: sqlite3.Connection, due: dict[str, Any], tenants: list[str], limit: int
) -> list[tuple[Any, ...]]:
    """An equal share for each tenant; what one does not use goes to the others."""
    taken: list[tuple[Any, ...]] = []
    while tenants and len(taken) < limit:
        share = max(1, (limit - len(taken)) // len(tenants))
        for tenant_id in list(tenants):
            most = min(share, limit - len(taken))
            got = connection.execute(_SQL["claim"], {**due, "tenant_id": tenant_id, "limit": most}).fetchall()
            taken += got
            if len(got) < most or most == 0:
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
