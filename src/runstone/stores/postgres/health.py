"""How the work in a database is going, and what is wrong with its server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from runstone.ports.health import Backlog, DueRuns, LostWorker, Problem, Stuck, Unfired, Vitals
from runstone.stores.postgres import feed, maintenance
from runstone.stores.postgres.connections import DURABLE, Connection
from runstone.stores.sql import migrations, statements

_SQL: Final = statements("postgres")
_MADE: Final = re.compile(r"^CREATE (?:UNIQUE )?(?:INDEX|TRIGGER) (\w+)", re.MULTILINE)

OLD: Final = timedelta(minutes=5)
DEAD_ROWS: Final = 100_000
CROWDED: Final = 0.8
STALLED: Final = 10.0
"""Seconds after which a feed that waits has stalled."""


async def vitals(connection: Connection, now: datetime) -> Vitals:
    row = await connection.fetchrow(_SQL["vitals"])
    assert row is not None
    return Vitals(
        now=row["now"],
        latest=row["latest"],
        lost_workers=tuple(
            LostWorker(worker_id=owner, lease_until=until, runs=runs)
            for owner, until, runs in await connection.fetch(_SQL["lost_workers"], now)
        ),
        due_runs=tuple(
            DueRuns(
                handler=handler, version=version, count=count, since=since, example=run_id, tenant_id=owner
            )
            for handler, version, count, since, run_id, owner in await connection.fetch(_SQL["due_runs"], now)
        ),
        due_effects=await _backlog(connection, now),
        dead_letters=await _by_tenant(connection, "effects_by_tenant", "DEAD_LETTER"),
        unknown_effects=await _by_tenant(connection, "effects_by_tenant", "UNKNOWN"),
        paused=tuple(
            Stuck(reason=reason, count=count, example=example, tenant_id=owner)
            for reason, count, example, owner in await connection.fetch(_SQL["paused"])
        ),
        unfired=tuple(
            Unfired(task=task, count=count, since=since, example=name, tenant_id=owner)
            for task, count, since, name, owner in await connection.fetch(_SQL["unfired"], now)
        ),
        tenants=await _by_tenant(connection, "runs_by_tenant"),
    )


async def _by_tenant(connection: Connection, statement: str, *status: str) -> dict[str, int]:
    return {row[0]: row[1] for row in await connection.fetch(_SQL[statement], *status)}


async def _backlog(connection: Connection, now: datetime) -> Backlog:
    row = await connection.fetchrow(_SQL["due_effects"], now)
    if row is None or not row[0]:
        return Backlog()
    count, since, example, owner = row
    return Backlog(count=count, since=since, example=example, tenant_id=owner)


async def problems(connection: Connection) -> list[Problem]:
    """Everything that the server can be asked."""
    return [
        *await old_transactions(connection),
        *await dead_rows(connection),
        *await stalled_feed(connection),
        *await durability(connection),
        *await crowding(connection),
        *await missing_objects(connection),
        *await guards(connection),
    ]


async def old_transactions(connection: Connection, longest: timedelta = OLD) -> Sequence[Problem]:
    rows = await connection.fetch(_SQL["old_transactions"], longest)
    return [_old_transaction(*row) for row in rows]


def _old_transaction(pid: int | None, seconds: float, state: str, name: str) -> Problem:
    who = f"process {pid} ({name})" if pid else f"the prepared transaction {name!r}"
    end = f"SELECT pg_terminate_backend({pid})" if pid else f"ROLLBACK PREPARED '{name}'"
    return Problem(
        check="old transaction",
        what=f"A transaction of {who} has been open for {timedelta(seconds=round(seconds))}, {state}: "
        "it holds up the feed and the vacuum",
        remedy=f"Let it end, or end it: {end}",
    )


async def dead_rows(connection: Connection, most: int = DEAD_ROWS) -> Sequence[Problem]:
    return [
        Problem(
            check="dead rows",
            what=f"runstone.{table} has {dead:,} dead rows beside {live:,} live ones, "
            f"{f'last vacuumed on {at:%Y-%m-%d %H:%M}' if at else 'and was never vacuumed'}",
            remedy=f"VACUUM runstone.{table}; see that autovacuum is on and no old transaction stops it",
        )
        for table, dead, live, at in await connection.fetch(_SQL["dead_rows"], most)
    ]


async def stalled_feed(connection: Connection, after_seconds: float = STALLED) -> Sequence[Problem]:
    status = await feed.status(connection)
    alert = status.alert(datetime.now(UTC), after_seconds)
    if alert is None:
        return []
    pid = status.holder.pid if status.holder else None
    end = f"SELECT pg_terminate_backend({pid})" if pid else "see pg_prepared_xacts"
    return [Problem(check="feed", what=alert, remedy=f"Let that transaction end, or end it: {end}")]


async def durability(connection: Connection, names: Sequence[str] = DURABLE) -> Sequence[Problem]:
    return [
        Problem(
            check="durability",
            what=f"{name} is off: what was acknowledged can be lost",
            remedy=f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
        )
        for (name,) in await connection.fetch(_SQL["settings_off"], list(names))
    ]


async def crowding(connection: Connection, share: float = CROWDED) -> Sequence[Problem]:
    used, most = await connection.fetchrow(_SQL["connections"]) or (0, 1)
    if used < share * most:
        return []
    return [
        Problem(
            check="connections",
            what=f"{used} of {most} connections are taken",
            remedy="Raise max_connections, run fewer workers, or put a pool such as PgBouncer in between",
        )
    ]


async def guards(connection: Connection) -> Sequence[Problem]:
    """What was switched off or taken away of all that keeps rows right and tenants apart."""
    return [
        Problem(check="guards", what=what, remedy=remedy)
        for what, remedy in await maintenance.broken_guards(connection)
    ]


async def missing_objects(connection: Connection) -> Sequence[Problem]:
    wanted = {name for migration in migrations("postgres") for name in _MADE.findall(migration.script)}
    there = {row[0] for row in await connection.fetch(_SQL["schema_objects"])}
    return [
        Problem(
            check="schema",
            what=f"The index or trigger {name} is missing",
            remedy="Make it again, as `runstone db migrate --sql --from 0` shows it",
        )
        for name in sorted(wanted - there)
    ]
