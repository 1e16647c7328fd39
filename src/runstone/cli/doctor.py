"""`runstone doctor`: names what is wrong, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from runstone.audit import doctor
from runstone.cli.options import Options, with_options
from runstone.cli.output import counted, say, say_json
from runstone.errors import NotFound, RunstoneError, SettingsInvalid
from runstone.ports.clock import SystemClock
from runstone.ports.health import Problem
from runstone.runtime import needs_driver
from runstone.settings import Settings

if TYPE_CHECKING:
    from runstone.ports.store import Store


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_options
@click.pass_obj
def doctor_command(options: Options, as_json: bool) -> int:
    """Look for what is wrong with the store, and with the work in it.

    Over all tenants. Changes nothing. Exit code 1 if there is anything to do.
    """
    settings = options.settings()
    problems = asyncio.run(_examine(settings))
    if as_json:
        say_json({"store": settings.place, "ok": not problems, "problems": problems})
    else:
        _report(settings.place, problems)
    return 1 if problems else 0


def _report(place: str, problems: list[Problem]) -> None:
    for problem in problems:
        say(f"{problem.check}: {problem.what}")
        say(f"  {problem.remedy}")
    say(
        f"{counted(len(problems), 'problem')} with {place}."
        if problems
        else f"Nothing is wrong with {place}."
    )


async def _examine(settings: Settings) -> list[Problem]:
    if settings.folder is not None:
        raise SettingsInvalid(f"{settings.place} is a folder of runs: prove it with `runstone verify`")
    before = await _from_outside(settings)
    if any(problem.check in ("schema", "journal", "server") for problem in before):
        return before  # to open it would change it, or cannot be done
    try:
        store = await _open(settings)
    except RunstoneError as error:
        return [
            *before,
            Problem(check="store", what=str(error), remedy="Until then nothing else can be seen"),
        ]
    try:
        found = await doctor.examine(store, SystemClock())
    finally:
        await store.close()
    return list(dict.fromkeys([*before, *found]))


async def _from_outside(settings: Settings) -> list[Problem]:
    """What can be seen without opening the store: opening a file may mend it."""
    if settings.database_url is not None:
        with needs_driver(settings):
            from runstone.stores.postgres.migrations import connected, pending
        try:
            async with connected(settings.database_url) as connection:
                behind = len(await pending(connection))
        except RunstoneError as error:
            return [Problem(check="server", what=str(error), remedy="Until then nothing else can be seen")]
        return _behind(behind)
    from runstone.stores.sqlite import files, health

    path = settings.store_path
    if not path.exists():
        raise NotFound(f"There is no store at {settings.place} (from {settings.store.origin})")
    problems = health.file_problems(str(path))
    try:
        return [*problems, *_behind(len(files.pending(str(path))))]
    except RunstoneError as error:
        return [
            *problems,
            Problem(check="schema", what=str(error), remedy="Name the right file with --store"),
        ]


def _behind(migrations: int) -> list[Problem]:
    if not migrations:
        return []
    what = f"The schema is {counted(migrations, 'migration')} behind"
    return [Problem(check="schema", what=what, remedy="Run `runstone db migrate`, with a role that may")]


async def _open(settings: Settings) -> Store:
    """A server that would lose data is opened all the same: to say so is what this is for."""
    if settings.database_url is None:
        from runstone.stores.sqlite import SqliteStore

        return await SqliteStore.open(settings.store_path)
    from runstone.stores.postgres import PostgresStore
    from runstone.stores.postgres.connections import DURABLE

    return await PostgresStore.open(settings.database_url, unsafe=DURABLE)
