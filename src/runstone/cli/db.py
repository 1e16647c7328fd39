"""`runstone db`: what the store is, and its rows made again (§STO-40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import click

from runstone.audit.rebuild import Rebuilt, rebuild_all, rebuild_run
from runstone.cli.lookup import find_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, progress, say
from runstone.ports.store import Store
from runstone.stores.sql import migrations


@click.group("db", invoke_without_command=True)
@with_options
@click.pass_context
def db_command(ctx: click.Context) -> None:
    """Look after the store."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@db_command.command("status")
@with_options
@click.pass_obj
def status_command(options: Options) -> None:
    """Where the store is, who says so, and what is in it."""
    asyncio.run(_status(options))


async def _status(options: Options) -> None:
    async with options.open_store() as store:
        events = await store.count_events(options.tenant)
        runs = await store.count_runs(options.tenant)
    settings = options.settings()
    path = settings.store_path.absolute()
    by_status = ", ".join(f"{count:,} {status}" for status, count in runs.items())
    say(f"store   {path}")
    say(f"origin  {settings.store.origin}")
    say(f"schema  version {migrations('sqlite')[-1].version}")
    say(f"size    {path.stat().st_size:,} bytes")
    say(f"events  {events:,}")
    say(f"runs    {sum(runs.values()):,}{f' ({by_status})' if runs else ''}")


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
