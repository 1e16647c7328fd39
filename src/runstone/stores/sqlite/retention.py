"""Forgetting: whole correlations give way to their tombstones, through the door for maintenance (§STO-39)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from runstone.core.events import ENDLESS
from runstone.core.rows import STREAM_TABLES, TABLES
from runstone.core.tombstone import Resting, Tombstone, check_whole
from runstone.core.transitions import EFFECT, RUN
from runstone.errors import CommitRefused
from runstone.ports.retention import Expired, oldest
from runstone.stores.sql import statements
from runstone.stores.sqlite import reads
from runstone.stores.sqlite.commits import execute
from runstone.stores.sqlite.rows import TOMBSTONES, from_micros, to_micros

PAGE: Final = 500
_LONG_AGO: Final = -(2**62)


def _listed(states: Iterable[str]) -> str:
    return ", ".join(f"'{state}'" for state in sorted(states))


_SQL: Final = {
    name: statement.replace("{ended_runs}", _listed(RUN.terminal))
    .replace("{ended_effects}", _listed(EFFECT.terminal))
    .replace("{endless}", _listed(ENDLESS))
    .replace("{tombstones}", TOMBSTONES.selected)
    for name, statement in statements("sqlite").items()
}
_OWN_ID: Final = {**dict.fromkeys((*STREAM_TABLES, "streams"), "id"), "orchestration_events": "stream_id"}
_FORGOTTEN: Final = (*reversed(TABLES.values()), "run_checkpoints", "orchestration_events", "streams")
"""Children before parents."""


def expired(
    connection: sqlite3.Connection,
    resting: Resting,
    tenant_id: str | None,
    after: Expired | None,
    limit: int,
) -> list[Expired]:
    asked = {
        "ended_before": to_micros(resting.ended_before),
        "received_before": to_micros(resting.received_before),
        "tenant_id": tenant_id,
        "began_at": to_micros(after.began_at) if after else _LONG_AGO,
        "first_id": after.first_id if after else "",
        "limit": limit,
    }
    found = [
        row for name in ("expired", "expired_schedules") for row in connection.execute(_SQL[name], asked)
    ]
    return oldest(map(_expired, found), limit)


def _expired(row: Sequence[Any]) -> Expired:
    tenant_id, correlation_id, first_id, began_at, streams, events, last_at = row
    return Expired(
        tenant_id=tenant_id,
        correlation_id=correlation_id,
        first_id=first_id,
        began_at=from_micros(began_at),
        streams=streams,
        events=events,
        last_at=from_micros(last_at),
    )


def forget(connection: sqlite3.Connection, stones: Sequence[Tombstone]) -> bool:
    """In the writer's own transaction, so nobody can come in between."""
    tenant_id, correlation_id = stones[0].tenant_id, stones[0].correlation_id
    heads = reads.heads(connection, tenant_id, correlation_id)
    if not heads and _stand(connection, stones):
        return False
    check_whole(stones, heads)
    streams = {"stream_ids": json.dumps([stone.stream_id for stone in stones])}
    reason = connection.execute(_SQL["unfinished"], streams).fetchone()
    if reason is not None:
        raise CommitRefused(f"Correlation {correlation_id} stays, for {reason[0]}")
    connection.execute(_SQL["begin_maintenance"], {"reason": f"retention of {correlation_id}"})
    for table in _FORGOTTEN:
        connection.execute(_forget_statement(table), streams)
    execute(connection, TOMBSTONES.insert, [TOMBSTONES.pack(stone) for stone in stones])
    connection.execute(_SQL["end_maintenance"])
    return True


def _forget_statement(table: str) -> str:
    if table == "outbox_events":
        return _SQL["forget_outbox"]
    return _SQL["forget"].replace("{table}", table).replace("{own_id}", _OWN_ID.get(table, "run_id"))


def _stand(connection: sqlite3.Connection, stones: Sequence[Tombstone]) -> bool:
    there = {
        stone.stream_id: stone
        for stone in tombstones(connection, stones[0].tenant_id, stones[0].correlation_id)
    }
    return all(stone.same(there.get(stone.stream_id)) for stone in stones)


def find(
    connection: sqlite3.Connection,
    tenant_id: str,
    stream_id: str | None,
    source: tuple[str, str] | None,
    run_key: str | None,
) -> Tombstone | None:
    channel, source_id = source or (None, None)
    row = connection.execute(
        _SQL["find_tombstone"],
        {
            "tenant_id": tenant_id,
            "stream_id": stream_id,
            "source_channel": channel,
            "source_id": source_id,
            "run_key": run_key,
        },
    ).fetchone()
    return TOMBSTONES.unpack(row) if row else None


def tombstones(connection: sqlite3.Connection, tenant_id: str, correlation_id: str) -> list[Tombstone]:
    which = {"tenant_id": tenant_id, "correlation_id": correlation_id}
    return [TOMBSTONES.unpack(row) for row in connection.execute(_SQL["tombstones"], which)]


def graveyard(connection: sqlite3.Connection, after: str | None, tenant_id: str | None) -> list[Tombstone]:
    """The next page of all tombstones."""
    which = {"after": after or "", "tenant_id": tenant_id, "limit": PAGE}
    return [TOMBSTONES.unpack(row) for row in connection.execute(_SQL["graveyard"], which)]
