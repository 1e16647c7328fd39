"""`runstone worker`: executes an app's runs until it is told to stop.

The first SIGTERM or SIGINT drains: no more claims, what can finish finishes, the rest is given
back. A second one ends the process at once; its runs are claimed again when its lease is over.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import click

from runstone.app import App
from runstone.cli.options import Options, with_options
from runstone.cli.output import say
from runstone.errors import SettingsInvalid


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
@with_options
@click.pass_obj
def worker_command(options: Options, app: str, concurrency: int, lease: float, drain: float) -> None:
    """Execute the runs of an app.

    APP is the name of an App in a file or a module, such as support_desk.py:app.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    lasting, grace = timedelta(seconds=lease), timedelta(seconds=drain)
    asyncio.run(_work(load_app(app), options, concurrency, lasting, grace))
    sys.stdout.flush()
    os._exit(0)  # a plain function that still runs in a thread would hold the process up


async def _work(app: App, options: Options, concurrency: int, lease: timedelta, grace: timedelta) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stop)
    path = str(options.settings().store_path)
    async with app.running(path, concurrency=concurrency, lease=lease, grace=grace):
        say(f"{app.name} {app.version}: working on {path} with {', '.join(sorted(app.handlers))}")
        sys.stdout.flush()
        await stop.wait()
        say("draining; once more to stop at once")
        sys.stdout.flush()


def _stop(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(128 + signal.SIGTERM)
    stop.set()


def load_app(name: str) -> App:
    """The app that `FILE.py:APP` or `MODULE:APP` names."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise SettingsInvalid(
            f"{name!r} names no app: say where it is and what it is called, as in desk.py:app"
        )
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise SettingsInvalid(f"{place} has no App called {attribute!r}")
    return app


def _load_file(path: Path) -> ModuleType:
    if not path.exists():
        raise SettingsInvalid(f"There is no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SettingsInvalid(f"There is no module {name!r}: {error}") from error
