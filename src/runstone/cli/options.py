"""What every verb has in common: which store, whose data, how errors are shown."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from runstone.core.ids import DEFAULT_TENANT, UUID_PATTERN
from runstone.errors import NotFound
from runstone.settings import DEFAULT_STORE, Settings, load_settings

if TYPE_CHECKING:  # help and completion have to be quick, and need no store
    from runstone.ports.store import Store

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass
class Options:
    """The options that stand before or after any verb."""

    store: str | None = None
    tenant: str | None = None
    debug: bool = False

    @property
    def tenant_id(self) -> str:
        """The tenant named, or the only one of a store that nobody divided."""
        return self.tenant or DEFAULT_TENANT

    def settings(self) -> Settings:
        return load_settings(store=self.store, environment=os.environ, folder=Path.cwd())

    @asynccontextmanager
    async def open_store(self, *, create: bool = False, folders: bool = False) -> AsyncIterator[Store]:
        """The store; one that is not there is made only for a verb that puts something into it.

        `folders` is for verbs that ask no more of a store than a folder of runs has: its log and lists.
        """
        from runstone.runtime import open_as_set, open_folders

        settings = self.settings()
        place = settings.folder
        if place is None and settings.database_url is None:
            place = settings.store_path
        if not create and place is not None and not place.exists():
            raise NotFound(
                f"There is no store at {settings.place} (from {settings.store.origin}): "
                "name the right one with --store or RUNSTONE_STORE"
            )
        if folders and settings.folder is not None:
            store = cast("Store", await open_folders(settings))
            if not create:
                _tell_of_no_runs(settings.folder)
        else:
            store = await open_as_set(settings)
        try:
            yield store
        finally:
            await store.close()


def _tell_of_no_runs(folder: Path) -> None:
    """Any folder can be a store that nothing was put into yet, and most of those that are named are none."""
    from runstone.stores.folder.folders import PLACES

    if any((folder / place).is_dir() for place in PLACES.values()):
        return
    meant = folder.absolute() / DEFAULT_STORE
    instead = f"do you mean {meant}?" if meant.is_file() else "see --store and RUNSTONE_STORE."
    click.echo(f"There is no `runs/` in {folder.absolute()}: {instead}", err=True)


def with_options(command: _F) -> _F:
    """Gives a verb the common options."""
    for option in (_DEBUG, _TENANT, _STORE):
        command = option(command)
    return command


with_limit = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many."
)
"""For verbs that list what may be more than somebody wants to see."""


def _keep(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    if value not in (None, False) and parameter.name:
        setattr(ctx.ensure_object(Options), parameter.name, value)


def _keep_tenant(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        tenant_id = DEFAULT_TENANT if value == "default" else value.lower()
        if not re.fullmatch(UUID_PATTERN, tenant_id):
            raise click.BadParameter(
                f"{value!r} is neither the id of a tenant nor 'default'.", ctx, parameter
            )
        _keep(ctx, parameter, tenant_id)


_STORE = click.option(
    "--store",
    metavar="PATH",
    expose_value=False,
    callback=_keep,
    help="A file, folder or URL. Default: RUNSTONE_STORE, DATABASE_URL, store in runstone.toml, runstone.db.",
)
_TENANT = click.option(
    "--tenant",
    metavar="ID",
    expose_value=False,
    callback=_keep_tenant,
    help="Whose data: the id of a tenant, or 'default'.",
)
_DEBUG = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_keep, help="Show where an error came from."
)
