"""The feed: everything in the order of commit, however late a transaction ends (§ORD-25 to §ORD-29).

A transaction's id is given when it first writes, and it may commit long after a higher one. What is
below the oldest id still under way is settled; the feed goes no further, so it may wait and never
skips. Ids mean something in one cluster and on one timeline: elsewhere another epoch begins.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

import msgspec

from runstone.errors import FeedEpochChanged
from runstone.ports.store import FeedItem, FeedPosition
from runstone.stores.postgres.connections import Connection
from runstone.stores.postgres.rows import EVENTS
from runstone.stores.sql import statements

_SQL: Final = {
    name: statement.replace("{event_selected}", EVENTS.selected)
    for name, statement in statements("postgres").items()
}

PATIENCE: Final = 0.25
"""How many seconds a page may wait for transactions that are about to end."""

_PAUSE: Final = 0.002
_HIDDEN: Final = "<insufficient privilege>"
"""What the server shows of somebody else's process."""


class FeedHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest transaction that the feed waits for; what the server does not let us see is empty."""

    pid: int | None
    application: str | None
    state: str | None
    query: str | None
    since: datetime | None

    @property
    def doing(self) -> str:
        if self.state is None and self.query is None:
            return "grant pg_read_all_stats to see whose it is"
        return f"{self.state}: {self.query}"


class FeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the feed is, and who holds it up: FEED_STALLED when somebody does for too long."""

    epoch: int
    held_events: int
    """Committed events that the feed cannot show yet."""
    held_since: datetime | None
    """When the first of them was persisted."""
    holder: FeedHolder | None

    def alert(self, now: datetime, after_seconds: float = 10.0) -> str | None:
        """The alert of §ORD-29, once events have waited for so long."""
        if self.held_since is None or (now - self.held_since).total_seconds() < after_seconds:
            return None
        who = f"process {self.holder.pid}" if self.holder and self.holder.pid else "a prepared transaction"
        doing = f" ({self.holder.doing})" if self.holder and self.holder.pid else ""
        return (
            f"FEED_STALLED: {self.held_events} events wait since {self.held_since:%H:%M:%S} for {who}{doing}"
        )


class _Epoch(msgspec.Struct, frozen=True):
    number: int
    first: int
    last: int | None
    """The first and last sequence number of its events; none while it goes on."""
    next_transaction: int
    """The transaction that this server has not begun yet."""

    def gave(self, position: FeedPosition) -> bool:
        """A position ahead of all transactions is of a server whose disk was put back since."""
        ahead = self.last is None and position.transaction >= self.next_transaction
        return position.epoch == self.number and not ahead


async def page(connection: Connection, after: FeedPosition | None, limit: int) -> list[FeedItem]:
    """Events after a position, of its epoch and then of those that followed."""
    epochs = await _epochs(connection)
    start = after or FeedPosition(epoch=epochs[0].number)
    if start.epoch == 0:  # the beginning, whatever it is called here
        start = FeedPosition(epoch=epochs[0].number)
    if not any(epoch.gave(start) for epoch in epochs):
        raise FeedEpochChanged(start.epoch, _place_both_know(epochs, start))
    items: list[FeedItem] = []
    for epoch in epochs:
        if epoch.number < start.epoch or len(items) >= limit:
            continue
        place = start if epoch.number == start.epoch else FeedPosition(epoch=epoch.number)
        items += await _of_epoch(connection, epoch, place, limit - len(items))
    return items


async def begin_epoch(connection: Connection) -> None:
    """Begins an epoch if this is another cluster, or another timeline, than the last one's."""
    await connection.execute(_SQL["epoch"])


async def _epochs(connection: Connection) -> list[_Epoch]:
    rows = await connection.fetch(_SQL["epochs"])
    return [_Epoch(*row) for row in rows]


def _place_both_know(epochs: list[_Epoch], start: FeedPosition) -> FeedPosition:
    """The beginning of the last epoch from before the histories parted."""
    before = [epoch.number for epoch in epochs if epoch.number <= start.epoch]
    return FeedPosition(epoch=before[-1] if before else epochs[0].number)


async def _of_epoch(connection: Connection, epoch: _Epoch, after: FeedPosition, limit: int) -> list[FeedItem]:
    if epoch.last is not None:
        asked = (str(after.transaction), after.sequence, epoch.first, epoch.last, limit)
        return _items(epoch, await connection.fetch(_SQL["feed_of_past_epoch"], *asked))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        rows = await connection.fetch(
            _SQL["feed"], str(after.transaction), after.sequence, epoch.first, limit
        )
        # Most writers need a moment and no more: who asks for all there is need not come back for the rest.
        if len(rows) >= limit or loop.time() >= deadline or not await _is_held(connection):
            return _items(epoch, rows)
        await asyncio.sleep(_PAUSE)


async def _is_held(connection: Connection) -> bool:
    held: bool = await connection.fetchval(_SQL["feed_is_held"])
    return held


def _items(epoch: _Epoch, rows: list[Any]) -> list[FeedItem]:
    items = []
    for row in rows:
        transaction, *values = row
        event = EVENTS.unpack(values)
        place = FeedPosition(epoch.number, transaction, event.sequence_number or 0)
        items.append(FeedItem(position=place, event=event))
    return items


async def status(connection: Connection) -> FeedStatus:
    """How far the feed is, and who holds it up."""
    row = await connection.fetchrow(_SQL["feed_status"])
    assert row is not None
    holder = None
    if row["held_events"]:
        holder = FeedHolder(
            pid=row["pid"],
            application=row["application_name"],
            state=row["state"],
            query=None if row["query"] == _HIDDEN else row["query"],
            since=row["xact_start"],
        )
    return FeedStatus(
        epoch=row["epoch"], held_events=row["held_events"], held_since=row["held_since"], holder=holder
    )
