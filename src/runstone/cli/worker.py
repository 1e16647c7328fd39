"""`runstone worker`: executes an app's runs, effects and schedules until it is told to stop.

The first SIGTERM or SIGINT drains: no more claims, what can finish finishes, the rest is given
back. A second one ends the process at once; its runs are claimed again when its lease is over.

With `--processes` it is a supervisor, whose children are this same command.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from typing import Any, Final

import click

from runstone.app import App
from runstone.cli.loading import load
from runstone.cli.options import Options, with_options
from runstone.cli.output import log_to_stderr, say
from runstone.cli.supervisor import STOPPING, Leash, Supervisor, leash, usable_cores
from runstone.errors import SettingsInvalid
from runstone.runtime import THREADS
from runstone.settings import listed

BROKEN: Final = 2
"""The exit code after an error of our own: a part of it, say the dispatcher, did no more work."""


def _count(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    """A number of processes; `auto` is one for each core."""
    if value == "auto":
        return usable_cores()
    if not (value.isascii() and value.isdigit() and int(value)):
        raise click.BadParameter(f"{value!r} is neither a number from 1 on nor 'auto'.", ctx, parameter)
    return int(value)


@click.command("worker")
@click.argument("app", metavar="FILE.py:APP|MODULE:APP")
@click.option(
    "--processes",
    metavar="N|auto",
    callback=_count,
    default="1",
    show_default=True,
    help="Processes, each with all of the other options; auto: one for each usable core.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Runs in memory at once, in each process.",
)
@click.option(
    "--only",
    type=click.Choice(["runs", "outbox"]),
    help="Only runs and schedules, or only effects; all in one process if not given.",
)
@click.option(
    "--calls",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Effects on their way out at once, in each process.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=THREADS,
    show_default=True,
    help="Plain functions, those that are no `async def`, at once, in each process.",
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
    processes: int,
    concurrency: int,
    only: str | None,
    calls: int,
    threads: int,
    lease: float,
    drain: float,
    write_latency_budget_ms: int | None,
    fail_open: str | None,
    never_fail_open: str | None,
) -> int:
    """Execute an app's runs, effects and schedules.

    APP is the name of an App in a file or a module, such as support_desk.py:app.
    """
    supervised = leash(os.environ)
    if supervised is not None:
        supervised.mark_output()
    log_to_stderr("%(asctime)s %(levelname)s %(name)s %(message)s", logging.INFO)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would tell of every call
    if supervised is None and processes > 1:
        return asyncio.run(Supervisor(_once_more(), processes).run())
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
    given = {name: value for name, value in given.items() if value is not None}
    loaded = load_app(app)
    if given["worker"] and not loaded.handlers:
        if not (given["outbox"] and loaded.services):
            raise SettingsInvalid(
                f"{app} has no handlers, so there is nothing to work on: register one with @app.on(), "
                "or say --only outbox for a worker that only sends effects"
            )
        given["worker"] = False  # its executors are all it has
    code = asyncio.run(_work(loaded, options, supervised, **given))
    sys.stdout.flush()
    os._exit(code)  # a plain function that still runs in a thread would hold the process up


def _once_more() -> list[str]:
    """This very command. `-m` alone would let files of the working folder stand in for modules of ours."""
    path = [] if os.getcwd() in sys.path else ["-P"]
    return [sys.executable, *path, "-m", "runstone", *sys.argv[1:]]


async def _work(app: App, options: Options, supervised: Leash | None, **given: Any) -> int:
    """The exit code: not 0 if it broke down, so that whoever keeps it alive starts it again."""
    stop = asyncio.Event()
    _listen(stop, supervised)
    settings = options.settings()
    broken = asyncio.Event()
    try:
        async with app.running(settings.location, **given):
            broken = app.runtime.broken
            served = ", ".join(sorted(app.handlers) if given["worker"] else app.runtime.served)
            say(f"{app.name} {app.version}: working on {settings.place} with {served}")
            sys.stdout.flush()
            if supervised is not None:
                supervised.ready()
            breakdown = asyncio.ensure_future(broken.wait())
            breakdown.add_done_callback(lambda _: stop.set())
            await stop.wait()
            breakdown.cancel()
            say("draining; once more to stop at once")
            sys.stdout.flush()
    except Exception:
        if not broken.is_set():
            raise
        return BROKEN  # of what, is in the log
    return 0


def _listen(stop: asyncio.Event, supervised: Leash | None) -> None:
    """A supervised process is told to end at once by its supervisor, and by no signal.

    A service manager may signal everybody, and what the supervisor passes on would count as the second time.
    """
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        if supervised is None:
            loop.add_signal_handler(number, _stop, stop, number)
        else:
            loop.add_signal_handler(number, stop.set)
    if supervised is not None:
        supervised.follow(stop.set, _end)


def _stop(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        _end(number)
    stop.set()


def _end(number: int) -> None:
    os._exit(128 + number)


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
