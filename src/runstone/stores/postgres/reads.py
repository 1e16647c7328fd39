"""Everything that is read; what has to be of one moment is one statement, or a transaction that sees one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import msgspec

from runstone.core.effect import Effect
from runstone.core.entity import Entity
from runstone.core.events import Event
from runstone.core.rows import STREAM_TABLES, TABLES, Row
from runstone.core.run import Run
from runstone.core.schedule import Schedule
from runstone.core.signal import Signal
from runstone.core.snapshot import RunSnapshot, project, run_snapshot
from runstone.core.state import RunState
from runstone.core.step import Step
from runstone.core.stream import Stream, StreamHead
from runstone.core.transitions import EFFECT, RUN
from runstone.ports.store import DueSchedule, EffectClaim, EffectGroup, Place
from runstone.stores.postgres.connections import Connection
from runstone.stores.postgres.rows import EVENTS, ROWS, STREAMS, Table
from runstone.stores.sql import statements

_SQL: Final = {
    name: statement.replace("{event_selected}", EVENTS.selected)
    .replace("{head_selected}", STREAMS.selected)
    .replace("{head_columns}", ", ".join(STREAMS.columns))
    .replace(
        "{head_once}",
        ", ".join(f"CASE WHEN e.nth > 1 THEN NULL ELSE s.{column} END" for column in STREAMS.columns),
    )
    .replace("{run_selected}", ROWS[Run].selected)
    .replace("{signal_selected}", ROWS[Signal].selected)
    .replace("{effect_selected}", ROWS[Effect].selected)
    .replace("{entity_selected}", ROWS[Entity].selected)
    .replace("{schedule_selected}", ROWS[Schedule].selected)
    for name, statement in statements("postgres").items()
}
_ORDER: Final = {"steps": "step_index"}
_HEAD: Final = len(STREAMS.columns)
_head_behind_place: Final = STREAMS.unpacker(1)
_event_behind_head: Final = EVENTS.unpacker(_HEAD)
_event_behind_both: Final = EVENTS.unpacker(_HEAD + 1)
_schedule_behind_head: Final = ROWS[Schedule].unpacker(_HEAD)
_effect_behind_claim: Final = ROWS[Effect].unpacker(3)


@asynccontextmanager
async def moment(connection: Connection) -> AsyncIterator[None]:
    """Reads several things as of one moment, unless a transaction is open already."""
    if connection.is_in_transaction():
        yield
        return
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        yield


def _of_stream_statement(table: Table[Any], name: str) -> str:
    """A table's rows of one stream."""
    belongs = _SQL["belongs_to_effects" if name == "outbox_events" else "belongs"]
    own_id = "id" if name in STREAM_TABLES else "run_id"
    return (
        _SQL["of_stream"]
        .replace("{selected}", table.selected)
        .replace("{table}", table.name)
        .replace("{belongs}", belongs.replace("{own_id}", own_id))
        .replace("{order}", _ORDER.get(name, table.key))
    )


OF_STREAM: Final = {struct: _of_stream_statement(ROWS[struct], name) for struct, name in TABLES.items()}
_ONE: Final = {
    struct: _SQL["one"].replace("{selected}", table.selected).replace("{table}", table.name)
    for struct, table in ROWS.items()
}


async def head(connection: Connection, tenant_id: str, stream_id: str) -> StreamHead | None:
    found = await connection.fetchrow(_SQL["head"], stream_id, tenant_id)
    return STREAMS.unpack(found) if found else None


async def fetch(
    connection: Connection, tenant_id: str, stream_id: str, after_seq: int, limit: int | None
) -> list[Event]:
    rows = await connection.fetch(_SQL["fetch"], stream_id, tenant_id, after_seq, limit)
    return list(map(EVENTS.unpack, rows))


