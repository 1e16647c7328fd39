"""Claims, heartbeats and releases: who works on which run (§STO-20 to §STO-25)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

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
    due = connection.execute(
        _SQL["claim"],
        {
            "worker_id": worker_id,
            "handlers": json.dumps(list(handlers)),
            "code_rank": code_rank,
            "limit": limit,
            "now": now,
        },
    ).fetchall()
    claims: list[Claim] = []
    for run_id, tenant_id, handler, attempts, _ in sorted(due, key=lambda row: (row[4], row[0])):
        (fence,) = connection.execute(_SQL["raise_fence"], {"stream_id": run_id}).fetchone()
        claims.append(
            Claim(run_id=run_id, tenant_id=tenant_id, handler=handler, fence=fence, attempts=attempts)
        )
    return claims


def heartbeat(connection: sqlite3.Connection, worker_id: str, lease_until: int) -> dict[str, int]:
    """Keeps a worker's runs its own for another while."""
    connection.execute(_SQL["extend_lease"], {"worker_id": worker_id, "lease_until": lease_until})
    return dict(connection.execute(_SQL["owned"], {"worker_id": worker_id}))


def release(connection: sqlite3.Connection, worker_id: str, run_ids: Sequence[str] | None) -> int:
    """Gives runs back."""
    named = None if run_ids is None else json.dumps(list(run_ids))
    released = connection.execute(_SQL["release"], {"worker_id": worker_id, "run_ids": named}).rowcount
    connection.execute(_SQL["retire_worker"], {"worker_id": worker_id})
    return released
