"""`runstone pipeline`: runs that live in folders, with no database.

Here are the verbs that work: run, resume, cancel. Those that look are in `pipeline_status`
and `pipeline_looks`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from runstone.audit.trace import printable
from runstone.cli.options import Options, with_options
from runstone.cli.output import log_to_stderr, say
from runstone.cli.pipeline_common import (
    LAST,
    find,
    found_source,
    kept_source,
    load_pipeline,
    opened,
    with_root,
)
from runstone.cli.pipeline_looks import LOOKS
from runstone.cli.pipeline_status import status_command
from runstone.errors import NotFound, SettingsInvalid, StoreBusy
from runstone.pipeline.declaration import Pipeline
from runstone.pipeline.runner import Progress
from runstone.pipelines import About, Outcome, Pipelines

STOPPED: Final = 130

_F = TypeVar("_F", bound=Callable[..., Any])


_telemetry = click.option(
    "--telemetry",
    metavar="URL",
    envvar="RUNSTONE_TELEMETRY",
    help="Tell this endpoint of every event. Or RUNSTONE_TELEMETRY.",
)


def _working(command: _F) -> _F:
    """What `run` and `resume` have in common."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Show what work items log."),
        _telemetry,
        click.option(
            "--force",
            metavar="ITEM",
            multiple=True,
            help="Do a work item although it was done: its name, or a pattern such as 'draft/*'.",
        ),
        click.option("--from", "from_state", metavar="STATE", help="Do all work items from this state on."),
        with_root,
    ):
        command = option(command)
    return command


@click.group("pipeline")
@with_options
def pipeline_command() -> None:
    """Run pipelines in folders, with no database.

    A pipeline is a graph of states, with work items that make artifacts. RUN is a run's id, the beginning of
    one, or `last`.
    """


for _look in (status_command, *LOOKS):
    pipeline_command.add_command(_look)


# Working


@pipeline_command.command("run")
@click.argument("source", metavar="FILE.py|MODULE[:NAME]")
@click.option("--param", "params", metavar="NAME=VALUE", multiple=True, help="What the run starts with.")
@click.option(
    "--reuse", metavar="RUN", help="Take over what RUN made from the same inputs, and make the rest."
)
@_working
@click.pass_obj
def run_command(
    options: Options,
    source: str,
    params: tuple[str, ...],
    reuse: str | None,
    root: str | None,
    from_state: str | None,
    force: tuple[str, ...],
    telemetry: str | None,
    verbose: bool,
) -> int:
    """Start a run of a pipeline and see it through.

    Ctrl-C stops it; `resume` goes on. With --from or --force a run is reused, the last one unless
    --reuse says which: everything else is taken over from there. Exit code 1 if the run fails.
    """
    pipeline = load_pipeline(source)
    given = pipeline.given(dict(_pair(text) for text in params))
    if (from_state or force) and reuse is None:
        reuse = LAST

    async def work(pipelines: Pipelines) -> Outcome:
        base = await find(pipelines, reuse, pipeline.name) if reuse else None
        return await pipelines.run(
            pipeline,
            params=given,
            reuse=base,
            force=force,
            from_state=from_state,
            source=kept_source(source, pipelines.folders.root),
            begun=_tell_run,
        )

    return _drive(options, root, telemetry, verbose, work)


@pipeline_command.command("resume")
@click.argument("run", default=LAST)
@click.option("--source", metavar="FILE.py|MODULE[:NAME]", help="Where the pipeline is now, if it moved.")
@_working
@click.pass_obj
def resume_command(
    options: Options,
    run: str,
    source: str | None,
    root: str | None,
    from_state: str | None,
    force: tuple[str, ...],
    telemetry: str | None,
    verbose: bool,
) -> int:
    """Go on with a run that was stopped or killed.

    What is done is not done again, unless an artifact it was made from has changed or you --force it.
    """

    async def work(pipelines: Pipelines) -> Outcome:
        run_id = await find(pipelines, run)
        _tell_run(run_id)

        def found(about: About | None) -> Pipeline:
            if source is not None:
                return load_pipeline(source)
            if about is None or not about.source:
                raise NotFound(f"Run {run_id} does not say where its pipeline is: name it with --source")
            try:
                return load_pipeline(found_source(about.source, pipelines.folders.root))
            except SettingsInvalid as error:
                raise SettingsInvalid(
                    f"{error}. Run {run_id} was begun with it: if it moved, say with --source where it is now"
                ) from error

        return await pipelines.resume(found, run_id, force=force, from_state=from_state)

    return _drive(options, root, telemetry, verbose, work)


def _drive(
    options: Options,
    root: str | None,
    telemetry: str | None,
    verbose: bool,
    work: Callable[[Pipelines], Awaitable[Outcome]],
) -> int:
    log_to_stderr("%(levelname)s %(message)s", logging.INFO if verbose else logging.WARNING)
    with _bar() as watch:
        outcome = asyncio.run(_stoppable(options, root, telemetry, work, watch))
    if outcome is None:
        click.echo("Stopped. `runstone pipeline resume` goes on.", err=True)
        sys.stdout.flush()
        os._exit(STOPPED)  # a plain function that still runs in a thread would hold the process up
    ended = f" ({outcome.message or outcome.exit_reason})" if outcome.exit_reason else ""
    say(f"{outcome.run_state}{ended}")
    return 1 if outcome.exit_reason else 0


async def _stoppable(
    options: Options,
    root: str | None,
    telemetry: str | None,
    work: Callable[[Pipelines], Awaitable[Outcome]],
    watch: Callable[[Progress], None],
) -> Outcome | None:
    """Works until it is done, or until somebody says stop; a second time ends the process at once."""
    task = asyncio.current_task()
    assert task is not None, "asyncio.run made one"
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            os._exit(STOPPED)
        stopping = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        async with opened(options, root, telemetry=telemetry, watch=watch) as pipelines:
            return await work(pipelines)
    except asyncio.CancelledError:
        if not stopping:
            raise
        return None


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """Shows what is being worked on; at a terminal only, and gone when the work is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda at: bars.update(
            task, description=printable(f"{at.state} {at.item}".strip()), total=at.total, completed=at.done
        )


@pipeline_command.command("cancel")
@click.argument("run")
@click.option("--reason", default="A user cancelled it", show_default=True, help="Kept with the run.")
@_telemetry
@with_root
@click.pass_obj
def cancel_command(options: Options, run: str, reason: str, telemetry: str | None, root: str | None) -> None:
    """End a run for good.

    One that a process is working on ends after the work item that is under way.
    """
    say(asyncio.run(_cancel(options, root, telemetry, run, reason)))


async def _cancel(options: Options, root: str | None, telemetry: str | None, run: str, reason: str) -> str:
    async with opened(options, root, telemetry=telemetry) as pipelines:
        run_id = await find(pipelines, run)
        try:
            await pipelines.cancel(run_id, reason)
        except StoreBusy:
            pipelines.ask_to_cancel(run_id, reason)
            return f"Run {run_id} is being worked on: it ends after the work item that is under way"
        return f"Run {run_id} is cancelled"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--param {text!r} has to be NAME=VALUE.")
    return name, value


def _tell_run(run_id: str) -> None:
    say(f"run {run_id}")
    sys.stdout.flush()
