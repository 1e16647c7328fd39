"""`runstone db`: what the store is, its schema brought up to date, and its rows made again (§STO-40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import click

from runstone.audit.rebuild import Rebuilt, rebuild_all, rebuild_run
from runstone.cli.lookup import find_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, progress, put, say
from runstone.cli.retain import retain_command
from runstone.core.ids import DEFAULT_TENANT
from runstone.ports.health import Vitals
from runstone.ports.store import Store
from runstone.runtime import needs_driver
from runstone.settings import Settings
from runstone.stores.sql import Migration, migrations

_TENANTS: Final = 20
"""How many are named, those with most runs."""


@click.group("db", invoke_without_command=True)
@with_options
@click.pass_context
def db_command(ctx: click.Context) -> None:
    """Look after the store."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


db_command.add_command(retain_command)


@db_command.command("status")
@with_options
@click.pass_obj
def status_command(options: Options) -> int:
    """Where the store is, who says so, and what is in it.

    The exit code is 1 if its schema is not up to date.
    """
    return asyncio.run(_status(options))


async def _status(options: Options) -> int:
    settings = options.settings()
    about = {"store": settings.place, "origin": settings.store.origin}
    if settings.database_url is not None:
        about |= await _database(settings, settings.database_url)
    if not about.keys() & {"behind", "events"}:
        about |= await _contents(options)
    if settings.database_url is None:
        about |= _file(settings)
    for name in ("store", "origin", "server", "schema", "behind", "size", "events", "runs", "tenants"):
        if name in about:
            say(f"{name:<7} {about[name]}")
    return 1 if "behind" in about else 0


async def _contents(options: Options) -> dict[str, str]:
    async with options.open_store() as store:
        events = await store.count_events(options.tenant)
        runs = await store.count_runs(options.tenant)
        tenants = {} if options.tenant else _tenants(await store.vitals())
    by_status = ", ".join(f"{count:,} {status}" for status, count in runs.items())
    total = f"{sum(runs.values()):,}{f' ({by_status})' if runs else ''}"
    return {"events": f"{events:,}", "runs": total, **tenants}


def _tenants(vitals: Vitals) -> dict[str, str]:
    """Who else than the default one has runs, most of all: other verbs show one tenant at a time."""
    if vitals.tenants.keys() <= {DEFAULT_TENANT}:
        return {}
    most = sorted(vitals.tenants, key=lambda tenant_id: (-vitals.tenants[tenant_id], tenant_id))
    told = [_tenant(vitals, tenant_id) for tenant_id in most[:_TENANTS]]
    return {"tenants": f"{len(most):,} ({'; '.join(told)}{'; …' if len(most) > _TENANTS else ''})"}


def _tenant(vitals: Vitals, tenant_id: str) -> str:
    name = "default" if tenant_id == DEFAULT_TENANT else tenant_id
    dead = vitals.dead_letters.get(tenant_id, 0)
    runs = counted(vitals.tenants[tenant_id], "run")
    return f"{name}: {runs}, {counted(dead, 'dead letter')}" if dead else f"{name}: {runs}"


def _file(settings: Settings) -> dict[str, str]:
    """A file is brought up to date by whoever opens it."""
    size = settings.store_path.stat().st_size
    return {"schema": f"version {migrations('sqlite')[-1].version}", "size": f"{size:,} bytes"}


async def _database(settings: Settings, url: str) -> dict[str, str]:
    with needs_driver(settings):
        from runstone.stores.postgres.migrations import connected, describe
    async with connected(url) as connection:
        server = await describe(connection)
    about = {
        "server": f"PostgreSQL {server.version}",
        "schema": f"version {server.schema_version}",
        "size": f"{server.size:,} bytes",
    }
    if server.behind:
        about["behind"] = f"{counted(server.behind, 'migration')}: run `runstone db migrate`"
    elif not server.login.sees_all:
        about["events"] = f"not counted: {server.login.refusal}"
    return about


