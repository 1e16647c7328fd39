"""Makes derived rows again from the log, after a loss or for a new version of the fold (§STO-40).

Rows are only as good as the log, so a stream whose log does not add up keeps the rows it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from runstone.audit.verify import correlation_of
from runstone.core.rows import all_rows
from runstone.core.stream import Stream
from runstone.core.verify import verify_events
from runstone.errors import RunstoneError, StaleSequence
from runstone.ports.store import Store

_ATTEMPTS: Final = 20
"""How often a stream is read again when others write to it meanwhile."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one stream's rows."""

    stream_id: str
    events: int = 0
    rows: int = 0
    problem: str | None = None
    """Why they were left as they are, if they were."""


async def rebuild_run(store: Store, tenant_id: str, run_id: str) -> AsyncIterator[Rebuilt]:
    """Makes the rows of a run and of everything of its correlation again."""
    correlation_id = await correlation_of(store, tenant_id, run_id)
    async for rebuilt in _rebuild_correlation(store, tenant_id, correlation_id):
        yield rebuilt


async def rebuild_all(store: Store, tenant_id: str | None = None) -> AsyncIterator[Rebuilt]:
    """Makes all rows again, of one tenant or of all; rows that the log knows nothing of go first."""
    await store.delete_strays()
    async for owner_id, correlation_id in store.correlations(tenant_id):
        async for rebuilt in _rebuild_correlation(store, owner_id, correlation_id):
            yield rebuilt


async def _rebuild_correlation(store: Store, tenant_id: str, correlation_id: str) -> AsyncIterator[Rebuilt]:
    for head in await store.heads(tenant_id, correlation_id):
        yield await _rebuild_stream(store, tenant_id, head.stream_id)


async def _rebuild_stream(store: Store, tenant_id: str, stream_id: str) -> Rebuilt:
    for _ in range(_ATTEMPTS):
        try:
            stream = await store.load(tenant_id, stream_id)
            if stream is None:  # it was archived a moment ago
                return Rebuilt(stream_id=stream_id)
            return await _replace_rows(store, stream)
        except StaleSequence:
            continue
        except RunstoneError as error:
            return Rebuilt(stream_id=stream_id, problem=str(error))
    return Rebuilt(stream_id=stream_id, problem="Others write to it without a pause: try again later")


async def _replace_rows(store: Store, stream: Stream) -> Rebuilt:
    head = stream.head
    findings = verify_events(stream)
    if findings:
        return Rebuilt(
            stream_id=head.stream_id,
            events=len(stream.events),
            problem=f"Its log is damaged, so its rows were left as they are: {findings[0]}",
        )
    rows = all_rows(stream.fold())
    await store.replace_rows(head.tenant_id, head.stream_id, head.last_seq, rows)
    return Rebuilt(stream_id=head.stream_id, events=len(stream.events), rows=len(rows))
