"""`runstone outbox`: what goes out, what did not, and what to do about it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from runstone.cli.options import Options, with_limit, with_options
from runstone.cli.output import counted, listing, say, say_json, when
from runstone.core import codec
from runstone.core.commands import Command
from runstone.core.commit import Context
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.core.transitions import EFFECT, EffectStatus
from runstone.outbox import operations
from runstone.ports.clock import SystemClock, new_id
from runstone.ports.store import EffectGroup, Store

_HEADINGS: Final = ("effect", "status", "type", "tries", "next try", "error", "run")
_GROUP_HEADINGS: Final = ("status", "type", "error", "effects")
_NAMED: Final = 20
"""How many of those that were left alone are named: of a group it may be thousands."""
_STATUS = click.Choice(EFFECT.states, case_sensitive=False)


@click.group("outbox", invoke_without_command=True)
@with_options
@click.pass_context
def outbox_command(ctx: click.Context) -> None:
    """See effects and dead letters, and deal with them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


# Looking


@outbox_command.command("list")
@click.option("--status", type=_STATUS, help="Only effects with this status.")
@click.option("--type", "effect_type", metavar="TYPE", help="Only effects of this type.")
@click.option("--error", "error_code", metavar="CODE", help="Only effects whose last error has this code.")
@click.option("--groups", is_flag=True, help="How many there are by status, type and error.")
@with_limit
@click.option("--json", "as_json", is_flag=True, help="Whole rows, one JSON object a line.")
@with_options
@click.pass_obj
def list_command(
    options: Options,
    status: EffectStatus | None,
    effect_type: str | None,
    error_code: str | None,
    groups: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List effects, the newest first."""
    asyncio.run(_list(options, status, effect_type, error_code, groups, limit, as_json))


async def _list(
    options: Options,
    status: EffectStatus | None,
    effect_type: str | None,
    error_code: str | None,
    groups: bool,
    limit: int,
    as_json: bool,
) -> None:
    async with options.open_store() as store:
        if groups:
            found = await store.effect_groups(options.tenant_id, status=status)
            wanted = [
                one
                for one in found
                if effect_type in (None, one.effect_type) and error_code in (None, one.error_code)
            ]
            listing(wanted[:limit], as_json, _GROUP_HEADINGS, _group)
            return
        effects = await store.list_effects(
            options.tenant_id, status=status, effect_type=effect_type, error_code=error_code, limit=limit
        )
    listing(effects, as_json, _HEADINGS, _row)


def _group(one: EffectGroup) -> tuple[object, ...]:
    return one.status, one.effect_type, one.error_code, one.count


def _row(effect: Effect) -> tuple[object, ...]:
    error = _error(effect)
    return (
        effect.id,
        effect.status,
        effect.effect_type,
        effect.retry_count + (effect.status != "PENDING"),
        when(effect.next_retry_at),
        None if error is None else error.code,
        effect.run_id,
    )


def _error(effect: Effect) -> ErrorInfo | None:
    return None if effect.error_details is None else codec.decode_as(effect.error_details, ErrorInfo)


@outbox_command.command("show")
@click.argument("effect", metavar="EFFECT")
@with_options
@click.pass_obj
def show_command(options: Options, effect: str) -> None:
    """Show one effect with its history.

    EFFECT is its id or its idempotency key.
    """
    asyncio.run(_show(options, effect))


async def _show(options: Options, name: str) -> None:
    async with options.open_store() as store:
        effect = await operations.find(store, options.tenant_id, name)
        stream = await store.load(effect.tenant_id, effect.run_id)
    say_json(effect)
    for event in stream.events if stream else ():
        if event.aggregate_id == effect.id:
            say(
                f"{event.occurred_at:%Y-%m-%dT%H:%M:%S.%fZ}  {event.event_type}  {event.actor}  "
                f"{bytes(event.event_data).decode()}"
            )


# Dealing with dead letters


@dataclass(frozen=True)
class _Chosen:
    """Which dead letters somebody means: some by name, or a group; and whether to do anything."""

    effects: tuple[str, ...]
    effect_type: str | None
    error_code: str | None
    everything: bool
    dry_run: bool

    def __post_init__(self) -> None:
        grouped = bool(self.effect_type or self.error_code or self.everything)
        if bool(self.effects) == grouped:
            raise click.UsageError("Name effects, or a group with --type, --error or --all.")


def _choosing(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.option("--reason", default="", metavar="TEXT", help="Why; it is kept in the history."),
        click.option("--dry-run", is_flag=True, help="Only say how many it would be."),
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
        click.option("--error", "error_code", metavar="CODE", help="Those whose error has this code."),
        click.option("--type", "effect_type", metavar="TYPE", help="Those of this type."),
        click.argument("effects", metavar="[EFFECT]...", nargs=-1),
    ):
        command = option(command)
    return command


@outbox_command.command("requeue")
@_choosing
@with_options
@click.pass_obj
def requeue_command(options: Options, /, reason: str, **chosen: Any) -> int:
    """Send dead letters again, each with its key.

    Nothing is done if one that is named is no dead letter; the exit code is 1 if one ceased to be meanwhile.
    """
    return asyncio.run(_deal_with(options, _Chosen(**chosen), operations.requeue(reason), "requeued"))


@outbox_command.command("discard")
@_choosing
@with_options
@click.pass_obj
def discard_command(options: Options, /, reason: str, **chosen: Any) -> int:
    """Give dead letters up; their history stays.

    Nothing is done if one that is named is no dead letter; the exit code is 1 if one ceased to be meanwhile.
    """
    return asyncio.run(_deal_with(options, _Chosen(**chosen), operations.discard(reason), "discarded"))


async def _deal_with(options: Options, chosen: _Chosen, what: Callable[[Effect], Command], verb: str) -> int:
    async with options.open_store() as store:
        letters = _letters(store, options.tenant_id, chosen)
        if chosen.dry_run:
            say(f"{counted(len([one async for one in letters]), 'dead letter')} would be {verb}")
            return 0
        done = await operations.apply_to_all(store, letters, what, operator)
    said = f"{counted(done.done, 'dead letter')} {verb}"
    if done.passed_over:
        said += f", {len(done.passed_over)} left alone, no dead letters any more: {_some(done.passed_over)}"
    say(said)
    return 1 if chosen.effects and done.passed_over else 0


async def _letters(store: Store, tenant_id: str, chosen: _Chosen) -> AsyncIterator[Effect]:
    """Those that are named are all looked at before the first is given out."""
    if chosen.effects:
        for effect in await operations.find_dead(store, tenant_id, chosen.effects):
            yield effect
        return
    group = operations.select(
        store,
        tenant_id,
        status="DEAD_LETTER",
        effect_type=chosen.effect_type,
        error_code=chosen.error_code,
    )
    async for effect in group:
        yield effect


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (" and more" if len(ids) > _NAMED else "")


def operator() -> Context:
    """Who does it, as the log will have it."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = "unknown"
    return Context(now=SystemClock().now(), new_id=new_id, actor=f"operator:{name}")
