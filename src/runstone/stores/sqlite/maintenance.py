"""Rows made again from the log, and what a store finds wrong with itself; only for maintenance (§STO-40).

The guards are open until the transaction ends. Meanwhile a row that stands beside a lease may be without
the one it belongs to, and has it again at the end.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from runstone.core.effect import OutboxEntry
from runstone.core.rows import STREAM_TABLES, TABLES, Row, row_id
from runstone.core.run import QueueEntry
from runstone.errors import StaleSequence
from runstone.stores.sql import statements
from runstone.stores.sqlite import commits, reads
from runstone.stores.sqlite.files import schema_problems
from runstone.stores.sqlite.rows import EVENTS, ROWS, STREAMS

_SQL: Final = statements("sqlite")
_LEASED: Final = (QueueEntry, OutboxEntry)
"""Rows that stand beside a lease, which is no history and must outlive a rebuild."""


def replace_rows(
    connection: sqlite3.Connection, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]
) -> None:
    """Puts these in the place of a stream's derived rows, if it still is at `last_seq`."""
    head = reads.head(connection, tenant_id, stream_id)
    if head is None or head.last_seq != last_seq:
        raise StaleSequence(stream_id, last_seq, head.last_seq if head else 0)
    _open_guards(connection, f"rebuild of {stream_id}")
    for struct in reversed(TABLES):
        wanted = [row_id(row) for row in rows if type(row) is struct]
        _delete_of_stream(connection, struct, stream_id, wanted)
    for struct in TABLES:
        table = ROWS[struct]
        commits.execute(connection, table.upsert, [table.pack(row) for row in rows if type(row) is struct])
    connection.execute(_SQL["end_maintenance"])


def _delete_of_stream(
    connection: sqlite3.Connection, struct: type[Any], stream_id: str, wanted: Sequence[str]
) -> None:
    """The wanted rows are made again, wherever they strayed.

    Those that stand beside a lease stay, to be overwritten.
    """
    table = ROWS[struct]
    among = f"{table.key} IN (SELECT value FROM json_each(?))"
    which = f"AND NOT {among}" if struct in _LEASED else f"OR {among}"
    connection.execute(
        f"DELETE FROM {table.name} WHERE {reads.belongs(table.name)} {which}", (stream_id, json.dumps(wanted))
    )


def delete_strays(connection: sqlite3.Connection) -> int:
    """Deletes derived rows of which neither heads nor events know."""
    _open_guards(connection, "strays")
    deleted = [
        connection.execute(
            f"DELETE FROM {name} WHERE NOT EXISTS ({_origin(name, STREAMS.name)}) "
            f"AND NOT EXISTS ({_origin(name, EVENTS.name)})"
        ).rowcount
        for name in reversed(TABLES.values())
    ]
    connection.execute(_SQL["end_maintenance"])
    return sum(deleted)


def _open_guards(connection: sqlite3.Connection, reason: str) -> None:
    connection.execute(_SQL["begin_maintenance"], {"reason": reason})
    connection.execute("PRAGMA defer_foreign_keys = ON")


def problems(connection: sqlite3.Connection) -> list[str]:
    """What the store finds wrong with itself below the log."""
    found = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    found += schema_problems(connection)
    found += [f"maintenance was left open: {row[0]}" for row in connection.execute(_SQL["maintenance"])]
    found += [
        f"{row[0]} row {row[1]} refers to no {row[2]}"
        for row in connection.execute("PRAGMA foreign_key_check")
        if row[0] != "maintenance"
    ]
    found += [
        f"stream {row[0]} has events or a head, but not both" for row in connection.execute(_SQL["headless"])
    ]
    found += [
        f"stream {row[0]} was archived, and it or something of its correlation is there all the same"
        for row in connection.execute(_SQL["half_archived"])
    ]
    found += [
        f"{table.name} {row[0]} belongs to no stream of its tenant"
        for table in ROWS.values()
        for row in connection.execute(
            f"SELECT {table.key} FROM {table.name} WHERE NOT EXISTS "
            f"({_origin(table.name, STREAMS.name)} AND o.tenant_id = {table.name}.tenant_id)"
        )
    ]
    return found


def _origin(name: str, owner: str) -> str:
    """What a row comes from: the head, or the events, of its stream."""
    stream_id = "id" if owner == STREAMS.name else "stream_id"
    if name == "outbox_events":
        return (
            f"SELECT 1 FROM effects AS e JOIN {owner} AS o ON o.{stream_id} = e.run_id WHERE e.id = {name}.id"
        )
    own_id = "id" if name in STREAM_TABLES else "run_id"
    return f"SELECT 1 FROM {owner} AS o WHERE o.{stream_id} = {name}.{own_id}"
