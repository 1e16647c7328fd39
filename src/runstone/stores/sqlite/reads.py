"""Everything that is read, on a connection of its own beside the writer's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from runstone.core.checkpoint import Checkpoint
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
from runstone.errors import StoreCorrupt
from runstone.ports.store import DueSchedule, EffectClaim, EffectGroup, FeedItem, FeedPosition, Place
from runstone.stores.sql import statements
from runstone.stores.sqlite.rows import CHECKPOINTS, EVENTS, ROWS, STREAMS, to_micros

_SQL: Final = {
    name: statement.replace("{event_columns}", EVENTS.selected)
    .replace("{head_columns}", STREAMS.selected)
    .replace("{checkpoint_columns}", CHECKPOINTS.selected)
    .replace("{runs}", ROWS[Run].selected)
    .replace("{signals}", ROWS[Signal].selected)
    .replace("{entities}", ROWS[Entity].selected)
    .replace("{schedules}", ROWS[Schedule].selected)
    .replace(
        "{due_schedules}",
        ", ".join(
            (
                *(f"s.{column}" for column in STREAMS.columns),
                *(f"d.{column}" for column in ROWS[Schedule].columns),
            )
        ),
    )
    .replace("{effects}", ", ".join(f"e.{column}" for column in ROWS[Effect].columns))
    for name, statement in statements("sqlite").items()
}
_ORDER: Final = {"steps": "step_index"}
_rows_of: Final = msgspec.json.Decoder(list[list[Any]]).decode
_run_seq: Final = attrgetter("run_seq")
_head_behind_place: Final = STREAMS.unpacker(1)
_event_behind_place: Final = EVENTS.unpacker(1)
_effect_behind_claim: Final = ROWS[Effect].unpacker(3)
_schedule_behind_head: Final = ROWS[Schedule].unpacker(len(STREAMS.columns))
_BEFORE_ALL: Final = -(2**63)
"""No time that SQLite can keep comes before it."""
FoundMany: TypeAlias = tuple[str, str]
"""The heads of streams and their events, as JSON."""
_EVERYTHING: Final = -1
"""SQLite's LIMIT for no limit."""


def head(connection: sqlite3.Connection, tenant_id: str, stream_id: str) -> StreamHead | None:
    found = connection.execute(_SQL["head"], {"stream_id": stream_id, "tenant_id": tenant_id}).fetchone()
    return STREAMS.unpack(found) if found else None


def fetch(
    connection: sqlite3.Connection, tenant_id: str, stream_id: str, after_seq: int, limit: int
) -> list[Event]:
    found = connection.execute(
        _SQL["fetch"],
        {"tenant_id": tenant_id, "stream_id": stream_id, "after_seq": after_seq, "limit": limit},
    )
    return [EVENTS.unpack(row) for row in found]


def load(connection: sqlite3.Connection, tenant_id: str, stream_id: str, after_seq: int) -> Stream | None:
    with _moment(connection):
        found = head(connection, tenant_id, stream_id)
        if found is None:
            return None
        events = fetch(connection, tenant_id, stream_id, after_seq, _EVERYTHING)
        return Stream(head=found, events=tuple(events))


def find_many(connection: sqlite3.Connection, places: Sequence[Place]) -> FoundMany | None:
    """Streams as one statement gives them, in one row; none if JSON cannot hold them, which is damage."""
    asked = json.dumps([msgspec.structs.astuple(place) for place in places])
    try:
        heads, events = connection.execute(_SQL["load_many"], {"places": asked}).fetchone()
    except (sqlite3.OperationalError, sqlite3.DataError, UnicodeError):
        return None
    return heads, events


def streams_of(found: FoundMany, places: Sequence[Place]) -> list[Stream | None] | None:
    """What was found, for the caller's own thread: two threads that both use Python slow each other down."""
    try:
        heads, events = map(_rows_of, found)
    except msgspec.DecodeError:
        return None
    streams: list[list[Event]] = [[] for _ in places]
    for row in events:
        streams[row[0]].append(_event_behind_place(row))
    loaded: list[Stream | None] = [None] * len(places)
    for row in heads:
        own = sorted(streams[row[0]], key=_run_seq)
        loaded[row[0]] = Stream(head=_head_behind_place(row), events=tuple(own))
    return loaded


def load_each(connection: sqlite3.Connection, places: Sequence[Place]) -> list[Stream | None]:
    """The same row by row, which says what is damaged."""
    with _moment(connection):
        return [load(connection, place.tenant_id, place.stream_id, place.after_seq) for place in places]


def feed(connection: sqlite3.Connection, after: FeedPosition, limit: int) -> list[FeedItem]:
    found = connection.execute(_SQL["feed"], {"after": after.sequence, "limit": limit})
    events = [EVENTS.unpack(row) for row in found]
    return [
        FeedItem(position=FeedPosition(sequence=event.sequence_number or 0), event=event) for event in events
    ]


