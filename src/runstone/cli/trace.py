"""`runstone trace`: what caused what (§ORD-22)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import click

from runstone.audit.trace import draw, trace
from runstone.audit.verify import correlation_of
from runstone.cli.lookup import find_run
from runstone.cli.options import Options, with_options
from runstone.cli.output import say
from runstone.core.ids import UUID_PATTERN
from runstone.core.stream import Stream


@click.command("trace")
@click.argument("correlation", metavar="CORRELATION|RUN")
@with_options
@click.pass_obj
def trace_command(options: Options, correlation: str) -> None:
    """Draw what caused what in a correlation.

    Each event stands below its cause. What led furthest goes straight down; what else came of an event
    stands aside.
    """
    for line in draw(trace(asyncio.run(_streams(options, correlation)))):
        say(line)


async def _streams(options: Options, text: str) -> Sequence[Stream]:
    async with options.open_store(folders=True) as store:
        if re.fullmatch(UUID_PATTERN, text.lower()):
            streams = await store.correlation(options.tenant_id, text.lower())
            if streams:
                return streams
            for stone in await store.tombstones(options.tenant_id, text.lower()):
                raise stone.error
        run_id = await find_run(store, options.tenant_id, text)
        return await store.correlation(
            options.tenant_id, await correlation_of(store, options.tenant_id, run_id)
        )
