"""What the verbs of `runstone pipeline` share: where runs are, which one is meant, where a pipeline is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from runstone.cli.loading import load
from runstone.cli.options import Options, with_options
from runstone.errors import NotFound, RunstoneError, SettingsInvalid
from runstone.pipeline.declaration import Pipeline
from runstone.pipeline.graph import DOCS_GRAPH, Graph
from runstone.pipeline.runner import Progress
from runstone.pipelines import Pipelines, open_pipelines

LAST: Final = "last"

_F = TypeVar("_F", bound=Callable[..., Any])


def with_root(command: _F) -> _F:
    """Gives a verb the common options, and the one that says where runs are."""
    return click.option(
        "--root",
        metavar="FOLDER",
        help="Where `runs/` is. Default: the store if that is a folder, else the current folder.",
    )(with_options(command))


@asynccontextmanager
async def opened(
    options: Options,
    root: str | None,
    *,
    telemetry: str | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> AsyncIterator[Pipelines]:
    more: dict[str, Any] = {}
    if telemetry:
        from runstone.telemetry.http import HttpTelemetry

        more["telemetry"] = HttpTelemetry(telemetry)
    async with open_pipelines(
        _place(options, root), tenant_id=options.tenant_id, watch=watch, **more
    ) as pipelines:
        yield pipelines


def _place(options: Options, root: str | None) -> Path:
    """The folder that `runs/` is in."""
    if root is not None:
        return Path(root)
    settings = options.settings()
    if settings.folder is None and options.store is not None:
        raise SettingsInvalid(
            f"A pipeline lives in a folder: --root FOLDER, or --store folder:{options.store}"
        )
    return settings.folder or Path()


async def find(pipelines: Pipelines, name: str, pipeline: str | None = None) -> str:
    """The id of the run that is meant; `last` is the newest, of one pipeline if it is named."""
    run_ids = await pipelines.folders.run_ids()
    if name == LAST:
        for run_id in reversed(run_ids):
            if pipeline is None or await _plan_of(pipelines, run_id) == pipeline:
                return run_id
        raise NotFound("There is no run yet: see `runstone pipeline run --help`, and --root")
    found = [run_id for run_id in run_ids if run_id.startswith(name.lower())]
    if name.lower() in run_ids:
        return name.lower()
    if not found:
        raise NotFound(
            f"There is no run whose id begins with {name!r}: see `runstone pipeline status`, and --root"
        )
    if len(found) > 1:
        raise NotFound(f"Several runs begin with {name!r}: {', '.join(found[:3])}. Give more of the id")
    return found[0]


async def _plan_of(pipelines: Pipelines, run_id: str) -> str | None:
    """The pipeline of a run; none if its files are broken."""
    try:
        return (await pipelines.look(run_id))[0].plan_id
    except RunstoneError:
        return None


def load_pipeline(source: str) -> Pipeline:
    """The pipeline that `FILE.py`, `MODULE`, or either with `:NAME` behind it, names."""
    place, name = _split(source)
    module = load(place)
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, Pipeline):
            raise SettingsInvalid(f"{place} has no Pipeline called {name!r}")
        return found
    there = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if len({id(value) for value in there.values()}) != 1:
        names = ", ".join(sorted(there)) or "none"
        raise SettingsInvalid(
            f"{place} has to have one Pipeline, or say which: {place}:NAME (there are: {names})"
        )
    return next(iter(there.values()))


def kept_source(source: str, root: Path) -> str:
    """A source as a run keeps it: a file's path is from the folder that `runs/` is in.

    So both can move together, and a bundle does not tell where somebody's files are.
    """
    place, name = _split(source)
    if place.endswith(".py"):
        place = os.path.relpath(Path(place).resolve(), root.resolve())
    return f"{place}:{name}" if name else place


def found_source(kept: str, root: Path) -> str:
    """A kept source as it is found from here."""
    place, name = _split(kept)
    if place.endswith(".py"):
        place = os.path.normpath(root.resolve() / place)
    return f"{place}:{name}" if name else place


def _split(source: str) -> tuple[str, str]:
    """A file or module, and the name behind its colon, if there is one."""
    place, _, name = source.rpartition(":")
    return (place, name) if place and not source.endswith(".py") else (source, "")


async def graph_of(pipelines: Pipelines, run_id: str) -> Graph:
    """The graph that a run was started with, which it keeps itself."""
    about = await pipelines.about(run_id)
    return Graph.described(about.graph) if about and about.graph else DOCS_GRAPH
