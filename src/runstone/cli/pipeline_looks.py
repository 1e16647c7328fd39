"""The verbs of `runstone pipeline` that look closer: why, replay, graph, told."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import sys
from collections.abc import Iterator
from typing import Final

import click

from runstone.cli.files import STANDARD, check_target, write_target
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, say, say_json, when
from runstone.cli.pipeline_common import LAST, find, graph_of, load_pipeline, opened, with_root
from runstone.core.ids import UUID_PATTERN
from runstone.errors import NotFound
from runstone.pipeline import drawing
from runstone.pipeline.files import Files
from runstone.pipeline.why import Why, why

SNAPSHOT: Final = "snapshot.json"


@click.command("why")
@click.argument("artifact")
@click.option("--run", default=LAST, show_default=True, metavar="RUN", help="Of which run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_root
@click.pass_obj
def why_command(options: Options, artifact: str, run: str, as_json: bool, root: str | None) -> None:
    """Explain an artifact: what made it, from what, and why it is stale."""
    found = asyncio.run(_why(options, root, run, artifact))
    if as_json:
        say_json(found)
        return
    for line in _explained(found):
        say(line)


async def _why(options: Options, root: str | None, run: str, artifact: str) -> Why:
    async with opened(options, root) as pipelines:
        run_id = await find(pipelines, run)
        _, state = await pipelines.look(run_id)
        files = Files(pipelines.folders.folder(run_id))
        return why(artifact, state, await pipelines.events(run_id), files.sha256)


def _explained(found: Why) -> Iterator[str]:
    yield f"{found.name}  {found.sha256}"
    yield f"  file      {found.path}" + (f", by schema {found.schema_id}" if found.schema_id else "")
    maker = f"by {found.writer_worker}"
    if found.item is not None and found.item != found.writer_worker:
        maker += f" (work item {found.item})"
    yield f"  written   {when(found.written_at)} {maker}"
    for source in found.made_from:
        yield f"  made from {source.name} {source.sha256[:12]}" + (
            " (changed since)" if source.changed else ""
        )
    for name in found.needed_by:
        yield f"  needed by {name}"
    for reason in found.reasons:
        yield f"  stale     {reason}"
    for name in found.touched:
        yield f"  touched   {name}: its file is not what the log says"
    if not found.stale and not found.touched:
        yield "  It is up to date."


@click.command("replay")
@click.argument("run", default=LAST)
@click.option(
    "--check", is_flag=True, help="Compare with snapshot.json, byte for byte; exit code 1 if it differs."
)
@with_root
@click.pass_obj
def replay_command(options: Options, run: str, check: bool, root: str | None) -> int:
    """Fold a run's log anew and print the snapshot that follows from it."""
    replayed, stored = asyncio.run(_replay(options, root, run))
    if not check:
        sys.stdout.buffer.write(replayed)
        sys.stdout.buffer.flush()
        return 0
    if stored == replayed:
        say(f"The log gives {SNAPSHOT}, byte for byte: {counted(len(replayed), 'byte')}.")
        return 0
    for line in difflib.unified_diff(_pretty(stored), _pretty(replayed), SNAPSHOT, "replayed", lineterm=""):
        say(line)
    say(f"{SNAPSHOT} is not what the log gives: `runstone pipeline resume` makes it again.")
    return 1


async def _replay(options: Options, root: str | None, run: str) -> tuple[bytes, bytes]:
    async with opened(options, root) as pipelines:
        run_id = await find(pipelines, run)
        try:
            stored = (pipelines.folders.folder(run_id) / SNAPSHOT).read_bytes()
        except FileNotFoundError:
            stored = b""
        return await pipelines.folders.replay(pipelines.tenant_id, run_id), stored


def _pretty(content: bytes) -> list[str]:
    """JSON on many lines; what is no JSON, as it is."""
    try:
        return json.dumps(json.loads(content), indent=1, sort_keys=True, ensure_ascii=False).splitlines()
    except ValueError:
        return content.decode("utf-8", "backslashreplace").splitlines()


@click.command("graph")
@click.argument("source", metavar="[FILE.py|MODULE[:NAME]]", required=False)
@click.option("--run", metavar="RUN", help="Draw a run on its own graph instead.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default=STANDARD,
    help="Where to; a file that exists is replaced. Default: standard output.",
)
@with_root
@click.pass_obj
def graph_command(
    options: Options, source: str | None, run: str | None, output: str, root: str | None
) -> None:
    """Draw a graph of states as an SVG.

    The same graph always gives the same bytes.
    """
    if (source is None) == (run is None):
        raise click.UsageError("Name a pipeline or a --run, one of the two.")
    check_target(output, force=True)
    if source is not None:
        pipeline = load_pipeline(source)
        drawn = drawing.svg(pipeline.graph, title=pipeline.name)
    else:
        drawn = asyncio.run(_drawn(options, root, run or LAST))
    write_target(output, drawn.encode(), force=True)


async def _drawn(options: Options, root: str | None, name: str) -> str:
    async with opened(options, root) as pipelines:
        run_id = await find(pipelines, name)
        run, state = await pipelines.look(run_id)
        return drawing.svg(await graph_of(pipelines, run_id), state, title=f"{run.plan_id} {run_id}")


@click.command("told")
@click.argument("name", metavar="RUN|COMMIT")
@click.option("--telemetry", metavar="URL", envvar="RUNSTONE_TELEMETRY", required=True, help="Whom to ask.")
@with_options
def told_command(name: str, telemetry: str) -> None:
    """Show what telemetry was told of a run or commit.

    One event a line, as JSON. Of a commit, the records of it are shown: each names its run.
    """
    from runstone.telemetry.http import HttpTelemetry

    endpoint = HttpTelemetry(telemetry)
    events = endpoint.of_run(name) if re.fullmatch(UUID_PATTERN, name) else endpoint.of_commit(name)
    for event in events:
        say_json(event)
    if not events:
        raise NotFound(f"{telemetry} was told of no run and no commit {name}")


LOOKS: Final = (why_command, replay_command, graph_command, told_command)