@db_command.command("migrate")
@click.option(
    "--sql", is_flag=True, help="Print what would be run, as one file that can be read and run by hand."
)
@click.option("--dry-run", is_flag=True, help="Say what would be run.")
@click.option(
    "--from",
    "seen",
    type=click.IntRange(0),
    metavar="N",
    help="With --sql: after N migrations; connects to nothing.",
)
@with_options
@click.pass_obj
def migrate_command(options: Options, sql: bool, dry_run: bool, seen: int | None) -> None:
    """Bring the store's schema up to date.

    A file is also brought up to date when it is opened; a PostgreSQL database only here, by a role that may.
    """
    if seen is not None and not sql:
        raise click.UsageError("--from goes with --sql.")
    asyncio.run(_migrate(options.settings(), sql, dry_run, seen))


async def _migrate(settings: Settings, sql: bool, dry_run: bool, seen: int | None) -> None:
    if settings.database_url is None:
        _migrate_file(settings, sql, dry_run, seen)
        return
    with needs_driver(settings):
        from runstone.stores.postgres.migrations import connected, migrate, pending, script
    if seen is not None:
        put(script(migrations("postgres")[seen:]))
        return
    async with connected(settings.database_url) as connection:
        left = await pending(connection)
        if sql:
            put(script(left))
        elif dry_run:
            _tell(left, dry_run)
        elif not await migrate(connection, told=_tell_one):
            _tell([], dry_run)


def _migrate_file(settings: Settings, sql: bool, dry_run: bool, seen: int | None) -> None:
    from runstone.stores.sqlite.files import open_writer, pending

    path = str(settings.store_path)
    left = pending(path) if seen is None else migrations("sqlite")[seen:]
    if sql:
        put("\n".join(migration.script for migration in left))
        return
    if not dry_run:
        open_writer(path).close()
    _tell(left, dry_run)


def _tell_one(migration: Migration, what: str = "ran") -> None:
    say(f"{what} {migration.name}")


def _tell(done: list[Migration], dry_run: bool) -> None:
    for migration in done:
        _tell_one(migration, "would run" if dry_run else "ran")
    if not done:
        say("The schema is up to date.")


@db_command.command("rebuild")
@click.argument("run", required=False)
@click.option("--all", "everything", is_flag=True, help="Every run, and rows that the log knows nothing of.")
@with_options
@click.pass_obj
def rebuild_command(options: Options, run: str | None, everything: bool) -> int:
    """Make the rows of a run and its correlation again from the log.

    Leases stay as they are. A stream whose log is damaged keeps its rows; the exit code is 1 then.
    """
    if (run is None) is not everything:
        raise click.UsageError("Name a run, or say --all.")
    rebuilt = asyncio.run(_rebuild(options, run))
    problems = [stream for stream in rebuilt if stream.problem]
    for stream in problems:
        say(f"Stream {stream.stream_id} was not rebuilt. {stream.problem}")
    rows = sum(stream.rows for stream in rebuilt)
    say(f"Rebuilt {counted(len(rebuilt) - len(problems), 'stream')}, {counted(rows, 'row')}.")
    return 1 if problems else 0


async def _rebuild(options: Options, run: str | None) -> list[Rebuilt]:
    async with options.open_store() as store:
        if run is not None:
            run_id = await find_run(store, options.tenant_id, run)
            return [rebuilt async for rebuilt in rebuild_run(store, options.tenant_id, run_id)]
        return await _with_progress(store, options.tenant, rebuild_all(store, options.tenant))


async def _with_progress(store: Store, tenant_id: str | None, work: AsyncIterator[Rebuilt]) -> list[Rebuilt]:
    done: list[Rebuilt] = []
    with progress("rebuilding", await store.count_events(tenant_id)) as advance:
        async for rebuilt in work:
            done.append(rebuilt)
            advance(rebuilt.events)
    return done
