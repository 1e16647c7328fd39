"""The part of a store that forgets: whole correlations, once they are archived (§STO-34 to §STO-39)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from runstone.core.tombstone import Resting, Tombstone


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """A correlation that may be archived; its first signal is its place in line."""

    tenant_id: str
    correlation_id: str
    signal_id: str
    ingested_at: datetime
    streams: int
    events: int
    last_at: datetime


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
        """Correlations that have rested for long enough, those first whose first signal came first.

        All their runs have ended and all their effects too, dead letters not among them, and nothing
        was written to any of their streams since. `after` is the last one of the page before.
        """
        ...

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        """Puts these in the place of all streams of one correlation, in one transaction (§STO-37, §STO-39).

        Whether there was anything to remove: false if these very tombstones stand there already.
        `StaleSequence` when a stream is not where its tombstone says, or when the correlation has other
        streams; `CommitRefused` when a run or an effect of it has not ended. Then nothing was removed.

        From then on a commit that would open one of the streams again, or that has a signal's source or
        a run's key of theirs, is a `DuplicateKey`. A stream that comes back whole, with the same
        `last_seq` and `head`, lifts its tombstone in the same commit.
        """
        ...

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        """The tombstone of a stream, of the signal with this channel and source id, or of a run's key."""
        ...

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        """All tombstones of a correlation, by stream id; none while it is there."""
        ...

    def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        """Every tombstone, of one tenant or of all, by stream id."""
        ...
