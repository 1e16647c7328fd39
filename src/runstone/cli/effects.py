"""`runstone effects`: what a person found out about an effect (§OUT-27)."""

from __future__ import annotations

import asyncio

import click

from runstone.cli.options import Options, with_options
from runstone.cli.outbox import operator
from runstone.cli.output import say
from runstone.outbox import operations


@click.group("effects", invoke_without_command=True)
@with_options
@click.pass_context
def effects_command(ctx: click.Context) -> None:
    """Say what became of effects that nobody knows about."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@effects_command.command("reconcile")
@click.argument("effect", metavar="EFFECT")
@click.option("--sent", is_flag=True, help="It was done.")
@click.option("--not-sent", is_flag=True, help="It was not done, and is to be sent now.")
@click.option("--evidence", default="", metavar="TEXT", help="How you know; it is kept in the history.")
@with_options
@click.pass_obj
def reconcile_command(options: Options, effect: str, sent: bool, not_sent: bool, evidence: str) -> None:
    """Resolve an effect whose outcome is UNKNOWN.

    EFFECT is its id or its idempotency key. Look at the receiver first: what is sent again although it
    was done is done twice.
    """
    if sent == not_sent:  # were the last of both to win, a slip would send it twice
        raise click.UsageError("Say either --sent or --not-sent.")
    asyncio.run(_reconcile(options, effect, sent, evidence))


async def _reconcile(options: Options, name: str, sent: bool, evidence: str) -> None:
    async with options.open_store() as store:
        effect = await operations.find(store, options.tenant_id, name)
        await operations.apply(store, effect, operations.reconcile(sent, evidence), operator())
    say(f"{effect.id} {'was sent' if sent else 'is sent again'}")
