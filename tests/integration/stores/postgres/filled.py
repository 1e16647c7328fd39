"""A database with rows in every table, written by hand: this is about the schema, not about the store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import chain
from typing import Any, Final

import asyncpg
import msgspec
from msgspec import Raw

from runstone.core import commands
from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Context
from runstone.core.decide import decide
from runstone.core.entity import Entity
from runstone.core.ids import DEFAULT_TENANT, NewId
from runstone.core.keys import entity_stream, schedule_stream
from runstone.core.payloads import OutputResult
from runstone.core.rows import TABLES, Row
from runstone.core.run import QueueEntry
from runstone.core.schedule import Schedule
from runstone.core.tombstone import Tombstone
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.histories import five_step_history

Connection = asyncpg.Connection

WRITTEN_ONCE: Final = ("orchestration_events", "tombstones")
"""Tables whose rows no role may change."""

TENANT_TABLES: Final = (*TABLES.values(), "streams", "run_checkpoints", *WRITTEN_ONCE)
"""Every table with data of tenants; a test compares this with the database."""

HASHES: Final = {
    "orchestration_events": ("idempotency_key", "prev_hash"),
    "streams": ("head",),
    "tombstones": ("head",),
}
"""Hashes are hexadecimal in Python, bytes in a table."""


async def fill(connection: Connection, seed: int = 1, tenant_id: str = DEFAULT_TENANT) -> None:
    """One run with all that can belong to it; a queue row and a checkpoint are left, as if it went on."""
    clock = VirtualClock()
    new_id = SeededIds(seed, clock)
    history = five_step_history(tenant_id=tenant_id, clock=clock, new_id=new_id)
    step = next(iter(history[-1].case.run.steps))
    correction = commands.CorrectStep(
        step_id=step, output=OutputResult(decision=Raw(b"false")), reason="it was wrong"
    )
    context = Context(now=clock.now(), new_id=new_id, actor="ada")
    history.append(decide(history[-1].case, correction, context=context))
    writes = [write for decision in history for write in decision.commit.writes]

    for write in {write.stream_id: write for write in writes}.values():
        head = {"id": write.stream_id, "tenant_id": tenant_id, "kind": write.kind, "fence": 1}
        last = {"last_seq": write.last_seq, "head": write.head, "last_at": write.last_at}
        await insert(connection, "streams", head | last)
    for write in writes:
        for event in write.events:
            values = msgspec.structs.asdict(event) | {"persisted_at": clock.now()}
            del values["sequence_number"]
            await insert(connection, "orchestration_events", values)
    queued = [write.queue for write in writes if write.queue is not None]
    for table, row in _latest(chain((row for write in writes for row in write.rows), queued)):
        await insert(connection, table, msgspec.structs.asdict(row))
    checkpoint = _checkpoint(tenant_id, history[-1].case.run.stream_id, clock, new_id)
    await insert(connection, "run_checkpoints", msgspec.structs.asdict(checkpoint))
    if await connection.fetchval("SELECT to_regclass('runstone.tombstones')") is not None:
        await insert(connection, "tombstones", msgspec.structs.asdict(_tombstone(tenant_id, clock, new_id)))
    if await connection.fetchval("SELECT to_regclass('runstone.entities')") is not None:
        await insert(connection, "entities", msgspec.structs.asdict(_entity(tenant_id, clock, new_id)))
    if await connection.fetchval("SELECT to_regclass('runstone.schedules')") is not None:
        await insert(connection, "schedules", msgspec.structs.asdict(_schedule(tenant_id, clock, new_id)))


def _latest(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """The last version of each row, parents before children."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        found[TABLES[type(row)], row.run_id if isinstance(row, QueueEntry) else row.id] = row
    order = list(TABLES.values())
    return sorted(((table, row) for (table, _), row in found.items()), key=lambda pair: order.index(pair[0]))


def _checkpoint(tenant_id: str, run_id: str, clock: VirtualClock, new_id: NewId) -> Checkpoint:
    return Checkpoint(
        id=new_id(),
        tenant_id=tenant_id,
        run_id=run_id,
        checkpoint_index=0,
        checkpoint_data=b"{}",
        created_at=clock.now(),
        expires_at=clock.now() + timedelta(days=7),
        size_bytes=2,
        compressed=False,
        correlation_id=new_id(),
    )


def _tombstone(tenant_id: str, clock: VirtualClock, new_id: NewId) -> Tombstone:
    """Of another correlation, which was archived."""
    return Tombstone(
        stream_id=new_id(),
        tenant_id=tenant_id,
        kind="SIGNAL",
        last_seq=3,
        head="0" * 64,
        correlation_id=new_id(),
        source_channel="inbox",
        source_id=new_id(),
        source_hash="0" * 64,
        signal_id=None,
        run_key=None,
        archive="archive",
        bundle="one.ndjson",
        bundle_sha256="0" * 64,
        removed_at=clock.now(),
    )


def _schedule(tenant_id: str, clock: VirtualClock, new_id: NewId) -> Schedule:
    """One that a run asked for which is gone."""
    name = new_id()
    return Schedule(
        id=schedule_stream(tenant_id, name),
        tenant_id=tenant_id,
        name=name,
        version=1,
        task="nightly",
        cron="0 * * * *",
        timezone="UTC",
        arguments=Raw(b"{}"),
        status="ACTIVE",
        next_at=clock.now(),
        fired=0,
        last_fired_at=None,
        last_run_id=None,
        run_id=new_id(),
        effect_id=new_id(),
        scheduled_seq=1,
        created_at=clock.now(),
        updated_at=clock.now(),
    )


def _entity(tenant_id: str, clock: VirtualClock, new_id: NewId) -> Entity:
    """One that a run wrote to which is gone."""
    entity_id = new_id()
    return Entity(
        id=entity_stream(tenant_id, "CASE", entity_id),
        tenant_id=tenant_id,
        entity_type="CASE",
        entity_id=entity_id,
        version=1,
        data=Raw(b"{}"),
        evidence_pack=Raw(b"{}"),
        source_id="orchestrator:key",
        source_hash="0" * 64,
        timestamp=clock.now(),
        inference=False,
        run_id=new_id(),
        effect_id=new_id(),
        created_at=clock.now(),
        updated_at=clock.now(),
    )


async def insert(connection: Connection, table: str, values: dict[str, Any]) -> None:
    values = {name: _bytes(value) for name, value in values.items()}
    values |= {name: f"\\x{values[name]}" for name in HASHES.get(table, ()) if name in values}
    columns = ", ".join(values)
    await connection.execute(
        f"INSERT INTO runstone.{table} ({columns}) "
        f"SELECT {columns} FROM json_populate_record(NULL::runstone.{table}, $1)",
        msgspec.json.encode(values).decode(),
    )


def _bytes(value: Any) -> Any:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value
