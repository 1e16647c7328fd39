"""Retention on a server: what guards it in the database, and what happens between processes (§STO-39)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from runstone.core import commands
from runstone.errors import CommitRefused, DuplicateKey, StaleSequence
from runstone.stores.postgres import PostgresStore, retention
from runstone.testing.conformance.retention import ended, everything_of, forgotten, stones_of
from runstone.testing.conformance.scene import Scene
from tests.integration.stores.postgres.filled import Connection, fill


@pytest_asyncio.fixture
async def scene(postgres_engine_url: str) -> AsyncIterator[Scene]:
    """What an engine sees."""

    async def open_store(_: object) -> PostgresStore:
        return await PostgresStore.open(postgres_engine_url)

    scene = Scene(open_store, await open_store(None))
    yield scene
    await scene.store.close()


@pytest_asyncio.fixture
async def engine(postgres_engine_url: str) -> AsyncIterator[Connection]:
    """A connection with no more rights than that."""
    engine = await asyncpg.connect(postgres_engine_url)
    yield engine
    await engine.close()


async def waits(connection: Connection) -> None:
    """Until somebody waits for a lock. (What a transaction sees of others' activity stays as it was.)"""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(60):
        while not await connection.fetchval(waiting):  # noqa: ASYNC110  (only the server knows)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runstone.tombstones SET bundle = 'other'",
        "INSERT INTO runstone.tombstones SELECT * FROM runstone.tombstones",
        "TRUNCATE runstone.tombstones",
        "DELETE FROM runstone.orchestration_events",
        "DELETE FROM runstone.streams",
        "INSERT INTO runstone.maintenance (reason, kind) VALUES ('mine', 'RETENTION')",
    ],
)
async def test_an_engine_does_none_of_it_by_itself(scene: Scene, engine: Connection, statement: str) -> None:
    await forgotten(scene, await ended(scene))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await engine.execute(statement)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE runstone.tombstones SET bundle = 'other'", "tombstones are immutable"),
        ("DELETE FROM runstone.tombstones", "a tombstone stays until its stream is back"),
        ("TRUNCATE runstone.tombstones", "tombstones are immutable"),
    ],
)
async def test_nor_does_a_superuser(scene: Scene, connection: Connection, statement: str, said: str) -> None:
    await forgotten(scene, await ended(scene))
    with pytest.raises(asyncpg.RaiseError, match=said):
        await connection.execute(statement)


async def test_no_tombstone_is_lifted_from_a_stream_that_is_not_there(
    scene: Scene, engine: Connection
) -> None:
    _, stone = await forgotten(scene, await ended(scene))
    with pytest.raises(asyncpg.RaiseError, match="a tombstone stays until its stream is back"):
        await engine.execute("DELETE FROM runstone.tombstones WHERE stream_id = $1", stone.stream_id)
    assert await scene.store.find_tombstone(stone.tenant_id, stream_id=stone.stream_id) == stone


async def test_the_tenant_of_the_transaction_is_left_as_it_was(scene: Scene, engine: Connection) -> None:
    case = await ended(scene)
    stone, _ = await stones_of(scene, case)
    async with engine.transaction():
        await engine.execute("SELECT set_config('runstone.tenant', $1, true)", scene.new_id())
        before = await engine.fetchval("SELECT runstone.tenant()")
        asked = (stone.tenant_id, stone.correlation_id, "[]")
        assert (
            await engine.fetchval("SELECT outcome FROM runstone.forget_correlation($1, $2, $3)", *asked)
            == "STALE"
        )
        assert await engine.fetchval("SELECT runstone.tenant()") == before


async def test_who_is_writing_goes_first(scene: Scene, engine: Connection) -> None:
    """A commit has the stream's lock: retention waits, and then sees that it has moved on."""
    case = await ended(scene)
    stones = await stones_of(scene, case)
    async with engine.transaction():
        moved = "UPDATE runstone.streams SET last_seq = last_seq + 1 WHERE id = $1"
        await engine.execute(moved, case.signal.stream_id)
        forgetting = asyncio.ensure_future(scene.store.forget(stones))
        await waits(engine)
        assert not forgetting.done()
    with pytest.raises(StaleSequence):
        await forgetting
    assert await everything_of(scene, case) != []


