"""Rows made again from the log, and what a store finds wrong with itself; only for maintenance (§STO-40).

The guards are open for the one transaction that says so, and closed again before it ends. Meanwhile a
row that stands beside a lease may be without the one it belongs to, and has it again at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from runstone.core.effect import OutboxEntry
from runstone.core.rows import STREAM_TABLES, TABLES, Row, row_id
from runstone.core.run import QueueEntry
from runstone.errors import StaleSequence
from runstone.stores.postgres.connections import Connection
from runstone.stores.postgres.rows import ROWS, STREAMS, Table
from runstone.stores.sql import statements

_SQL: Final = statements("postgres")
_LEASED: Final = (QueueEntry, OutboxEntry)
"""Rows that stand beside a lease, which is no history and must outlive a rebuild."""


def _belongs(name: str) -> str:
    if name == "outbox_events":
        return _SQL["belongs_to_effects"]
    return _SQL["belongs"].replace("{own_id}", "id" if name in STREAM_TABLES else "run_id")


def _origin(name: str) -> str:
    """The stream that a row comes from."""
    if name == "outbox_events":
        return _SQL["origin_of_outbox"]
    return "t.id" if name in STREAM_TABLES else "t.run_id"


def _delete_statement(struct: type[Row], name: str) -> str:
    statement = _SQL["delete_unwanted_of_stream" if struct in _LEASED else "delete_of_stream"]
    table = ROWS[struct]
    filled = statement.replace("{table}", table.name).replace("{belongs}", _belongs(name))
    return filled.replace("{key}", table.key)


def _replace_statement(table: Table[Any]) -> str:
    others = [column for column in table.columns if column not in (table.key, "tenant_id")]
    return (
        _SQL["replace_row"]
        .replace("{table}", table.name)
        .replace("{columns}", ", ".join(table.columns))
        .replace("{marks}", ", ".join(f"${place}" for place in range(1, len(table.columns) + 1)))
        .replace("{key}", table.key)
        .replace("{changes}", ", ".join(f"{column} = excluded.{column}" for column in others))
    )


def _of_origin(statement: str, struct: type[Row], name: str) -> str:
    table = ROWS[struct]
    filled = _SQL[statement].replace("{table}", table.name).replace("{key}", table.key)
    return filled.replace("{origin}", _origin(name))


_DELETE: Final = {struct: _delete_statement(struct, name) for struct, name in TABLES.items()}
_REPLACE: Final = {struct: _replace_statement(ROWS[struct]) for struct in TABLES}
_STRAYS: Final = {struct: _of_origin("delete_strays", struct, name) for struct, name in TABLES.items()}
_ORPHANS: Final = {struct: _of_origin("orphans", struct, name) for struct, name in TABLES.items()}
_ROLES: Final = (
    "Restore the roles (`pg_dumpall --roles-only`, CREATE ROLE … NOLOGIN), then the database once more: "
    "policies, owners and grants that name them were left out"
)
_LOCK_HEAD: Final = _SQL["lock_head"].replace("{head_selected}", STREAMS.selected)


async def replace_rows(
    connection: Connection, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]
) -> None:
    """Puts these in the place of a stream's derived rows, if it still is at `last_seq`."""
    async with connection.transaction():
        found = await connection.fetchrow(_LOCK_HEAD, stream_id, tenant_id)
        head = STREAMS.unpack(found) if found else None
        if head is None or head.last_seq != last_seq:
            raise StaleSequence(stream_id, last_seq, head.last_seq if head else 0)
        await _open_guards(connection, f"rebuild of {stream_id}")
        for struct in reversed(TABLES):
            wanted = [row_id(row) for row in rows if type(row) is struct]
            await connection.execute(_DELETE[struct], stream_id, wanted)
        for struct in TABLES:
            packed = [ROWS[struct].pack(row) for row in rows if type(row) is struct]
            await connection.executemany(_REPLACE[struct], packed)
        await connection.execute(_SQL["end_rebuild"])


async def delete_strays(connection: Connection) -> int:
    """Deletes derived rows of which neither heads nor events know."""
    async with connection.transaction():
        await _open_guards(connection, "strays")
        deleted = [await connection.fetchval(_STRAYS[struct]) for struct in reversed(TABLES)]
        await connection.execute(_SQL["end_rebuild"])
    return sum(deleted)


async def _open_guards(connection: Connection, reason: str) -> None:
    await connection.execute(_SQL["begin_rebuild"], reason)
    await connection.execute(_SQL["defer_keys"])


async def broken_guards(connection: Connection) -> list[tuple[str, str]]:
    """What was switched off or taken away, and what to do about it; without the roles, the rest follows."""
    found = [(what, remedy) for what, remedy in await connection.fetch(_SQL["guards"])]
    if missing := [row[0] for row in await connection.fetch(_SQL["missing_roles"])]:
        return [*found, (f"role {', '.join(missing)} is missing in this cluster", _ROLES)]
    for statement in ("tenants_together", "strange_owners", "strange_grants"):
        found += [(what, remedy) for what, remedy in await connection.fetch(_SQL[statement])]
    return found


async def problems(connection: Connection) -> list[str]:
    """What the store finds wrong with itself below the log."""
    found = [what for what, _ in await broken_guards(connection)]
    found += [f"maintenance was left open: {row[0]}" for row in await connection.fetch(_SQL["maintenance"])]
    found += [
        f"stream {row[0]} has events or a head, but not both"
        for row in await connection.fetch(_SQL["headless"])
    ]
    found += [
        f"stream {row[0]} was archived, and it or something of its correlation is there all the same"
        for row in await connection.fetch(_SQL["half_archived"])
    ]
    for struct, name in TABLES.items():
        found += [
            f"{name} {row[0]} belongs to no stream of its tenant"
            for row in await connection.fetch(_ORPHANS[struct])
        ]
    return found
