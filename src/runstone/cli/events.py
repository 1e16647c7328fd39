"""`runstone events`: the log of one run, to its end if asked to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import click

from runstone.cli.lookup import find_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import say_json, table
from runstone.core.events import Event
from runstone.core.transitions import RUN
from runstone.ports.store import Store

POLL_SECONDS: Final = 0.2
"""How long a follower waits before it looks again."""

_HEADINGS: Final = ("seq", "time", "event", "step", "actor")

_Show: TypeAlias = Callable[[Sequence[Event]], None]


@click.command("events")
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Wait for more until the run has ended, or for Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Whole events, one JSON object a line.")
@with_options
@click.pass_obj
def events_command(options: Options, run: str, follow: bool, as_json: bool) -> None:
    """Show the events of a run, in their order."""
    try:
        asyncio.run(_events(options, run, follow, _as_json if as_json else _as_table))
    except KeyboardInterrupt:
        if not follow:
            raise


def _as_json(events: Sequence[Event]) -> None:
    for event in events:
        say_json(event)


def _as_table(events: Sequence[Event]) -> None:
    table(
        _HEADINGS,
        (
            (
                event.run_seq,
                f"{event.occurred_at:%Y-%m-%dT%H:%M:%S.%fZ}",
                event.event_type,
                event.step_key,
                event.actor,
            )
            for event in events
        ),
    )


async def _events(options: Options, run: str, follow: bool, show: _Show) -> None:
    async with options.open_store(folders=True) as store:
        run_id = await find_run(store, options.tenant_id, run)
        after = await _show_new(store, options.tenant_id, run_id, 0, show)
        while follow:
            # Asked before the events are read: those that ended it are in the log by then.
            ended = await _has_ended(store, options.tenant_id, run_id)
            after = await _show_new(store, options.tenant_id, run_id, after, show)
            if ended:
                return
            await asyncio.sleep(POLL_SECONDS)


async def _show_new(store: Store, tenant_id: str, run_id: str, after: int, show: _Show) -> int:
    """Shows what is in the log beyond a place; the place reached."""
    while events := await store.fetch(tenant_id, run_id, after_seq=after):
        show(events)
        sys.stdout.flush()
        after = events[-1].run_seq
    return after


async def _has_ended(store: Store, tenant_id: str, run_id: str) -> bool:
    run = await store.get_run(tenant_id, run_id)
    return run is None or run.status in RUN.terminal
