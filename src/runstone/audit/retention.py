"""Retention: old correlations go to the archive, and then out of the store (§STO-34 to §STO-39).

For each correlation: read it, look whether it may go, write its bundle, read that back, and only then let the
store put tombstones in its place, in one transaction that compares every head with the bundle's. Whoever is
killed anywhere in between has lost nothing: the next one finds the correlation as it was, writes the same
bundle under the same name, and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from runstone.audit.archive import Archive
from runstone.core.tombstone import Resting, Tombstone, bury, objection
from runstone.errors import BundleInvalid, CommitRefused, OutcomeUnknown, StoreCorrupt, UnreadableEvent
from runstone.ports.retention import Expired
from runstone.ports.store import Store

RUNS_KEPT: Final = timedelta(days=90)
"""How long a correlation with runs is kept after the last thing that happened in it, by default."""

SIGNALS_KEPT: Final = timedelta(days=30)
"""The same for signals without a run."""

PAGE: Final = 100
TOGETHER: Final = 4
"""How many correlations are under way at once: their files and commits wait for the disk together."""

_ATTEMPTS: Final = 3


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one correlation."""

    tenant_id: str
    correlation_id: str
    events: int
    removed: bool = False
    bundle: str | None = None
    problem: str | None = None
    """Why it was left as it is, if it was."""


def rest(now: datetime, runs: timedelta = RUNS_KEPT, signals: timedelta = SIGNALS_KEPT) -> Resting:
    """Since when something must have rested now."""
    return Resting(ended_before=now - runs, received_before=now - signals)


async def find_expired(
    store: Store, resting: Resting, tenant_id: str | None = None, limit: int | None = None
) -> AsyncIterator[Expired]:
    """Every correlation that may go, the oldest first; those that a page leaves in the store come once."""
    last: Expired | None = None
    found = 0
    while limit is None or found < limit:
        most = PAGE if limit is None else min(PAGE, limit - found)
        page = await store.expired(resting, tenant_id=tenant_id, after=last, limit=most)
        for one in page:
            yield one
        found += len(page)
        if len(page) < most:
            return
        last = page[-1]


async def retain(
    store: Store,
    archive: Archive,
    resting: Resting,
    *,
    now: datetime,
    tenant_id: str | None = None,
    limit: int | None = None,
) -> AsyncIterator[Retained]:
    """Archives and removes what may go; a correlation that cannot be archived stays, and is told of."""
    await store.delete_checkpoints()
    waiting: list[Expired] = []
    async for one in find_expired(store, resting, tenant_id, limit):
        waiting.append(one)
        if len(waiting) == TOGETHER:
            for retained in await _retain_together(store, archive, resting, now, waiting):
                yield retained
            waiting = []
    for retained in await _retain_together(store, archive, resting, now, waiting):
        yield retained


async def _retain_together(
    store: Store, archive: Archive, resting: Resting, now: datetime, waiting: list[Expired]
) -> list[Retained]:
    """All are waited for, also when one fails: nobody goes on behind a store that is closed."""
    work = (_retain(store, archive, resting, now, one) for one in waiting)
    done = await asyncio.gather(*work, return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in done if isinstance(outcome, Retained)]


async def _retain(store: Store, archive: Archive, resting: Resting, now: datetime, one: Expired) -> Retained:
    left = Retained(tenant_id=one.tenant_id, correlation_id=one.correlation_id, events=one.events)
    try:
        streams = await store.correlation(one.tenant_id, one.correlation_id)
        if not streams or objection(streams, resting) is not None:
            return left  # another was faster, or something has happened in it since it was found
        kept = await asyncio.to_thread(archive.keep, streams)
    except (BundleInvalid, UnreadableEvent, StoreCorrupt) as error:
        problem = f"It cannot be archived, see `runstone verify`: {error}"
        return msgspec.structs.replace(left, problem=problem)
    stones = bury(streams, archive=kept.archive, bundle=kept.name, bundle_sha256=kept.sha256, now=now)
    try:
        removed = await _forget(store, stones)
    except CommitRefused:
        return left  # it has moved on: the bundle is of no use, and does no harm
    return msgspec.structs.replace(left, removed=removed, bundle=kept.name)


async def _forget(store: Store, stones: Sequence[Tombstone]) -> bool:
    """Removes it; asks again when nobody knows whether that was done, which is harmless."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return await store.forget(stones) or attempt > 0
        except OutcomeUnknown:
            continue
    await store.forget(stones)
    return True