async def load(connection: Connection, tenant_id: str, stream_id: str, after_seq: int) -> Stream | None:
    """One statement: every row has the head and an event; the only one of an empty stretch has no event."""
    rows = await connection.fetch(_SQL["load"], stream_id, tenant_id, after_seq)
    if not rows:
        return None
    events = [_event_behind_head(row) for row in rows if row[_HEAD] is not None]
    return Stream(head=STREAMS.unpack(rows[0]), events=tuple(events))


async def load_many(connection: Connection, places: Sequence[Place]) -> list[Stream | None]:
    """The same for many: rows that belong together come together, in the order of their places."""
    asked = zip(*map(msgspec.structs.astuple, places), strict=True)
    rows = await connection.fetch(_SQL["load_many"], *map(list, asked)) if places else ()
    heads: dict[int, Any] = {}
    events: dict[int, list[Event]] = {}
    for row in rows:
        number = row[0] - 1
        if number not in heads:
            heads[number] = _head_behind_place(row)
            events[number] = []
        if row[_HEAD + 1] is not None:
            events[number].append(_event_behind_both(row))
    return [
        Stream(head=heads[number], events=tuple(events[number])) if number in heads else None
        for number in range(len(places))
    ]


async def keyed(
    connection: Connection, tenant_id: str, stream_id: str, idempotency_key: str
) -> tuple[StreamHead | None, tuple[int, str, bytes] | None]:
    """A stream's head, and the event it has under this key."""
    row = await connection.fetchrow(_SQL["keyed"], stream_id, tenant_id, bytes.fromhex(idempotency_key))
    if row is None:
        return None, None
    run_seq, event_id, event_data = tuple(row)[_HEAD:]
    event = (run_seq, event_id, event_data.encode()) if run_seq is not None else None
    return STREAMS.unpack(row), event


async def one(connection: Connection, struct: type[Any], tenant_id: str, row_id: str) -> Any:
    found = await connection.fetchrow(_ONE[struct], row_id, tenant_id)
    return ROWS[struct].unpack(found) if found else None


async def _of_stream(connection: Connection, struct: type[Any], tenant_id: str, stream_id: str) -> list[Any]:
    rows = await connection.fetch(OF_STREAM[struct], stream_id, tenant_id)
    return list(map(ROWS[struct].unpack, rows))


async def rows(connection: Connection, tenant_id: str, stream_id: str) -> list[Row]:
    async with moment(connection):
        return [
            row for struct in TABLES for row in await _of_stream(connection, struct, tenant_id, stream_id)
        ]


async def examine(connection: Connection, tenant_id: str, stream_id: str) -> tuple[Stream, list[Row]] | None:
    async with moment(connection):
        stream = await load(connection, tenant_id, stream_id, 0)
        return (stream, await rows(connection, tenant_id, stream_id)) if stream else None


async def snapshot(connection: Connection, tenant_id: str, run_id: str) -> RunSnapshot | None:
    async with moment(connection):
        found = await head(connection, tenant_id, run_id)
        run = await one(connection, Run, tenant_id, run_id)
        if found is None or run is None:
            return None
        steps = await _of_stream(connection, Step, tenant_id, run_id)
        return run_snapshot(run, steps, found.last_seq)


async def projection(connection: Connection, tenant_id: str, run_id: str) -> RunSnapshot | None:
    stream = await load(connection, tenant_id, run_id, 0)
    state = stream.fold() if stream else None
    return project(state) if isinstance(state, RunState) else None


async def find_run(connection: Connection, tenant_id: str, key: str) -> Run | None:
    found = await connection.fetchrow(_SQL["run_by_key"], tenant_id, key)
    return ROWS[Run].unpack(found) if found else None


async def find_signal(
    connection: Connection, tenant_id: str, source_channel: str, source_id: str
) -> Signal | None:
    found = await connection.fetchrow(_SQL["signal_by_source"], tenant_id, source_channel, source_id)
    return ROWS[Signal].unpack(found) if found else None


async def list_runs(connection: Connection, tenant_id: str, status: str | None, *filters: Any) -> list[Run]:
    statuses = [status] if status else RUN.states
    rows = await connection.fetch(_SQL["list_runs"], tenant_id, statuses, *filters)
    return list(map(ROWS[Run].unpack, rows))


