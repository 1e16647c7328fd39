"""The part of a store that forgets: whole correlations, once they are archived (§STO-34 to §STO-39)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from runstone.core.tombstone import Resting, Tombstone


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """A correlation that may be archived; how it began is its place in line."""

    tenant_id: str
    correlation_id: str
    first_id: str
    """Its first signal, or the schedule that it is."""
    began_at: datetime
    """When that signal was taken in, or the schedule made."""
    streams: int
    events: int
    last_at: datetime


def oldest(found: Iterable[Expired], limit: int) -> list[Expired]:
    """The first of them in line."""
    return sorted(found, key=lambda one: (one.began_at, one.first_id))[:limit]


class Retention(Protocol):
    """Removes what was archived, and remembers that it was there. Only for maintenance."""

    async def expired(
        self,
        resting: Resting,
        *,
        tenant_id: str | None = None,
        after: Expired | None = None,
        limit: int = 100,
    ) -> Sequence[Expired]:
        """Correlations that have rested for long enough, those first that began first.

        All their runs have ended and all their effects too, dead letters not among them, and nothing
        was written to any of their streams since. So have schedules that are done or were cancelled; an
        entity never does (§STO-56). `after` is the last one of the page before.
        """
        ...

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        """Puts these in the place of all streams of one correlation, in one transaction (§STO-37, §STO-39).

        Whether there was anything to remove: false if these very tombstones stand there already.
        `StaleSequence` when a stream is not where its tombstone says, or when the correlation has other
        streams; `CommitRefused` when a run, an effect or a schedule of it has not ended, or when it is an
        entity. Then nothing was removed.

        From then on a commit that would open one of the streams again, or that has a signal's source or
        a run's key of theirs, is a `DuplicateKey`. A stream that comes back whole, with the same
        `last_seq` and `head`, lifts its tombstone in the same commit.
        """
        ...

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        """All tombstones of a correlation, by stream id; none while it is there."""
        ...

    def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        """Every tombstone, of one tenant or of all, by stream id."""
        ...
