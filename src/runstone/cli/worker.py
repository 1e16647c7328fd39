"""`runstone worker`: executes an app's runs and effects until it is told to stop.

The first SIGTERM or SIGINT drains: no more claims, what can finish finishes, the rest is given
back. A second one ends the process at once; its runs are claimed again when its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import click

from runstone.app import App
from runstone.cli.loading import load
from runstone.cli.options import Options, with_options
from runstone.cli.output import say
from runstone.errors import SettingsInvalid
from runstone.runtime import THREADS
from runstone.settings import listed


@click.command("worker")
@click.argument("app", metavar="FILE.py:APP|MODULE:APP")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Runs in memory at once.",
)
@click.option(
    "--only",
    type=click.Choice(["runs", "outbox"]),
    help="Only execute runs, or only send effects; both in one process if not given.",
)
@click.option(
    "--calls",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Effects on their way out at once.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=THREADS,
    show_default=True,
    help="Plain functions, those that are no `async def`, at once.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0.5),
    default=30.0,
    show_default=True,
    help="Seconds after which this worker's runs are others', if it dies.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that runs may take to finish when it is told to stop.",
)
@click.option(
    "--write-latency-budget-ms",
    type=click.IntRange(min=1),
    help="Milliseconds a write may take. Default: RUNSTONE_WRITE_LATENCY_BUDGET_MS, runstone.toml, 3000.",
)
@click.option(
    "--fail-open",
    metavar="EVENTS",
    help="Types of event that may be written later than that, with commas between them, or none: ''.",
)
@click.option(
    "--never-fail-open",
    metavar="EVENTS",
    help="Types of event whose step fails when they cannot be written in time.",
)
@with_options
@click.pass_obj
def worker_command(
    options: Options,
    app: str,
    concurrency: int,
    only: str | None,
    calls: int,
    threads: int,
    lease: float,
    drain: float,
    write_latency_budget_ms: int | None,
    fail_open: str | None,
    never_fail_open: str | None,
) -> None:
    """Execute an app's runs and effects.

    APP is the name of an App in a file or a module, such as support_desk.py:app.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would tell of every call
    given: dict[str, Any] = {
        "concurrency": concurrency,
        "worker": only != "outbox",
        "outbox": only != "runs",
        "calls": calls,
        "threads": threads,
        "lease": timedelta(seconds=lease),
        "grace": timedelta(seconds=drain),
        "write_latency_budget_ms": write_latency_budget_ms,
        "fail_open": None if fail_open is None else listed(fail_open),
        "never_fail_open": None if never_fail_open is None else listed(never_fail_open),
    }
    asyncio.run(
        _work(load_app(app), options, **{n: value for n, value in given.items() if value is not None})
    )
    sys.stdout.flush()
    os._exit(0)  # a plain function that still runs in a thread would hold the process up


async def _work(app: App, options: Options, **given: Any) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stop, number)
    settings = options.settings()
    async with app.running(settings.location, **given):
        served = ", ".join(sorted(app.handlers) if given["worker"] else app.runtime.served)
        say(f"{app.name} {app.version}: working on {settings.place} with {served}")
        sys.stdout.flush()
        await stop.wait()
        say("draining; once more to stop at once")
        sys.stdout.flush()


def _stop(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        os._exit(128 + number)
    stop.set()


def load_app(name: str) -> App:
    """The app that `FILE.py:APP` or `MODULE:APP` names."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise SettingsInvalid(
            f"{name!r} names no app: say where it is and what it is called, as in desk.py:app"
        )
    app = getattr(load(place), attribute, None)
    if not isinstance(app, App):
        raise SettingsInvalid(f"{place} has no App called {attribute!r}")
    return app
