"""The outbox on PostgreSQL, and its bare limit: the same entries claimed and finished by asyncpg alone.

The bare side begins with a copy of the database in which every effect has been asked for. It claims as
often and as many as the dispatcher did, then sends the dispatcher's commits in as many statements as the
store took, over as many connections, all of it bound beforehand. Both databases have to hold the same
rows then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

import asyncpg

from benchmarks.bare_sqlite import Unequal
from benchmarks.effects import WORKER
from benchmarks.measure import undisturbed
from runstone.core.commit import Commit
from runstone.ports.clock import SystemClock
from runstone.ports.store import Committed, EffectClaim
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.commits import Batch
from runstone.stores.postgres.connections import Opener
from runstone.stores.postgres.migrations import migrate
from runstone.stores.postgres.writer import IN_FLIGHT
from runstone.stores.sql import statements
from tests.servers.postgres import Server

_CLAIM: Final = statements("postgres")["claim_effects"]
_EXCEPT: Final = ("persisted_at", "sequence_number", "held_until", "transaction_id")
"""Columns that two writers of the same rows need not agree on."""
_WRITTEN: Final = (
    "SELECT id::text, persisted_at FROM runstone.orchestration_events "
    "WHERE id = ANY($1::uuid[]) ORDER BY sequence_number"
)
_COLUMNS: Final = (
    "SELECT table_name::text, column_name::text FROM information_schema.columns "
    "JOIN information_schema.tables USING (table_schema, table_name) "
    "WHERE table_schema = 'runstone' AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position"
)


class OutboxStore(PostgresStore):
    """The store, which also keeps every commit, and how many effects each claim brought."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commits: list[Commit] = []
        self.claims: list[int] = []

    async def commit(self, commit: Commit) -> Committed:
        self.commits.append(commit)
        return await super().commit(commit)

    async def claim_effects(self, *arguments: Any, **options: Any) -> list[EffectClaim]:
        claimed = list(await super().claim_effects(*arguments, **options))
        self.claims += [len(claimed)] if claimed else []
        return claimed


async def opened(url: str) -> OutboxStore:
    store = await OutboxStore.open(url)
    assert isinstance(store, OutboxStore)
    return store


class PostgresGround:
    """Where a round takes place: a database, and a copy of it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._names = ("bench_store", "bench_bare")
        self.clear()
        self._url = server.create(self._names[0])
        self._bare = server.url(self._names[1])
        asyncio.run(_migrated(self._url))

    @property
    def place(self) -> str:
        return self._url

    async def open(self) -> OutboxStore:
        return await opened(self._url)

    def copy(self) -> None:
        """Keeps what is there now for the bare side."""
        self._server.create(self._names[1], template=self._names[0])

    def finish_again(
        self, commits: Sequence[Commit], claims: Sequence[int], effect_type: str, writers: int
    ) -> float:
        """Seconds to claim and finish in the copy what the store holds; `Unequal` if it does not then."""
        return asyncio.run(self._finish_again(commits, claims, effect_type, writers * IN_FLIGHT))

    async def _finish_again(
        self, commits: Sequence[Commit], claims: Sequence[int], effect_type: str, in_flight: int
    ) -> float:
        opener = Opener(self._bare, ())
        ordered, count = await _written(self._url, commits)
        now = SystemClock().now()
        lanes = [_batches(ordered, lane, in_flight, count) for lane in range(in_flight)]
        bound = [[Batch(batch, now) for batch in lane] for lane in lanes]
        connections = [await opener.open() for _ in lanes]
        until = now + timedelta(seconds=30)
        try:
            with undisturbed():
                began = perf_counter()
                for limit in claims:
                    asked: tuple[Any, ...] = (WORKER, until, now, [effect_type], limit, None, [], [])
                    await connections[0].fetch(_CLAIM, *asked)
                await asyncio.gather(*map(_send, connections, bound))
                seconds = perf_counter() - began
        finally:
            for connection in connections:
                await connection.close()
        await _compare(self._url, self._bare)
        return seconds

    def clear(self) -> None:
        for name in self._names:
            self._server.drop(name)


async def _send(connection: Any, batches: Sequence[Batch]) -> None:
    for batch in batches:
        await connection.fetch(batch.statement, *batch.arguments)


def _batches(commits: Sequence[Commit], lane: int, lanes: int, count: int) -> list[list[Commit]]:
    """The commits of one lane in batches: runs keep to their lane, and a run is in a batch once."""
    most = max(1, round(len(commits) / count))
    batches: list[list[Commit]] = [[]]
    streams: set[str] = set()
    for commit in commits:
        own = {write.stream_id for write in commit.writes}
        if int(commit.events[0].correlation_id[-4:], 16) % lanes != lane:
            continue
        if streams & own or len(batches[-1]) >= most:
            batches.append([])
            streams = set()
        batches[-1].append(commit)
        streams |= own
    return [batch for batch in batches if batch]


async def _migrated(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _written(url: str, commits: Sequence[Commit]) -> tuple[list[Commit], int]:
    """The commits as the store wrote them, and in how many statements: each has a time of its own."""
    by_first_event = {commit.events[0].id: commit for commit in commits}
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetch(_WRITTEN, list(by_first_event))
    finally:
        await connection.close()
    return [by_first_event[row[0]] for row in found], len({row[1] for row in found})


async def _compare(store: str, bare: str) -> None:
    ours, theirs = await _contents(store), await _contents(bare)
    for table in ours.keys() | theirs.keys():
        if ours.get(table) != theirs.get(table):
            raise Unequal(f"{table}: {ours.get(table)} by the store, {theirs.get(table)} by the bare writer")


async def _contents(url: str) -> dict[str, tuple[int, str]]:
    """For each table, how many rows, and a digest of them all."""
    connection = await asyncpg.connect(url)
    try:
        columns: dict[str, list[str]] = {}
        for table, column in await connection.fetch(_COLUMNS):
            columns.setdefault(table, []).extend([] if column in _EXCEPT else [column])
        found: dict[str, tuple[int, str]] = {}
        for table, names in columns.items():
            rows = f"SELECT md5(r::text) AS m FROM (SELECT {', '.join(names)} FROM runstone.{table}) AS r"
            query = (
                f"SELECT count(*), md5(coalesce(string_agg(m, '' ORDER BY m), '')) FROM ({rows}) AS all_rows"
            )
            (row,) = await connection.fetch(query)
            found[table] = (row[0], row[1])
        return found
    finally:
        await connection.close()
