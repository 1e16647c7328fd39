"""The PostgreSQL store: the port's three parts over a few connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.events import EventDraft
from runstone.core.rows import Row
from runstone.core.signal import Signal
from runstone.core.stream import Stream
from runstone.core.tombstone import Tombstone
from runstone.errors import StoreClosed
from runstone.ports.clock import Clock
from runstone.ports.health import Problem, Vitals
from runstone.ports.store import (
    Claim,
    Committed,
    EffectClaim,
    FeedItem,
    FeedPosition,
    Place,
)
from runstone.ports.troubles import Troubles
from runstone.stores.postgres import (
    checkpoints,
    feed,
    forks,
    health,
    leases,
    maintenance,
    migrations,
    reads,
    retention,
)
from runstone.stores.postgres.appends import Appends
from runstone.stores.postgres.bell import PostgresBell
from runstone.stores.postgres.clock import DatabaseClock
from runstone.stores.postgres.connections import Connection, Opener, Pool, translated
from runstone.stores.postgres.enlisted import Promises, Transaction, ended
from runstone.stores.postgres.faults import DRIVER, Kind, classify, pause, translate
from runstone.stores.postgres.feed import FeedStatus
from runstone.stores.postgres.writer import ATTEMPT_SECONDS, Writer
from runstone.stores.queries import SqlQueries

_T = TypeVar("_T")

_log = logging.getLogger("runstone.postgres")

CONNECTIONS: Final = 6
"""Connections for everything but commits."""

PATIENCE: Final = timedelta(seconds=30)
"""How long the same is tried again while the server cannot be reached."""


_LONG: Final[frozenset[Callable[..., Any]]] = frozenset(
    {
        reads.count_events,
        reads.count_runs,
        reads.effect_groups,
        reads.correlation,
        reads.examine,
        maintenance.problems,
        maintenance.replace_rows,
        maintenance.delete_strays,
        retention.expired,
        retention.forget,
        health.vitals,
        health.problems,
    }
)
"""What may take as long as there is much; anything else that takes longer has lost its way to the server."""

_ANYBODYS: Final[frozenset[Callable[..., Any]]] = frozenset({feed.begin_epoch, ended})
"""What is asked for a transaction of the caller's, and shows no tenant's rows."""


class PostgresStore(SqlQueries):
    """A store in one database. Open it with `PostgresStore.open`, close it with `close`."""

    contract_version = "2.0.0"
    _reads = reads
    _retention = retention

    def __init__(self, opener: Opener, clock: Clock, patience: timedelta) -> None:
        self.where = opener.where
        self.clock = clock
        self.bell = PostgresBell(opener.open)
        """Rings in every process that has started its own; the runtime starts and stops it."""
        self._opener = opener
        self._patience = patience.total_seconds()
        self._pool = Pool(opener.open, CONNECTIONS)
        self._writer = Writer(opener.open, opener.where, clock.now, patience=self._patience)
        self._appends = Appends(self._read, self.commit)
        self._claims = leases.Claims()
        self._promises = Promises(self._read, self.bell)
        self._told = Troubles(_log)
        self._closed = False
        forks.opened(self)

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        clock: Clock | None = None,
        unsafe: Collection[str] = (),
        patience: timedelta = PATIENCE,
        api: bool = False,
    ) -> PostgresStore:
        """Opens a migrated database. A server that would lose what it acknowledges is refused.

        `unsafe` names the settings (`fsync`, `full_page_writes`, `synchronous_commit`) that may be off
        all the same, because nobody will miss the data. Without a clock the server's is followed.
        A user who would not see every tenant is refused; with `api`, one who is in `runstone_api` is not,
        and has a store that answers and writes only within transactions of the caller's.
        """
        opener = Opener(dsn, unsafe, api)
        clock = clock or DatabaseClock()
        store = cls(opener, clock, patience)
        try:
            async with translated(opener.where), store._pool.lent() as connection:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await migrations.check(connection)
                    if isinstance(clock, DatabaseClock):
                        await clock.ask(connection)
        except BaseException:
            await store.close()
            raise
        return store

    async def __aenter__(self) -> PostgresStore:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._promises.stop()
        await self.bell.stop()
        await self._writer.close()
        await self._pool.close()
        forks.closed(self)

    def check_sees_all(self) -> None:
        """Refuses to work for who sees no more than the tenant of a transaction (§TEN-28)."""
        self._opener.check_sees_all()

    def forsake(self) -> None:
        self._closed = True
        self._writer.forsake()

    # EventLog

    async def append(self, draft: EventDraft) -> AppendResult:
        return await self._appends.append(draft)

    # Host

    def commit(self, commit: Commit) -> Awaitable[Committed]:
        self.check_sees_all()
        return self._writer.commit(commit)

    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        return await self._read(reads.load_many, places)

    async def claim(
        self, worker_id: str, *, handlers: Sequence[str], code_rank: str, limit: int, lease: timedelta
    ) -> Sequence[Claim]:
        now = self.clock.now()
        return await self._change(self._claims.claim, worker_id, handlers, code_rank, limit, now, now + lease)

    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        until = self.clock.now() + lease
        if not isinstance(self.clock, DatabaseClock):
            owned, _ = await self._read(leases.heartbeat, worker_id, until)
        else:
            before = self.clock.read()
            owned, now = await self._read(leases.heartbeat, worker_id, until)
            self.clock.compare(before, now, self.clock.read())
        return owned

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        return await self._change(leases.release, worker_id, run_ids)

    async def claim_effects(
        self,
        worker_id: str,
        *,
        types: Sequence[str],
        limit: int,
        lease: timedelta,
        per_tenant: int | None = None,
        holding: Mapping[str, int] | None = None,
    ) -> Sequence[EffectClaim]:
        now = self.clock.now()
        asked = (worker_id, types, limit, now, now + lease, per_tenant, holding or {})
        return await self._change(leases.claim_effects, *asked)

    async def extend_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, lease: timedelta
    ) -> Sequence[EffectClaim]:
        until = self.clock.now() + lease
        return await self._read(leases.extend_effects, worker_id, effect_ids, until)

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        return await self._change(leases.release_effects, worker_id, effect_ids, until)

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        return await self._change(leases.release_stray_effects, worker_id, keeping, since)

    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        return await self._read(feed.page, after, limit)

    async def feed_status(self) -> FeedStatus:
        """How far the feed is, and which process holds it up (§ORD-29)."""
        return await self._read(feed.status)

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        await self._read(checkpoints.put, checkpoint)

    async def checkpoints(self, tenant_id: str, run_id: str) -> Sequence[Checkpoint]:
        return await self._read(checkpoints.good, tenant_id, run_id, self.clock.now())

    async def delete_checkpoints(self, *, run_id: str | None = None) -> int:
        return await self._change(checkpoints.delete, run_id, self.clock.now())

    # Maintenance

    async def self_check(self) -> Sequence[str]:
        return await self._read(maintenance.problems)

    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        await self._change(maintenance.replace_rows, tenant_id, stream_id, last_seq, rows)

    async def delete_strays(self) -> int:
        return await self._change(maintenance.delete_strays)

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        """Asked twice, it finds its own tombstones: a lost answer is no doubt."""
        return await self._read(retention.forget, tombstones)

    async def vitals(self) -> Vitals:
        return await self._read(health.vitals, self.clock.now())

    async def symptoms(self) -> Sequence[Problem]:
        return await self._read(health.problems)

    # In a transaction of the caller's

    def within(self, connection: Connection) -> PostgresStore:
        """The same store in the transaction that this connection has open, in the same database (§STO-55)."""
        return _EnlistedStore(self, Transaction(connection, self.where, self._promises.promise))

    # Connections

    async def _read(self, query: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:  # type: ignore[override]
        """Asks what can be asked twice, until there is an answer or patience is at an end."""
        return await self._ask(query, arguments, twice=True)

    async def _change(self, query: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Makes a change that must not be made twice: when its answer is lost, `OutcomeUnknown`."""
        return await self._ask(query, arguments, twice=False)

    async def _ask(self, query: Callable[..., Awaitable[_T]], arguments: Sequence[Any], *, twice: bool) -> _T:
        if query not in _ANYBODYS:
            self.check_sees_all()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        attempt = 0
        while True:
            attempt += 1
            if self._closed:
                raise StoreClosed
            sent = False
            try:
                async with self._pool.lent() as connection:
                    sent = True
                    async with asyncio.timeout(None if query in _LONG else ATTEMPT_SECONDS):
                        return await query(connection, *arguments)
            except DRIVER as error:
                kind = classify(error)
                blocked = kind in (Kind.AGAIN, Kind.BLOCKED)
                again = blocked or (kind is Kind.OUTAGE and (twice or not sent))
                refused = translate(error, self.where, written=sent and not twice)
                if not again or loop.time() >= deadline:
                    raise refused from error
                if not blocked:
                    self._told.warn(f"asks again for up to {self._patience:g} s: {refused}")
            await asyncio.sleep(pause(attempt, kind))


class _EnlistedStore(PostgresStore):
    """A store all of whose questions and commits go into one transaction, which somebody else ends."""

    def __init__(self, store: PostgresStore, transaction: Transaction) -> None:
        self.where, self.clock, self.bell = store.where, store.clock, store.bell
        self._store = store
        self._transaction = transaction
        self._appends = Appends(self._read, self.commit)
        self._claims = leases.Claims()

    async def commit(self, commit: Commit) -> Committed:
        """Behind the feed's epoch, which after a failover nobody may have begun yet; to begin it in a
        transaction that stays open would hold up every other writer."""
        await self._store._change(feed.begin_epoch)
        return await self._transaction.commit(commit, self.clock.now())

    async def find_signal(self, tenant_id: str, source_channel: str, source_id: str) -> Signal | None:
        found = await super().find_signal(tenant_id, source_channel, source_id)
        if found is None:
            await self._transaction.check_sees_all()
        return found

    async def close(self) -> None:
        """The connection is its opener's."""

    async def _ask(self, query: Callable[..., Awaitable[_T]], arguments: Sequence[Any], *, twice: bool) -> _T:
        return await self._transaction.ask(query, arguments)
