"""`runstone events`: the log of one run, to its end if asked to."""

from __future__ import annotations

import asyncio
import re
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
_WHOLE: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
_WORKER: Final = re.compile(r"^(worker:.+):[0-9a-f-]{36}$")
"""A worker's name, as far as a person can tell it by: the rest tells apart its lives."""

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
        asyncio.run(_events(options, run, follow, _as_json if as_json else _Table()))
    except KeyboardInterrupt:
        if not follow:
            raise


def _as_json(events: Sequence[Event]) -> None:
    for event in events:
        say_json(event)


class _Table:
    """Events a line each: all of it to a program, and what fits a terminal to a person."""

    def __init__(self) -> None:
        self._steps: dict[str, str] = {}
        """The step that each aggregate belongs to: an outcome does not repeat what its request said."""

    def __call__(self, events: Sequence[Event]) -> None:
        if not sys.stdout.isatty():
            table(_HEADINGS, (self._row(event, f"{event.occurred_at:{_WHOLE}}") for event in events))
            return
        days = {event.occurred_at.date() for event in events}
        one_day = len(days) == 1
        form = "%H:%M:%S" if one_day else "%m-%d %H:%M:%S"
        headings = ("seq", f"{min(days)}" if one_day else "time", *_HEADINGS[2:])
        table(headings, (self._short(event, f"{event.occurred_at:{form}}") for event in events))

    def _short(self, event: Event, time: str) -> tuple[object, ...]:
        *others, actor = self._row(event, f"{time}.{event.occurred_at.microsecond // 1000:03}")
        return *others, _WORKER.sub(r"\1", str(actor))

    def _row(self, event: Event, time: str) -> tuple[object, ...]:
        return event.run_seq, time, event.event_type, self._step(event), event.actor

    def _step(self, event: Event) -> str | None:
        if event.step_key is None:
            return self._steps.get(event.aggregate_id)
        self._steps[event.aggregate_id] = event.step_key
        return event.step_key


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
