"""The schema of a PostgreSQL store: migrations, each in its transaction under one lock (§STO-47 to §STO-49).

A store never migrates by itself: whoever may change the schema does, with `runstone db migrate`, and
the engine's role may not (§TEN-13).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import msgspec

from runstone.errors import StoreTooNew, StoreUnusable
from runstone.stores.postgres.connections import Connection, Login, connect, login, shown, translated
from runstone.stores.sql import Migration, migrations

LOCK: Final = 0x52554E53
"""`RUNS`: the advisory lock that one migrator at a time holds, for its transaction only."""

ROLES: Final = ("runstone_owner", "runstone_migrator", "runstone_engine", "runstone_api")

_TABLE: Final = """\
CREATE SCHEMA IF NOT EXISTS runstone;
CREATE TABLE IF NOT EXISTS runstone.migrations (
    version     bigint PRIMARY KEY,
    name        text NOT NULL,
    checksum    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
"""
_RECORD: Final = "INSERT INTO runstone.migrations (version, name, checksum) VALUES ({}, {}, {})"

_ABOUT: Final = """
SELECT
    current_setting('server_version'),
    coalesce((
        SELECT sum(pg_total_relation_size(oid))
        FROM pg_class
        WHERE relnamespace = to_regnamespace('runstone') AND relkind = 'r'
    ), 0)::bigint
"""

_OWNED: Final = """
SELECT 1
FROM pg_namespace
WHERE nspname = 'runstone' AND pg_get_userbyid(nspowner) = 'runstone_owner'
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection that asks nothing of the database: there may be no schema yet."""
    async with translated(shown(url)):
        connection = await connect(url)
        try:
            yield connection
        finally:
            await connection.close()


class Server(msgspec.Struct, frozen=True):
    """What can be said of a database without opening the store."""

    version: str
    schema_version: int
    behind: int
    size: int
    login: Login


async def describe(connection: Connection) -> Server:
    """The server, and how far its schema is."""
    version, size = await connection.fetchrow(_ABOUT) or ("", 0)
    left = await pending(connection)
    return Server(version, len(migrations("postgres")) - len(left), len(left), size, await login(connection))


async def migrate(
    connection: Connection, upto: int | None = None, *, told: Callable[[Migration], None] = lambda _: None
) -> list[Migration]:
    """Runs what the database has not seen, up to a version; returns what was run.

    Whoever waited for the lock looks again at what is left to do. A migration that fails leaves
    those before it, of which `told` has heard. No lock outlives its transaction, so a pool may stand between.
    """
    done = []
    while (migration := await _migrate_one(connection, upto)) is not None:
        done.append(migration)
        told(migration)
    return done


async def _migrate_one(connection: Connection, upto: int | None) -> Migration | None:
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            left = await pending(connection)
            if not left or (upto is not None and left[0].version > upto):
                return None
            await _run(connection, left[0])
            return left[0]
    except asyncpg.InsufficientPrivilegeError as error:
        user = await connection.fetchval("SELECT current_user")
        raise StoreUnusable(_advice(user, error)) from error


async def _run(connection: Connection, migration: Migration) -> None:
    """Once everything belongs to the owner, what is new has to as well."""
    if migration.version == 1:
        await connection.execute(_TABLE)
    if await connection.fetchval(_OWNED):
        await connection.execute("SET LOCAL ROLE runstone_owner")
    await connection.execute(migration.script)
    record = _RECORD.format("$1", "$2", "$3")
    await connection.execute(record, migration.version, migration.name, migration.checksum)


def _advice(user: str, error: Exception) -> str:
    """What a superuser has to do for a user who may not."""
    roles = " ".join(f"CREATE ROLE {role} NOLOGIN;" for role in ROLES)
    return (
        f"PostgreSQL does not let {user} migrate ({error}). Let a superuser do it, or let one make the roles "
        f"that are missing and {user} a member: {roles} GRANT runstone_owner TO runstone_migrator; "
        f'GRANT runstone_migrator TO "{user}"; GRANT CREATE ON DATABASE … TO "{user}";'
    )


async def pending(connection: Connection) -> list[Migration]:
    """What the database has not seen; refuses one that cannot hold every text, is newer than we are, or
    saw something else."""
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreUnusable(f"This database has the encoding {encoding}: create the database with UTF8")
    known = migrations("postgres")
    seen = await applied(connection)
    if len(seen) > len(known):
        raise StoreTooNew(
            f"This database has schema version {max(seen)}, "
            f"and this Runstone knows up to {len(known)}: upgrade it"
        )
    for migration in known:
        if seen.get(migration.version, migration.checksum) != migration.checksum:
            raise StoreUnusable(
                f"Migration {migration.name} was changed after this database had run it: "
                "install the version of Runstone that ran it, or restore the migration"
            )
    return [migration for migration in known if migration.version not in seen]


async def applied(connection: Connection) -> dict[int, str]:
    """The checksum of each migration that the database has seen."""
    if await connection.fetchval("SELECT to_regclass('runstone.migrations')") is None:
        return {}
    rows = await connection.fetch("SELECT version, checksum FROM runstone.migrations ORDER BY version")
    return {row["version"]: row["checksum"] for row in rows}


async def check(connection: Connection) -> None:
    """Refuses a database that this version cannot work with, or a user whom it does not let."""
    try:
        left = await pending(connection)
    except asyncpg.InsufficientPrivilegeError as error:
        user = await connection.fetchval("SELECT current_user")
        raise StoreUnusable(
            f'{user} may not use this store ({error}): GRANT runstone_engine TO "{user}"'
        ) from error
    if left:
        raise StoreUnusable(
            f"This database has not seen {left[0].name}: run `runstone db migrate` with a role that may"
        )


def script(wanted: list[Migration]) -> str:
    """The migrations as one file for psql, which does what `migrate` does."""
    parts = [_HEADER]
    for migration in wanted:
        first = _TABLE if migration.version == 1 else ""
        values = str(migration.version), f"'{migration.name}'", f"'{migration.checksum}'"
        parts.append(
            f"BEGIN;\nSELECT pg_advisory_xact_lock({LOCK});\n{first}{_as_owner(migration)}\n"
            f"{migration.script}\n{_RECORD.format(*values)};\nCOMMIT;\n"
        )
    return "\n".join(parts)


def _as_owner(migration: Migration) -> str:
    """Up to the migration that makes it, there is no owner."""
    return "" if migration.version <= 3 else "SET LOCAL ROLE runstone_owner;\n"


_HEADER: Final = """\
-- The schema of Runstone, written by `runstone db migrate --sql`.
-- Run it with psql as a superuser, or as a member of runstone_migrator. Each migration is a transaction.
\\set ON_ERROR_STOP on
"""
