"""`runstone export` and `runstone import`: whole histories from store to store (§STO-43 to §STO-46)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from runstone.audit.bundles import Bundle, export_bundle, import_bundle, read_bundle
from runstone.audit.verify import correlation_of
from runstone.cli.files import STANDARD, check_target, write_target
from runstone.cli.lookup import find_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, say
from runstone.errors import BundleInvalid, RunstoneError


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where a bundle goes."""
    for option in (
        click.option("--force", is_flag=True, help="Replace FILE if it exists."),
        click.option(
            "-o", "--output", metavar="FILE", default=STANDARD, help="Where to. Default: standard output."
        ),
    ):
        command = option(command)
    return command


@click.command("export")
@click.argument("run")
@output_options
@with_options
@click.pass_obj
def export_command(options: Options, run: str, output: str, force: bool) -> None:
    """Write a run, with everything of its correlation, to a bundle.

    A bundle proves itself and needs no store to be checked. The same history always gives the same bytes.
    """
    deliver(lambda: _export(options, run), output, force)


def deliver(export: Callable[[], Coroutine[Any, Any, bytes]], output: str, force: bool) -> None:
    """Writes what an export gives to where it is wanted; what is in the way is found before."""
    check_target(output, force=force)
    write_target(output, asyncio.run(export()), force=force)


async def _export(options: Options, run: str) -> bytes:
    async with options.open_store(folders=True) as store:
        run_id = await find_run(store, options.tenant_id, run)
        return await export_bundle(
            store, options.tenant_id, await correlation_of(store, options.tenant_id, run_id)
        )


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--unfinished",
    is_flag=True,
    help="Also runs that have not ended. They go on here; see that they do not go on where they came from.",
)
@with_options
@click.pass_obj
def import_command(options: Options, files: tuple[str, ...], unfinished: bool) -> None:
    """Put bundles into the store; - is standard input.

    All are proven before the first is written, and each is written whole or not at all. What is
    there already stays as it is. The store is made if there is none.
    """
    bundles = {file: _read(file, options.tenant) for file in files}
    asyncio.run(_import(options, bundles, unfinished))


def _read(file: str, tenant_id: str | None) -> Bundle:
    content = sys.stdin.buffer.read() if file == STANDARD else Path(file).read_bytes()
    try:
        bundle = read_bundle(content)
    except BundleInvalid as error:
        raise BundleInvalid(f"{file}: {error}") from error
    if tenant_id not in (None, bundle.tenant_id):
        raise BundleInvalid(f"{file} belongs to tenant {bundle.tenant_id}, not to {tenant_id}")
    return bundle


async def _import(options: Options, bundles: dict[str, Bundle], unfinished: bool) -> None:
    async with options.open_store(create=True, folders=True) as store:
        for file, bundle in bundles.items():
            try:
                imported = await import_bundle(store, bundle, unfinished=unfinished)
            except RunstoneError as error:
                raise RunstoneError(f"{file}: {error}") from error
            held = f"{counted(len(bundle.runs), 'run')}, {counted(bundle.events, 'event')}"
            done = "Imported" if imported else "Already there:"
            say(f"{done} correlation {bundle.correlation_id}, {held} ({file})")
