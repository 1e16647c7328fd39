"""Checkpoints: a cache that may be lost (§STO-33)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from runstone.core.checkpoint import Checkpoint
from runstone.stores.postgres.connections import Connection
from runstone.stores.postgres.rows import CHECKPOINTS
from runstone.stores.sql import statements

_SQL: Final = statements("postgres")
_PUT: Final = (
    _SQL["put_checkpoint"]
    .replace("{checkpoint_columns}", ", ".join(CHECKPOINTS.columns))
    .replace("{marks}", ", ".join(f"${place}" for place in range(1, len(CHECKPOINTS.columns) + 1)))
    .replace("{changes}", ", ".join(f"{column} = excluded.{column}" for column in CHECKPOINTS.columns))
)
_GOOD: Final = _SQL["checkpoints"].replace("{checkpoint_selected}", CHECKPOINTS.selected)


async def put(connection: Connection, checkpoint: Checkpoint) -> None:
    await connection.execute(_PUT, *CHECKPOINTS.pack(checkpoint))


async def good(connection: Connection, tenant_id: str, run_id: str, now: datetime) -> Sequence[Checkpoint]:
    """A run's checkpoints that have not expired, the newest first."""
    return list(map(CHECKPOINTS.unpack, await connection.fetch(_GOOD, tenant_id, run_id, now)))


async def delete(connection: Connection, run_id: str | None, now: datetime) -> int:
    """Those of one run, or all that have expired; how many."""
    count: int = await connection.fetchval(_SQL["delete_checkpoints"], run_id, now)
    return count