def snapshot(connection: sqlite3.Connection, tenant_id: str, run_id: str) -> RunSnapshot | None:
    with _moment(connection):
        found = head(connection, tenant_id, run_id)
        run = one(connection, Run, tenant_id, run_id)
        if found is None or run is None:
            return None
        steps = _of_stream(connection, Step, tenant_id, run_id)
        return run_snapshot(run, steps, found.last_seq)


def projection(connection: sqlite3.Connection, tenant_id: str, run_id: str) -> RunSnapshot | None:
    stream = load(connection, tenant_id, run_id, 0)
    state = stream.fold() if stream else None
    return project(state) if isinstance(state, RunState) else None


def one(connection: sqlite3.Connection, struct: type[Any], tenant_id: str, row_id: str) -> Any:
    table = ROWS[struct]
    found = connection.execute(
        f"SELECT {table.selected} FROM {table.name} WHERE {table.key} = ? AND tenant_id = ?",
        (row_id, tenant_id),
    ).fetchone()
    return table.unpack(found) if found else None


def belongs(name: str) -> str:
    """What makes a row a stream's own."""
    if name in STREAM_TABLES:
        return "id = ?"
    if name == "outbox_events":
        return "id IN (SELECT id FROM effects WHERE run_id = ?)"
    return "run_id = ?"


def _of_stream(
    connection: sqlite3.Connection, struct: type[Any], tenant_id: str, stream_id: str
) -> list[Any]:
    table = ROWS[struct]
    found = connection.execute(
        f"SELECT {table.selected} FROM {table.name} WHERE {belongs(table.name)} AND tenant_id = ? "
        f"ORDER BY {_ORDER.get(table.name, table.key)}",
        (stream_id, tenant_id),
    )
    return [table.unpack(row) for row in found]


def rows(connection: sqlite3.Connection, tenant_id: str, stream_id: str) -> list[Row]:
    with _moment(connection):
        return [row for struct in TABLES for row in _of_stream(connection, struct, tenant_id, stream_id)]


def find_run(connection: sqlite3.Connection, tenant_id: str, key: str) -> Run | None:
    found = connection.execute(_SQL["run_by_key"], {"tenant_id": tenant_id, "key": key}).fetchone()
    return ROWS[Run].unpack(found) if found else None


def find_signal(
    connection: sqlite3.Connection, tenant_id: str, source_channel: str, source_id: str
) -> Signal | None:
    found = connection.execute(
        _SQL["signal_by_source"],
        {"tenant_id": tenant_id, "source_channel": source_channel, "source_id": source_id},
    ).fetchone()
    return ROWS[Signal].unpack(found) if found else None


def list_runs(
    connection: sqlite3.Connection,
    tenant_id: str,
    status: str | None,
    handler: str | None,
    after: str | None,
    limit: int,
) -> list[Run]:
    found = connection.execute(
        _SQL["list_runs"],
        {"tenant_id": tenant_id, "status": status, "handler": handler, "after": after, "limit": limit},
    )
    return [ROWS[Run].unpack(row) for row in found]


def find_held(connection: sqlite3.Connection, worker_id: str, effect_ids: Sequence[str]) -> str:
    """Those of these effects that a worker has, and how it has them, as JSON."""
    named = {"worker_id": worker_id, "effect_ids": json.dumps(list(effect_ids))}
    try:
        (found,) = connection.execute(_SQL["held_effects"], named).fetchone()
    except (sqlite3.OperationalError, sqlite3.DataError, UnicodeError):
        _check_effects(connection, named["effect_ids"])
        raise
    return str(found)


def _check_effects(connection: sqlite3.Connection, effect_ids: str) -> None:
    """Reads effects row by row, which says what is damaged."""
    table = ROWS[Effect]
    for row in connection.execute(
        f"SELECT {table.selected} FROM {table.name} WHERE id IN (SELECT value FROM json_each(?))",
        (effect_ids,),
    ):
        table.unpack(row)


def claims_of(found: str) -> list[EffectClaim]:
    """What was found, what has been due longest first; for the caller's own thread, as `streams_of`."""
    try:
        rows = _rows_of(found)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"What was claimed of effects cannot be read ({error})") from error
    claims = [
        EffectClaim(effect=_effect_behind_claim(row), signal_id=row[2], fence=row[0], claims=row[1])
        for row in rows
    ]
    return sorted(claims, key=due)


def due(claim: EffectClaim) -> tuple[datetime, str]:
    """Since when it has been due: what claims are sorted by."""
    effect = claim.effect
    return effect.next_retry_at or effect.requested_at, effect.id


def find_effect(connection: sqlite3.Connection, tenant_id: str, key: str) -> Effect | None:
    found = connection.execute(_SQL["effect_by_key"], {"tenant_id": tenant_id, "key": key}).fetchone()
    return ROWS[Effect].unpack(found) if found else None


