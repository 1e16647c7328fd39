"""The SQLite store: the port's three parts over one writer and a few readers."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from runstone.core.append import append_write, empty_state, repeated
from runstone.core.checkpoint import Checkpoint
from runstone.core.commit import Commit
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.events import EventDraft
from runstone.core.rows import Row
from runstone.core.state import StreamState
from runstone.core.stream import Stream
from runstone.core.tombstone import Tombstone
from runstone.errors import DuplicateKey, StoreClosed, StoreCorrupt, StoreError
from runstone.ports.clock import Clock, SystemClock
from runstone.ports.health import Problem, Vitals
from runstone.ports.store import (
    Claim,
    Committed,
    EffectClaim,
    FeedItem,
    FeedPosition,
    Place,
)
from runstone.stores.queries import SqlQueries
from runstone.stores.sql import statements
from runstone.stores.sqlite import commits, forks, health, leases, maintenance, reads, retention
from runstone.stores.sqlite.commits import Packed
from runstone.stores.sqlite.faults import translated
from runstone.stores.sqlite.files import is_memory, open_reader, open_writer
from runstone.stores.sqlite.rows import CHECKPOINTS, to_micros
from runstone.stores.sqlite.turnstile import Turnstile
from runstone.stores.sqlite.writer import Writer

_T = TypeVar("_T")
_SQL: Final = statements("sqlite")
_LOG: Final = logging.getLogger("runstone.sqlite")

READERS: Final = 4
STATES_KEPT: Final = 256


class SqliteStore(SqlQueries):
    """A store in one file. Open it with `SqliteStore.open`, close it with `close`."""

    contract_version = "2.0.0"
    _reads = reads
    _retention = retention

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        turnstile: Turnstile | None,
        clock: Clock,
        *,
        inline: bool,
    ) -> None:
        self.path = path
        self._clock = clock
        self._connection = connection
        self._turnstile = turnstile
        self._writer = Writer(connection, path, clock, turnstile or nullcontext, inline=inline)
        self._readers = None if inline else ThreadPoolExecutor(READERS, "runstone-sqlite-reader")
        self._reading = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._states: OrderedDict[str, StreamState] = OrderedDict()
        self._closed = False
        if not is_memory(path):
            forks.opened(self, path)

    @classmethod
    async def open(cls, path: str | Path, *, clock: Clock | None = None, inline: bool = False) -> SqliteStore:
        """Opens a file, making or migrating it if need be; `:memory:` and simulation run inline."""
        inline = inline or is_memory(path)
        turnstile = None if is_memory(path) else Turnstile(Path(path))
        forks.refuse_inherited(str(path))
        try:
            if inline:
                connection = open_writer(str(path), turnstile or nullcontext)
            else:
                connection = await asyncio.to_thread(open_writer, str(path), turnstile or nullcontext)
        except BaseException:
            if turnstile is not None:
                turnstile.close()
            raise
        return cls(str(path), connection, turnstile, clock or SystemClock(), inline=inline)

    async def __aenter__(self) -> SqliteStore:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._readers is not None:
            readers = self._readers
            await asyncio.get_running_loop().run_in_executor(None, readers.shutdown)
        for connection in self._opened:
            connection.close()
        await self._writer.close()
        forks.closed(self)
        if self._turnstile is not None:
            self._turnstile.close()

    def forsake(self) -> None:
        self._closed = True
        self._writer.forsake()
        if self._turnstile is not None:
            self._turnstile.close()

    # EventLog

    async def append(self, draft: EventDraft) -> AppendResult:
        return await self._writer.execute(lambda connection: self._append(connection, draft))

    def _append(self, connection: sqlite3.Connection, draft: EventDraft) -> AppendResult:
        """In the writer's own transaction, so nobody can come in between."""
        place = {"stream_id": draft.stream_id, "idempotency_key": draft.idempotency_key}
        found = connection.execute(_SQL["event_by_key"], place).fetchone()
        head = reads.head(connection, draft.tenant_id, draft.stream_id)
        if found is not None:
            if head is None:
                raise DuplicateKey(f"stream {draft.stream_id}")
            return repeated(draft, *found)
        state = self._state(connection, draft)
        write, after = append_write(state, draft, head.fence if head else 0)
        (outcome,) = commits.apply(
            connection, [Packed(Commit((write,), write.events))], to_micros(self._clock.now()), self.path
        )
        if isinstance(outcome, StoreError):
            raise outcome
        self._remember(after)
        return AppendResult(run_seq=write.last_seq, idempotent=False, persisted=True)

    def _state(self, connection: sqlite3.Connection, draft: EventDraft) -> StreamState:
        """The stream's state: as remembered, if that is still its head, else folded from the log."""
        head = reads.head(connection, draft.tenant_id, draft.stream_id)
        if head is None:
            return empty_state(draft)
        known = self._states.get(draft.stream_id)
        if known is not None and known.head == head.head:
            return known
        stream = reads.load(connection, draft.tenant_id, draft.stream_id, 0)
        assert stream is not None, "its head was there a moment ago, in the same transaction"
        return stream.fold()

    def _remember(self, state: StreamState) -> None:
        self._states[state.stream_id] = state
        self._states.move_to_end(state.stream_id)
        if len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)

    # Host

    def commit(self, commit: Commit) -> Awaitable[Committed]:
        return self._writer.commit(commit)

    async def load_many(self, places: Sequence[Place]) -> Sequence[Stream | None]:
        found = await self._read(reads.find_many, places)
        streams = None if found is None else reads.streams_of(found, places)
        return await self._read(reads.load_each, places) if streams is None else streams

    async def claim(
        self, worker_id: str, *, handlers: Sequence[str], code_rank: str, limit: int, lease: timedelta
    ) -> Sequence[Claim]:
        now = self._clock.now()
        micros, until = to_micros(now), to_micros(now + lease)
        return await self._writer.execute(
            lambda connection: leases.claim(connection, worker_id, handlers, code_rank, limit, micros, until)
        )

    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        until = to_micros(self._clock.now() + lease)
        return await self._writer.execute(lambda connection: leases.heartbeat(connection, worker_id, until))

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        return await self._writer.execute(lambda connection: leases.release(connection, worker_id, run_ids))

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
        now = self._clock.now()
        micros, until = to_micros(now), to_micros(now + lease)
        own = await self._writer.execute(
            lambda connection: leases.claim_effects(
                connection, worker_id, types, limit, micros, until, per_tenant, holding or {}
            )
        )
        return await self._held(worker_id, own)

    async def extend_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, lease: timedelta
    ) -> Sequence[EffectClaim]:
        until = to_micros(self._clock.now() + lease)
        own = await self._writer.execute(
            lambda connection: leases.extend_effects(connection, worker_id, effect_ids, until)
        )
        return await self._held(worker_id, own)

    async def _held(self, worker_id: str, effect_ids: Sequence[str]) -> list[EffectClaim]:
        """Not in the transaction that took them: others wait for its end."""
        if not effect_ids:
            return []
        try:
            return reads.claims_of(await self._read(reads.find_held, worker_id, effect_ids))
        except StoreCorrupt:
            if readable := await self._held_one_by_one(worker_id, effect_ids):
                return readable
            raise

    async def _held_one_by_one(self, worker_id: str, effect_ids: Sequence[str]) -> list[EffectClaim]:
        """Those that are whole: what is damaged holds up no other, and stays leased for now (§OUT-79)."""
        whole: list[EffectClaim] = []
        for effect_id in effect_ids:
            try:
                whole += reads.claims_of(await self._read(reads.find_held, worker_id, [effect_id]))
            except StoreCorrupt as error:
                _LOG.error("Effect %s cannot be read, and is not sent: %s", effect_id, error)
        return sorted(whole, key=reads.due)

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        held_until = 0 if until is None else to_micros(until)
        return await self._writer.execute(
            lambda connection: leases.release_effects(connection, worker_id, effect_ids, held_until)
        )

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        beyond = to_micros(since)
        return await self._writer.execute(
            lambda connection: leases.release_stray_effects(connection, worker_id, keeping, beyond)
        )

    async def feed(
        self, after: FeedPosition | None = None, *, limit: int = FETCH_LIMIT
    ) -> Sequence[FeedItem]:
        return await self._read(reads.feed, after or FeedPosition(), limit)

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        values = CHECKPOINTS.pack(checkpoint)

        def put(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM run_checkpoints WHERE run_id = ? AND checkpoint_index = ?",
                (checkpoint.run_id, checkpoint.checkpoint_index),
            )
            commits.execute(connection, CHECKPOINTS.insert, [values])

        await self._writer.execute(put)

    async def checkpoints(self, tenant_id: str, run_id: str) -> Sequence[Checkpoint]:
        return await self._read(reads.checkpoints, tenant_id, run_id, to_micros(self._clock.now()))

    async def delete_checkpoints(self, *, run_id: str | None = None) -> int:
        which = {"run_id": run_id, "now": to_micros(self._clock.now())}
        return await self._writer.execute(
            lambda connection: connection.execute(_SQL["delete_checkpoints"], which).rowcount
        )

    # Maintenance

    async def self_check(self) -> Sequence[str]:
        return await self._read(maintenance.problems)

    async def replace_rows(self, tenant_id: str, stream_id: str, last_seq: int, rows: Sequence[Row]) -> None:
        await self._writer.execute(
            lambda connection: maintenance.replace_rows(connection, tenant_id, stream_id, last_seq, rows)
        )

    async def delete_strays(self) -> int:
        return await self._writer.execute(maintenance.delete_strays)

    async def forget(self, tombstones: Sequence[Tombstone]) -> bool:
        return await self._writer.execute(lambda connection: retention.forget(connection, tombstones))

    async def vitals(self) -> Vitals:
        return await self._read(health.vitals, self._clock.now())

    async def symptoms(self) -> Sequence[Problem]:
        return [*health.file_problems(self.path), *await self._read(health.schema)]

    # Connections

    async def _read(self, query: Callable[..., _T], *arguments: Any) -> _T:  # type: ignore[override]
        """Runs a query on a reader's connection."""
        if self._closed:
            raise StoreClosed
        if self._readers is None:
            with translated(self.path):
                return query(self._connection, *arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read_in_thread, query, arguments)

    def _read_in_thread(self, query: Callable[..., _T], arguments: tuple[Any, ...]) -> _T:
        with translated(self.path):
            connection = getattr(self._reading, "connection", None)
            if connection is None:
                connection = self._reading.connection = open_reader(self.path)
                self._opened.append(connection)
            return query(connection, *arguments)
