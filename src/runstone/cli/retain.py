"""`runstone db retain`: old runs go to the archive, and then out of the store (§STO-34 to §STO-39)."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import click

from runstone.audit.archive import Archive
from runstone.audit.retention import Retained, find_expired, rest, retain
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, progress, say
from runstone.core.tombstone import Resting
from runstone.errors import SettingsInvalid
from runstone.ports.clock import SystemClock
from runstone.ports.retention import Expired
from runstone.settings import duration, load_retention_settings


def _duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, parameter) from error


@click.command("retain")
@click.option(
    "--older-than",
    metavar="TIME",
    callback=_duration,
    help="How long runs are kept after they ended. Default: 90d.",
)
@click.option(
    "--signals-older-than",
    metavar="TIME",
    callback=_duration,
    help="The same for signals without a run. Default: 30d.",
)
@click.option(
    "--archive", metavar="DIR", help="Where bundles go. Default: archive in [retention], runstone.toml."
)
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many correlations.")
@with_options
@click.pass_obj
def retain_command(
    options: Options,
    older_than: timedelta | None,
    signals_older_than: timedelta | None,
    archive: str | None,
    dry_run: bool,
    limit: int | None,
) -> int:
    """Archive runs that ended long ago, then remove them.

    A run goes with everything of its correlation, once all of it has ended and rested. It is written to a
    bundle first, and the bundle proven; a tombstone keeps what a duplicate is known by. Interrupted
    anywhere, it can simply be started again. Exit code 1 if something could not be archived.
    """
    settings = load_retention_settings(environment=os.environ, folder=Path.cwd())
    resting = rest(
        SystemClock().now(),
        settings.runs if older_than is None else older_than,
        settings.signals if signals_older_than is None else signals_older_than,
    )
    if dry_run:
        _count(asyncio.run(_expired(options, resting, limit)), resting)
        return 0
    place = archive or settings.archive
    if place is None:
        raise SettingsInvalid(
            "Nobody said where the archive is: name a folder with --archive, RUNSTONE_RETENTION_ARCHIVE, or "
            "archive under [retention] in runstone.toml"
        )
    done = asyncio.run(_retain(options, Archive(Path(place).expanduser()), resting, limit))
    return _report(done, place)


async def _expired(options: Options, resting: Resting, limit: int | None) -> list[Expired]:
    async with options.open_store() as store:
        return [one async for one in find_expired(store, resting, options.tenant, limit)]


def _count(found: list[Expired], resting: Resting) -> None:
    held = f"{counted(sum(one.streams for one in found), 'stream')}, "
    held += counted(sum(one.events for one in found), "event")
    say(f"Would archive and remove {counted(len(found), 'correlation')} ({held}).")
    if found:
        oldest, newest = (
            f"{when:%Y-%m-%d}" for when in (found[0].began_at, max(one.last_at for one in found))
        )
        say(f"The first began on {oldest}, the last rests since {newest}.")
    say(
        f"Runs are kept that something happened to since {resting.ended_before:%Y-%m-%d}, "
        f"signals without a run since {resting.received_before:%Y-%m-%d}."
    )


async def _retain(options: Options, archive: Archive, resting: Resting, limit: int | None) -> list[Retained]:
    done: list[Retained] = []
    async with options.open_store() as store:
        total = None
        if sys.stderr.isatty():  # only a bar has to know beforehand
            total = len([one async for one in find_expired(store, resting, options.tenant, limit)])
        with progress("archiving", total) as advance:
            async for retained in retain(
                store, archive, resting, now=SystemClock().now(), tenant_id=options.tenant, limit=limit
            ):
                done.append(retained)
                advance(1)
    return done


def _report(done: list[Retained], place: str) -> int:
    problems = [one for one in done if one.problem]
    removed = [one for one in done if one.removed]
    for one in problems:
        say(f"Correlation {one.correlation_id} was left as it is. {one.problem}")
    left = len(done) - len(problems) - len(removed)
    said = f"Archived and removed {counted(len(removed), 'correlation')}, "
    said += counted(sum(one.events for one in removed), "event")
    say(f"{said}, in {place}." if removed else "Nothing was archived.")
    if left:
        say(f"Left {counted(left, 'correlation')} that others wrote to or archived meanwhile.")
    return 1 if problems else 0