def list_effects(
    connection: sqlite3.Connection,
    tenant_id: str,
    status: str | None,
    effect_type: str | None,
    error_code: str | None,
    after: str | None,
    limit: int,
) -> list[Effect]:
    found = connection.execute(
        _SQL["list_effects"],
        {
            "tenant_id": tenant_id,
            "status": status,
            "effect_type": effect_type,
            "error_code": error_code,
            "after": after,
            "limit": limit,
        },
    )
    return [ROWS[Effect].unpack(row) for row in found]


def effect_groups(connection: sqlite3.Connection, tenant_id: str, status: str | None) -> list[EffectGroup]:
    found = connection.execute(_SQL["effect_groups"], {"tenant_id": tenant_id, "status": status})
    return [
        EffectGroup(status=status, effect_type=effect_type, error_code=error_code, count=count)
        for status, effect_type, error_code, count in found
    ]


def list_entities(
    connection: sqlite3.Connection,
    tenant_id: str,
    entity_type: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> list[Entity]:
    last_type, last_id = after or ("", "")
    found = connection.execute(
        _SQL["list_entities"],
        {
            "tenant_id": tenant_id,
            "entity_type": entity_type,
            "after_type": last_type,
            "after_id": last_id,
            "limit": limit,
        },
    )
    return [ROWS[Entity].unpack(row) for row in found]


def find_schedule(connection: sqlite3.Connection, tenant_id: str, name: str) -> Schedule | None:
    found = connection.execute(_SQL["schedule_by_name"], {"tenant_id": tenant_id, "name": name}).fetchone()
    return ROWS[Schedule].unpack(found) if found else None


def list_schedules(
    connection: sqlite3.Connection,
    tenant_id: str,
    status: str | None,
    task: str | None,
    after: str | None,
    limit: int,
) -> list[Schedule]:
    found = connection.execute(
        _SQL["list_schedules"],
        {"tenant_id": tenant_id, "status": status, "task": task, "after": after or "", "limit": limit},
    )
    return [ROWS[Schedule].unpack(row) for row in found]


def due_schedules(
    connection: sqlite3.Connection,
    tasks: Sequence[str],
    until: datetime,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[DueSchedule]:
    found = connection.execute(
        _SQL["due_schedules"],
        {
            "tasks": json.dumps(list(tasks)),
            "until": to_micros(until),
            "after_time": to_micros(after[0]) if after else _BEFORE_ALL,
            "after_id": after[1] if after else "",
            "limit": limit,
        },
    )
    return [DueSchedule(schedule=_schedule_behind_head(row), head=STREAMS.unpack(row)) for row in found]


def examine(
    connection: sqlite3.Connection, tenant_id: str, stream_id: str
) -> tuple[Stream, list[Row]] | None:
    with _moment(connection):
        stream = load(connection, tenant_id, stream_id, 0)
        return (stream, rows(connection, tenant_id, stream_id)) if stream else None


def heads(connection: sqlite3.Connection, tenant_id: str, correlation_id: str) -> list[StreamHead]:
    found = connection.execute(
        _SQL["correlation_heads"], {"tenant_id": tenant_id, "correlation_id": correlation_id}
    )
    return [STREAMS.unpack(row) for row in found]


def correlation(connection: sqlite3.Connection, tenant_id: str, correlation_id: str) -> list[Stream]:
    with _moment(connection):
        return [
            Stream(head=head, events=tuple(fetch(connection, tenant_id, head.stream_id, 0, _EVERYTHING)))
            for head in heads(connection, tenant_id, correlation_id)
        ]


def next_correlations(
    connection: sqlite3.Connection, after: tuple[str, str] | None, only: str | None
) -> list[tuple[str, str]]:
    """The next page of correlations, along their index: one, for it has to step over the events of each."""
    tenant_id, correlation_id = after or ("", "")
    return connection.execute(
        _SQL["next_correlation"], {"tenant_id": tenant_id, "correlation_id": correlation_id, "only": only}
    ).fetchall()


def count_events(connection: sqlite3.Connection, tenant_id: str | None) -> int:
    count: int = connection.execute(_SQL["count_events"], {"tenant_id": tenant_id}).fetchone()[0]
    return count


def count_runs(connection: sqlite3.Connection, tenant_id: str | None) -> dict[str, int]:
    return dict(connection.execute(_SQL["count_runs"], {"tenant_id": tenant_id}))


def checkpoints(connection: sqlite3.Connection, tenant_id: str, run_id: str, now: int) -> list[Checkpoint]:
    found = connection.execute(_SQL["checkpoints"], {"tenant_id": tenant_id, "run_id": run_id, "now": now})
    return [CHECKPOINTS.unpack(row) for row in found]


class _moment:
    """Reads several things as of one moment, unless a transaction is open already."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._own = not connection.in_transaction

    def __enter__(self) -> None:
        if self._own:
            self._connection.execute("BEGIN")

    def __exit__(self, *error: object) -> None:
        if self._own and self._connection.in_transaction:  # an error of the disk may have ended it
            self._connection.execute("COMMIT")
