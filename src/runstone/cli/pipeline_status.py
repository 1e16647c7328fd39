"""`runstone pipeline status`: all runs in a list, one on its graph, or one while it goes on."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from runstone.audit.trace import printable
from runstone.cli.options import Options
from runstone.cli.output import counted, say, say_json, table, when
from runstone.cli.pipeline_common import find, graph_of, opened, with_root
from runstone.core.pipeline import PipelineState
from runstone.core.run import Run
from runstone.core.transitions import RUN
from runstone.errors import RunstoneError
from runstone.pipeline import drawing
from runstone.pipeline.graph import Graph
from runstone.pipelines import Pipelines

if TYPE_CHECKING:  # only a terminal needs it
    from rich.console import Group

POLL_SECONDS: Final = 0.2
"""How long a follower waits before it looks again."""

_HEADINGS: Final = ("run", "pipeline", "state", "status", "items", "issues", "created")
_BAR_WIDTH: Final = 40
_MOST_LISTED: Final = 20
"""How many sections or issues are listed one by one."""
_SEVERITIES: Final = ("BLOCKER", "ERROR", "WARNING", "INFO")
"""The worst first."""


@click.command("status")
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Watch the run until it has ended, or for Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Everything, one JSON object a line.")
@with_root
@click.pass_obj
def status_command(options: Options, run: str | None, follow: bool, as_json: bool, root: str | None) -> None:
    """Show a run on its graph, or list all runs.

    Without RUN, all runs are listed, the newest first.
    """
    if run is None:
        if follow:
            raise click.UsageError("Say which RUN to follow, such as `last`.")
        asyncio.run(_list(options, root, as_json))
    elif follow:
        try:
            asyncio.run(_follow(options, root, run, as_json))
        except KeyboardInterrupt:
            return
    else:
        asyncio.run(_show(options, root, run, as_json))


async def _list(options: Options, root: str | None, as_json: bool) -> None:
    async with opened(options, root) as pipelines:
        run_ids = reversed(await pipelines.folders.run_ids())
        runs = [await _summary(pipelines, run_id) for run_id in run_ids]
    if as_json:
        for run in runs:
            say_json(run)
    else:
        table(_HEADINGS, ([run[heading] for heading in _HEADINGS] for run in runs))


async def _summary(pipelines: Pipelines, run_id: str) -> dict[str, object]:
    """A run in a line; one whose files are broken does not hide the others."""
    try:
        run, state = await pipelines.look(run_id)
    except RunstoneError as error:
        return dict.fromkeys(_HEADINGS) | {"run": run_id, "status": f"unreadable: {error}"}
    return {
        "run": run.id,
        "pipeline": run.plan_id,
        "state": state.run_state,
        "status": run.status,
        "items": f"{_done(state)}/{len(state.work_items)}",
        "issues": sum(issue.status == "OPEN" for issue in state.issues.values()),
        "created": when(run.created_at),
    }


def _done(state: PipelineState) -> int:
    return sum(item.status == "DONE" for item in state.work_items.values())


async def _show(options: Options, root: str | None, name: str, as_json: bool) -> None:
    async with opened(options, root) as pipelines:
        run_id = await find(pipelines, name)
        run, state = await pipelines.look(run_id)
        if as_json:
            say_json(await pipelines.folders.view(pipelines.tenant_id, run_id))
            return
        graph = await graph_of(pipelines, run_id)
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_coloured(run, graph, state))
        return
    for line in (_title(run), "", *_plain(graph, state), "", *_facts(state)):
        say(line)


def _title(run: Run) -> str:
    return f"{run.plan_id} {run.id}: {run.status}" + (f" ({run.exit_reason})" if run.exit_reason else "")


def _plain(graph: Graph, state: PipelineState) -> Iterator[str]:
    shown = drawing.lines(graph, state)
    width = max(len(line.name) for line in shown)
    for line in shown:
        yield f"  {line.mark} {line.name:<{width}}  {line.note}".rstrip()


def _facts(state: PipelineState) -> Iterator[str]:
    stale = sum(artifact.stale for artifact in state.artifacts.values())
    yield f"{counted(len(state.work_items), 'work item')}, {_done(state)} done"
    yield f"{counted(len(state.artifacts), 'artifact')}, {stale} stale"
    if len(state.section_states) <= _MOST_LISTED:
        yield from (f"section {name}: {reached}" for name, reached in sorted(state.section_states.items()))
    else:
        counts = Counter(state.section_states.values())
        yield from (f"{counted(count, 'section')}: {reached}" for reached, count in sorted(counts.items()))
    for commit in state.commits:
        yield f"commit {commit.sha}" + (f" on {commit.branch}" if commit.branch else "")
    issues = [issue for issue in state.issues.values() if issue.status == "OPEN"]
    issues.sort(key=lambda issue: _SEVERITIES.index(issue.severity))
    for issue in issues[:_MOST_LISTED]:
        yield f"{issue.severity} {issue.code} {issue.issue}: {issue.message}"
    if len(issues) > _MOST_LISTED:
        yield f"and {counted(len(issues) - _MOST_LISTED, 'more open issue')}: --json has them all"


def _coloured(run: Run, graph: Graph, state: PipelineState) -> Group:
    """All of it for a terminal, with a bar for the states passed."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    shown = drawing.lines(graph, state)
    width = max(len(line.name) for line in shown)
    states = [
        Text.assemble(
            (f"  {line.mark} {printable(line.name):<{width}}", line.style),
            (f"  {printable(line.note)}", "dim"),
        )
        for line in shown
    ]
    road = [name for name in graph.names if graph[name].limit is None and name not in ("FAILED", "CANCELLED")]
    passed = sum(name in state.visits for name in road)
    bar = ProgressBar(total=len(road), completed=passed, width=_BAR_WIDTH)
    facts = [Text(printable(line)) for line in _facts(state)]
    return Group(Text(printable(_title(run)), "bold"), Text(), *states, Text(), bar, *facts)


async def _follow(options: Options, root: str | None, name: str, as_json: bool) -> None:
    """Shows every change of a run that some other process works on, until it has ended."""
    async with opened(options, root) as pipelines:
        run_id = await find(pipelines, name)
        graph = await graph_of(pipelines, run_id)
        seen = -1
        with _screen(as_json) as screen:
            while True:
                run, state = await pipelines.look(run_id)
                view = await pipelines.folders.view(pipelines.tenant_id, run_id)
                if view is not None and view.last_seq != seen:
                    seen = view.last_seq
                    if screen is not None:
                        screen.update(_coloured(run, graph, state), refresh=True)
                    elif as_json:
                        say_json(view)
                    else:
                        say(f"{state.run_state} {_done(state)}/{len(state.work_items)}")
                    sys.stdout.flush()
                if run.status in RUN.terminal:
                    return
                await asyncio.sleep(POLL_SECONDS)


def _screen(as_json: bool) -> AbstractContextManager[Any]:
    """A part of the terminal that is drawn again and again; none where nobody sees it."""
    if as_json or not sys.stdout.isatty():
        return nullcontext()
    from rich.live import Live

    return Live(auto_refresh=False)
