"""`runstone entities`: the system of record, what is in it and how it came there."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from runstone.audit.bundles import export_bundle
from runstone.cli.bundles import deliver, output_options
from runstone.cli.options import Options, with_limit, with_options
from runstone.cli.output import listing, say, say_data, say_json, when
from runstone.core import codec
from runstone.core import entity as core
from runstone.core.keys import entity_stream
from runstone.errors import NotFound
from runstone.outbox.entities import Entity, read_entity, read_history

_HEADINGS: Final = ("type", "id", "version", "changed", "run")
_CHANGES: Final = ("version", "changed", "run", "change", "evidence")


@click.group("entities", invoke_without_command=True)
@with_options
@click.pass_context
def entities_command(ctx: click.Context) -> None:
    """See the entities that runs have written, and their history."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@entities_command.command("list")
@click.option("--type", "entity_type", metavar="TYPE", help="Only entities of this type.")
@click.option("--after", nargs=2, metavar="TYPE ID", help="Only those behind this one.")
@with_limit
@click.option("--json", "as_json", is_flag=True, help="Whole rows, one JSON object a line.")
@with_options
@click.pass_obj
def list_command(
    options: Options, entity_type: str | None, after: tuple[str, str] | None, limit: int, as_json: bool
) -> None:
    """List entities by type and id."""
    asyncio.run(_list(options, entity_type, after, limit, as_json))


async def _list(
    options: Options, entity_type: str | None, after: tuple[str, str] | None, limit: int, as_json: bool
) -> None:
    async with options.open_store() as store:
        found = await store.list_entities(
            options.tenant_id, entity_type=entity_type, after=after, limit=limit
        )
    listing(found, as_json, _HEADINGS, _row)


def _row(one: core.Entity) -> tuple[object, ...]:
    return one.entity_type, one.entity_id, one.version, when(one.updated_at), one.run_id


@entities_command.command("show")
@click.argument("entity_type", metavar="TYPE")
@click.argument("entity_id", metavar="ID")
@click.option("--history", is_flag=True, help="Every change, the first one first.")
@click.option("--json", "as_json", is_flag=True, help="Everything, one JSON object a line.")
@with_options
@click.pass_obj
def show_command(options: Options, entity_type: str, entity_id: str, history: bool, as_json: bool) -> None:
    """Show one entity."""
    asyncio.run(_show(options, entity_type, entity_id, history, as_json))


async def _show(options: Options, entity_type: str, entity_id: str, history: bool, as_json: bool) -> None:
    name = (options.tenant_id, entity_type, entity_id)
    async with options.open_store() as store:
        if history:
            versions = [version async for version in read_history(store, *name)]
        else:
            latest = await read_entity(store, *name)
            versions = [] if latest is None else [latest]
    if not versions:
        raise NotFound(f"There is no {entity_type} {entity_id!r}: see `runstone entities list`")
    if history:
        listing(versions, as_json, _CHANGES, _change)
    elif as_json:
        say_json(versions[0])
    else:
        _say(versions[0])


def _say(one: Entity) -> None:
    name = f"{one.entity_type} {one.entity_id}"
    say(f"{name}, version {one.version}, changed {when(one.updated_at)} by run {one.run_id}")
    say_data(one.data)


def _change(one: Entity) -> tuple[object, ...]:
    change, evidence = (codec.encode(said).decode() for said in (one.change, one.evidence_pack))
    return one.version, when(one.updated_at), one.run_id, change, evidence


@entities_command.command("export")
@click.argument("entity_type", metavar="TYPE")
@click.argument("entity_id", metavar="ID")
@output_options
@with_options
@click.pass_obj
def export_command(options: Options, entity_type: str, entity_id: str, output: str, force: bool) -> None:
    """Write an entity with all its history to a bundle; `runstone import` reads it.

    The runs that wrote to it are not in there: each has a bundle of its own.
    """
    deliver(lambda: _export(options, entity_type, entity_id), output, force)


async def _export(options: Options, entity_type: str, entity_id: str) -> bytes:
    async with options.open_store() as store:
        stream_id = entity_stream(options.tenant_id, entity_type, entity_id)
        if await store.get_entity(options.tenant_id, stream_id) is None:
            raise NotFound(f"There is no {entity_type} {entity_id!r}: see `runstone entities list`")
        return await export_bundle(store, options.tenant_id, stream_id)
