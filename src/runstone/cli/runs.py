"""`runstone runs`: what runs there are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import click

from runstone.cli.options import Options, with_limit, with_options
from runstone.cli.output import listing, when
from runstone.core.run import Run
from runstone.core.transitions import RUN, RunStatus

_HEADINGS: Final = ("run", "status", "handler", "key", "created", "steps", "reason")


@click.command("runs")
@click.option(
    "--status", type=click.Choice(RUN.states, case_sensitive=False), help="Only runs with this status."
)
@click.option("--handler", metavar="NAME", help="Only runs of this handler.")
@with_limit
@click.option("--json", "as_json", is_flag=True, help="Whole rows, one JSON object a line.")
@with_options
@click.pass_obj
def runs_command(
    options: Options, status: RunStatus | None, handler: str | None, limit: int, as_json: bool
) -> None:
    """List runs, the newest first."""
    runs = asyncio.run(_runs(options, status, handler, limit + 1))
    shown = runs[:limit]
    listing(shown, as_json, _HEADINGS, _row)
    if len(runs) > limit:
        sys.stdout.flush()
        click.echo(f"There are more than these {limit}: see --limit.", err=True)


async def _runs(options: Options, status: RunStatus | None, handler: str | None, limit: int) -> Sequence[Run]:
    async with options.open_store(folders=True) as store:
        return await store.list_runs(options.tenant_id, status=status, handler=handler, limit=limit)


def _row(run: Run) -> tuple[object, ...]:
    created = when(run.created_at)
    return run.id, run.status, run.plan_id, run.key, created, run.total_steps, run.exit_reason