async def held_effects(connection: Connection, effect_ids: Sequence[str]) -> list[EffectClaim]:
    """Effects and the fences of their outbox entries."""
    rows = await connection.fetch(_SQL["held_effects"], list(effect_ids))
    return [
        EffectClaim(effect=_effect_behind_claim(row), signal_id=row[2], fence=row[0], claims=row[1])
        for row in rows
    ]


async def find_effect(connection: Connection, tenant_id: str, key: str) -> Effect | None:
    found = await connection.fetchrow(_SQL["effect_by_key"], tenant_id, key)
    return ROWS[Effect].unpack(found) if found else None


async def list_effects(
    connection: Connection, tenant_id: str, status: str | None, *filters: Any
) -> list[Effect]:
    statuses = [status] if status else EFFECT.states
    rows = await connection.fetch(_SQL["list_effects"], tenant_id, statuses, *filters)
    return list(map(ROWS[Effect].unpack, rows))


async def effect_groups(connection: Connection, tenant_id: str, status: str | None) -> list[EffectGroup]:
    rows = await connection.fetch(_SQL["effect_groups"], tenant_id, status)
    return [
        EffectGroup(status=status, effect_type=effect_type, error_code=error_code, count=count)
        for status, effect_type, error_code, count in map(tuple, rows)
    ]


async def list_entities(
    connection: Connection,
    tenant_id: str,
    entity_type: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> list[Entity]:
    rows = await connection.fetch(_SQL["list_entities"], tenant_id, entity_type, *(after or ("", "")), limit)
    return list(map(ROWS[Entity].unpack, rows))


async def find_schedule(connection: Connection, tenant_id: str, name: str) -> Schedule | None:
    found = await connection.fetchrow(_SQL["schedule_by_name"], tenant_id, name)
    return ROWS[Schedule].unpack(found) if found else None


async def list_schedules(
    connection: Connection,
    tenant_id: str,
    status: str | None,
    task: str | None,
    after: str | None,
    limit: int,
) -> list[Schedule]:
    rows = await connection.fetch(_SQL["list_schedules"], tenant_id, status, task, after or "", limit)
    return list(map(ROWS[Schedule].unpack, rows))


async def due_schedules(
    connection: Connection,
    tasks: Sequence[str],
    until: datetime,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[DueSchedule]:
    rows = await connection.fetch(_SQL["due_schedules"], list(tasks), until, *(after or (None, None)), limit)
    return [DueSchedule(schedule=_schedule_behind_head(row), head=STREAMS.unpack(row)) for row in rows]


async def heads(connection: Connection, tenant_id: str, correlation_id: str) -> list[StreamHead]:
    rows = await connection.fetch(_SQL["correlation_heads"], tenant_id, correlation_id)
    return list(map(STREAMS.unpack, rows))


async def correlation(connection: Connection, tenant_id: str, correlation_id: str) -> list[Stream]:
    async with moment(connection):
        return [
            Stream(head=head, events=tuple(await fetch(connection, tenant_id, head.stream_id, 0, None)))
            for head in await heads(connection, tenant_id, correlation_id)
        ]


async def next_correlations(
    connection: Connection, after: tuple[str, str] | None, only: str | None
) -> list[tuple[str, str]]:
    """The next page of correlations, along their index."""
    tenant_id, correlation_id = after or (None, None)
    rows = await connection.fetch(_SQL["next_correlations"], tenant_id, correlation_id, only)
    return [tuple(row) for row in rows]


async def count_events(connection: Connection, tenant_id: str | None) -> int:
    count: int = await connection.fetchval(_SQL["count_events"], tenant_id)
    return count


async def count_runs(connection: Connection, tenant_id: str | None) -> dict[str, int]:
    return {row[0]: row[1] for row in await connection.fetch(_SQL["count_runs"], tenant_id)}