async def test_who_comes_to_write_meanwhile_is_too_late(scene: Scene, connection: Connection) -> None:
    """Retention has the lock: the commit waits, and then finds no stream."""
    case = await ended(scene)
    (stone, _), late = (
        await stones_of(scene, case),
        scene.decide(case, commands.ReportConflict(source_hash="1" * 64)),
    )
    stones = await connection.fetchval(
        "SELECT json_agg(json_build_object('stream_id', id, 'tenant_id', tenant_id, 'kind', kind, "
        "'last_seq', last_seq, 'head', head, 'correlation_id', $1::uuid, 'archive', 'a', 'bundle', 'b', "
        "'bundle_sha256', 'c', 'removed_at', now(), 'digest', 'd'))::text FROM runstone.streams",
        stone.correlation_id,
    )
    async with connection.transaction():
        forget = "SELECT outcome FROM runstone.forget_correlation($1, $2, $3)"
        assert await connection.fetchval(forget, stone.tenant_id, stone.correlation_id, stones) == "REMOVED"
        writing = asyncio.ensure_future(scene.store.commit(late.commit))
        await waits(connection)
    with pytest.raises(CommitRefused):
        await writing
    assert await everything_of(scene, case) == []


async def test_one_that_was_archived_fails_alone_in_its_batch(scene: Scene) -> None:
    """§STO-16, §STO-52"""
    await forgotten(scene, await ended(scene, source_id="mail-1"))
    commits = [
        scene.decide(scene.new_case(), scene.receive(f"mail-{number}"), scene.create()).commit
        for number in range(20)
    ]
    outcomes = await asyncio.gather(*map(scene.store.commit, commits), return_exceptions=True)
    assert [isinstance(outcome, DuplicateKey) for outcome in outcomes] == [
        number == 1 for number in range(20)
    ]
    assert sum(isinstance(outcome, BaseException) for outcome in outcomes) == 1


@pytest_asyncio.fixture
async def untouched(fresh_postgres_url: str) -> AsyncIterator[Connection]:
    """To a database in which nothing ever was: plans depend on what was in the tables before."""
    connection = await asyncpg.connect(fresh_postgres_url)
    yield connection
    await connection.close()


async def test_expired_runs_are_found_along_an_index(untouched: Connection) -> None:
    """A page of them, in a database with some thousand runs, costs as much as the page."""
    connection = untouched
    await connection.execute("SET session_replication_role = replica")  # without foreign keys and triggers
    await fill(connection)
    for table in ("signals", "runs", "steps", "effects", "streams"):
        names = await connection.fetchval(
            "SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0",
            f"runstone.{table}",
        )
        fresh = {
            name: f"md5({name}::text || n)::uuid"
            for name in names
            if name in ("id", "run_id", "signal_id", "step_id", "correlation_id")
        } | {
            name: f"{name} || n::text"
            for name in names
            if name in ("source_id", "key", "run_request_id", "idempotency_key")
        }
        values = ", ".join(fresh.get(name, name) for name in names)
        await connection.execute(
            f"INSERT INTO runstone.{table} ({', '.join(names)}) "
            f"SELECT {values} FROM runstone.{table}, generate_series(1, 3000) AS n"
        )
    await connection.execute("ANALYZE")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE expired AS {retention._SQL['expired']}")
    asked = "EXECUTE expired(now(), now(), NULL, NULL, NULL, 10)"
    assert len(await connection.fetch(asked)) == 10
    plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {asked}"))
    assert "Index Scan using signals_by_age on signals s" in plan
    assert "Seq Scan" not in plan
    assert "Sort Key: s.ingested_at" not in plan
