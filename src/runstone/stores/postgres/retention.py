"""Forgetting: whole correlations give way to their tombstones.

What may go is for the database to say: the function that deletes belongs to the owner role, looks for itself,
and is all that the engine's role may call (§STO-39).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from runstone.core.tombstone import Resting, Tombstone
from runstone.errors import CommitRefused, StaleSequence
from runstone.ports.retention import Expired, oldest
from runstone.stores.postgres.connections import Connection
from runstone.stores.postgres.rows import TOMBSTONES
from runstone.stores.sql import statements

PAGE: Final = 500

_SQL: Final = {
    name: statement.replace("{tombstone_selected}", TOMBSTONES.selected)
    for name, statement in statements("postgres").items()
}


async def expired(
    connection: Connection, resting: Resting, tenant_id: str | None, after: Expired | None, limit: int
) -> list[Expired]:
    page = (tenant_id, after.began_at if after else None, after.first_id if after else None, limit)
    rows = await connection.fetch(_SQL["expired"], resting.ended_before, resting.received_before, *page)
    rows += await connection.fetch(_SQL["expired_schedules"], resting.ended_before, *page)
    return oldest([Expired(**dict(zip(Expired.__struct_fields__, row, strict=True))) for row in rows], limit)


async def forget(connection: Connection, stones: Sequence[Tombstone]) -> bool:
    """One statement, so one transaction; the database checks and deletes."""
    tenant_id, correlation_id = stones[0].tenant_id, stones[0].correlation_id
    content = msgspec.json.encode([_row(stone) for stone in stones]).decode()
    row = await connection.fetchrow(_SQL["forget"], tenant_id, correlation_id, content)
    assert row is not None, "the function always answers"
    outcome, stream_id, wanted, found, why = row
    if outcome == "STALE":
        raise StaleSequence(stream_id, wanted, found)
    if outcome == "LIVE":
        raise CommitRefused(f"Correlation {correlation_id} stays, for {why}")
    return bool(outcome == "REMOVED")


def _row(stone: Tombstone) -> dict[str, Any]:
    return msgspec.structs.asdict(stone) | {"head": f"\\x{stone.head}"}


async def find(
    connection: Connection,
    tenant_id: str,
    stream_id: str | None,
    source: tuple[str, str] | None,
    run_key: str | None,
) -> Tombstone | None:
    channel, source_id = source or (None, None)
    row = await connection.fetchrow(_SQL["find_tombstone"], tenant_id, stream_id, channel, source_id, run_key)
    return TOMBSTONES.unpack(row) if row else None


async def tombstones(connection: Connection, tenant_id: str, correlation_id: str) -> list[Tombstone]:
    rows = await connection.fetch(_SQL["tombstones"], tenant_id, correlation_id)
    return list(map(TOMBSTONES.unpack, rows))


async def graveyard(connection: Connection, after: str | None, tenant_id: str | None) -> list[Tombstone]:
    """The next page of all tombstones."""
    return list(map(TOMBSTONES.unpack, await connection.fetch(_SQL["graveyard"], after, tenant_id, PAGE)))
