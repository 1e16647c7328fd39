"""`runstone schedules`: tasks for later, when they are due, and how to take one back."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from runstone.cli.options import Options, with_limit, with_options
from runstone.cli.outbox import operator
from runstone.cli.output import counted, listing, say, say_data, say_json, when
from runstone.core.transitions import SCHEDULE, ScheduleStatus
from runstone.errors import NotFound
from runstone.ingest.schedules import Schedule, cancel_schedule, read_schedule, read_schedules

_HEADINGS: Final = ("name", "task", "status", "next", "fired", "last run")


@click.group("schedules", invoke_without_command=True)
@with_options
@click.pass_context
def schedules_command(ctx: click.Context) -> None:
    """See the tasks that runs have scheduled, and take them back."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@schedules_command.command("list")
@click.option(
    "--status", type=click.Choice(SCHEDULE.states, case_sensitive=False), help="Only those of this status."
)
@click.option("--task", metavar="TASK", help="Only those of this task.")
@click.option("--after", metavar="NAME", help="Only those behind this one.")
@with_limit
@click.option("--json", "as_json", is_flag=True, help="Everything, one JSON object a line.")
@with_options
@click.pass_obj
def list_command(
    options: Options,
    status: ScheduleStatus | None,
    task: str | None,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List schedules by name."""
    asyncio.run(_list(options, status, task, after, limit, as_json))


async def _list(
    options: Options,
    status: ScheduleStatus | None,
    task: str | None,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    async with options.open_store() as store:
        found = await read_schedules(
            store, options.tenant_id, status=status, task=task, after=after, limit=limit
        )
    listing(found, as_json, _HEADINGS, _row)


def _row(one: Schedule) -> tuple[object, ...]:
    return one.name, one.task, one.status, when(one.next_at), one.fired, one.last_run_id


@schedules_command.command("show")
@click.argument("name", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_options
@click.pass_obj
def show_command(options: Options, name: str, as_json: bool) -> None:
    """Show one schedule."""
    asyncio.run(_show(options, name, as_json))


async def _show(options: Options, name: str, as_json: bool) -> None:
    async with options.open_store() as store:
        one = await read_schedule(store, options.tenant_id, name)
    if one is None:
        raise NotFound(f"There is no schedule {name!r}: see `runstone schedules list`")
    if as_json:
        say_json(one)
        return
    times = f"by {one.cron!r} in {one.timezone}" if one.cron else f"once, at {when(one.run_at)}"
    say(f"{one.name}, version {one.version}: {one.task} {times}")
    say(f"{one.status}, next {when(one.next_at) or 'never'}, fired {counted(one.fired, 'time')}")
    if one.last_fired_at is not None:
        say(f"last at {when(one.last_fired_at)} as run {one.last_run_id}")
    say(f"asked for by run {one.run_id}")
    say_data(one.arguments)


@schedules_command.command("cancel")
@click.argument("name", metavar="NAME")
@click.option("--reason", metavar="TEXT", default="", help="Why; it stands in the log.")
@with_options
@click.pass_obj
def cancel_command(options: Options, name: str, reason: str) -> None:
    """Take a schedule back: it fires no more. Runs that it has started go on."""
    asyncio.run(_cancel(options, name, reason))


async def _cancel(options: Options, name: str, reason: str) -> None:
    async with options.open_store() as store:
        await cancel_schedule(store, options.tenant_id, name, reason, context=operator())
    say(f"{name} is cancelled")
