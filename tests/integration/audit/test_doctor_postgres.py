"""The doctor on a server: every check is shown a server with which just that is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
import pytest_asyncio

from runstone.audit import doctor
from runstone.ports.clock import SystemClock
from runstone.ports.health import Problem
from runstone.stores.postgres import PostgresStore, health, maintenance
from runstone.stores.postgres.connections import Connection
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.scene import Scene

BRIEF = timedelta(milliseconds=1)


@pytest.fixture
def postgres_url(fresh_postgres_url: str) -> str:
    """In one that others have used before, dead rows are left of them."""
    return fresh_postgres_url


@pytest_asyncio.fixture
async def connection(postgres_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def other(postgres_url: str) -> AsyncIterator[Connection]:
    other = await asyncpg.connect(postgres_url)
    yield other
    await other.close()


def only(problems: Iterable[Problem]) -> Problem:
    (problem,) = problems
    assert problem.what
    assert problem.remedy
    return problem


async def test_nothing_is_wrong_with_a_fresh_database(postgres_engine_url: str) -> None:
    async with await PostgresStore.open(postgres_engine_url) as store:
        assert await doctor.examine(store, SystemClock()) == []


async def test_old_work_is_found(postgres_engine_url: str) -> None:
    clock = VirtualClock()

    async def open_store(_: object) -> PostgresStore:
        return await PostgresStore.open(postgres_engine_url, clock=clock)

    scene = Scene(open_store, await open_store(clock), clock)
    await scene.queued()
    await scene.queued()
    await scene.claim("w1", limit=1)
    await scene.store.close()
    async with await PostgresStore.open(postgres_engine_url) as store:
        found = await doctor.examine(store, SystemClock())
    assert {problem.check for problem in found} == {"workers", "queue"}


async def test_a_clock_that_is_off(postgres_engine_url: str) -> None:
    class Ahead:
        def now(self) -> datetime:
            return datetime.now(UTC) + timedelta(minutes=3)

    async with await PostgresStore.open(postgres_engine_url) as store:
        assert only(await doctor.examine(store, Ahead())).check == "clock"


async def test_an_old_transaction(connection: Connection, other: Connection) -> None:
    pids = [await each.fetchval("SELECT pg_backend_pid()") for each in (connection, other)]

    async def ours() -> list[Problem]:
        """Without those of the vacuum, which comes and goes as it likes."""
        found = await health.old_transactions(connection, BRIEF)
        return [problem for problem in found if any(f"process {pid} " in problem.what for pid in pids)]

    assert await ours() == []
    async with other.transaction():
        pid = await other.fetchval("SELECT pg_backend_pid()")
        await asyncio.sleep(0.05)
        problem = only(await ours())
        assert f"process {pid} " in problem.what
        assert f"pg_terminate_backend({pid})" in problem.remedy
        assert list(await health.old_transactions(connection)) == []


async def test_a_prepared_transaction(connection: Connection, other: Connection) -> None:
    if await connection.fetchval("SHOW max_prepared_transactions") == "0":
        problem = health._old_transaction(None, 700, "prepared", "g-1")
        assert "the prepared transaction 'g-1' has been open for 0:11:40" in problem.what
        assert problem.remedy.endswith("ROLLBACK PREPARED 'g-1'")
        return
    await other.execute("BEGIN; INSERT INTO runstone.workers VALUES ('w', now()); PREPARE TRANSACTION 'g-1'")
    try:
        problem = only(await health.old_transactions(connection, timedelta(0)))
        assert problem.remedy.endswith("ROLLBACK PREPARED 'g-1'")
    finally:
        await other.execute("ROLLBACK PREPARED 'g-1'")


async def test_dead_rows(connection: Connection, other: Connection) -> None:
    assert list(await health.dead_rows(connection, 10)) == []
    await other.execute("ALTER TABLE runstone.workers SET (autovacuum_enabled = off)")
    await other.execute(
        "INSERT INTO runstone.workers SELECT n::text, now() FROM generate_series(1, 100) AS n"
    )
    await other.execute("DELETE FROM runstone.workers")
    await other.close()  # which tells the statistics
    async with asyncio.timeout(60):
        while not (found := await health.dead_rows(connection, 10)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    problem = only(found)
    assert "runstone.workers has 100 dead rows" in problem.what
    assert "never vacuumed" in problem.what
    assert list(await health.dead_rows(connection)) == []


async def test_a_feed_that_waits(postgres_url: str, connection: Connection, other: Connection) -> None:
    """§ORD-29"""
    async with await PostgresStore.open(postgres_url) as store:
        scene = Scene(lambda _: asyncio.sleep(0), store)
        async with other.transaction():
            await other.execute("INSERT INTO runstone.workers VALUES ('w', now())")
            pid = await other.fetchval("SELECT pg_backend_pid()")
            assert list(await health.stalled_feed(connection, 0)) == []
            await scene.queued()

            async def told() -> Problem:
                return only(await health.stalled_feed(connection, 0))

            async with asyncio.timeout(60):  # the vacuum may have been here before, for a moment
                while f"process {pid}" not in (problem := await told()).what:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert problem.what.startswith("FEED_STALLED")
            assert f"pg_terminate_backend({pid})" in problem.remedy
        async with asyncio.timeout(60):
            while await health.stalled_feed(connection, 0):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_server_that_loses_what_it_acknowledged(connection: Connection) -> None:
    assert list(await health.durability(connection)) == []
    await connection.execute("SET synchronous_commit = off")
    problem = only(await health.durability(connection))
    assert "synchronous_commit is off" in problem.what


async def test_too_many_connections(connection: Connection, other: Connection) -> None:
    assert list(await health.crowding(connection)) == []
    most = await other.fetchval("SELECT current_setting('max_connections')::int")
    assert "connections are taken" in only(await health.crowding(connection, 2 / most)).what


@pytest.mark.parametrize(
    ("change", "told", "remedy"),
    [
        (
            "ALTER TABLE runstone.runs DISABLE ROW LEVEL SECURITY",
            "not kept apart in runstone.runs: row-level security is switched off",
            "keep_tenants_apart('runstone.runs')",
        ),
        (
            "ALTER TABLE runstone.steps NO FORCE ROW LEVEL SECURITY",
            "not kept apart in runstone.steps: row-level security is not forced for the owner",
            "keep_tenants_apart('runstone.steps')",
        ),
        (
            "DROP POLICY every_tenant ON runstone.runs",
            "policy every_tenant is missing or was changed",
            "keep_tenants_apart('runstone.runs')",
        ),
        (
            "ALTER POLICY one_tenant ON runstone.tombstones USING (true)",
            "policy one_tenant is missing or was changed",
            "keep_tenants_apart('runstone.tombstones')",
        ),
        (
            "ALTER POLICY every_tenant ON runstone.effects TO PUBLIC",
            "policy every_tenant is missing or was changed",
            "keep_tenants_apart('runstone.effects')",
        ),
        (
            "CREATE POLICY more ON runstone.signals FOR SELECT USING (true)",
            "policy more is none of ours",
            "drop what is none of ours",
        ),
        (
            "ALTER TABLE runstone.runs OWNER TO postgres",
            "runstone.runs belongs to postgres",
            "ALTER TABLE runstone.runs OWNER TO runstone_owner",
        ),
        (
            "REVOKE INSERT, SELECT ON runstone.runs FROM runstone_engine",
            "runstone_engine may not INSERT, SELECT runstone.runs",
            "GRANT INSERT, SELECT ON runstone.runs TO runstone_engine",
        ),
        (
            "GRANT DELETE ON runstone.orchestration_events TO runstone_api",
            "runstone_api may DELETE runstone.orchestration_events",
            "REVOKE DELETE ON runstone.orchestration_events FROM runstone_api",
        ),
        (
            "REVOKE USAGE ON SCHEMA runstone FROM runstone_api",
            "runstone_api may not USE the schema runstone",
            "GRANT USAGE ON SCHEMA runstone TO runstone_api",
        ),
        (
            "ALTER TABLE runstone.streams DISABLE TRIGGER streams_no_delete",
            "trigger streams_no_delete of runstone.streams is switched off",
            "ALTER TABLE runstone.streams ENABLE TRIGGER streams_no_delete",
        ),
    ],
)
async def test_guards_that_are_gone(
    connection: Connection, postgres_url: str, change: str, told: str, remedy: str
) -> None:
    """§TEN-12, §TEN-13, §TEN-23; what is to be done about it puts it right."""
    await connection.execute(change)
    async with await PostgresStore.open(postgres_url) as store:
        problem = only(await doctor.examine(store, SystemClock()))
        assert (problem.check, told in problem.what, remedy in problem.remedy) == ("guards", True, True)
        assert list(await store.self_check()) == [problem.what]
        for statement in problem.remedy.replace("and drop what", "drop what").split("; "):
            if statement[:1].isupper():
                await connection.execute(statement)
        await connection.execute("DROP POLICY IF EXISTS more ON runstone.signals")
        assert await doctor.examine(store, SystemClock()) == []


async def test_no_guard_is_gone_on_an_older_server(postgres_older_url: str) -> None:
    """Servers write out the same rules in words of their own."""
    connection = await asyncpg.connect(postgres_older_url)
    try:
        assert list(await health.guards(connection)) == []
    finally:
        await connection.close()


async def test_a_policy_for_a_role_of_ones_own_is_no_gap(
    connection: Connection, postgres_engine: str
) -> None:
    await connection.execute(f"CREATE POLICY more ON runstone.runs TO {postgres_engine} USING (true)")
    assert list(await health.guards(connection)) == []
    await connection.execute("DROP POLICY more ON runstone.runs")


async def test_a_cluster_without_the_roles(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was restored without them: only that is told, for everything else follows."""
    await connection.execute("DROP POLICY every_tenant ON runstone.runs")
    wanted = maintenance._SQL["missing_roles"].replace("'runstone_api'", "'runstone_nobody'")
    monkeypatch.setitem(maintenance._SQL, "missing_roles", wanted)
    problem = only(await health.guards(connection))
    assert "role runstone_nobody is missing" in problem.what
    assert "--roles-only" in problem.remedy


async def test_whoever_may_not_look_is_told_so(postgres_engine_url: str, connection: Connection) -> None:
    """And by what it may see, which grant is missing; nobody is sent for a backup."""
    await connection.execute("REVOKE SELECT ON runstone.effects FROM runstone_engine")
    async with await PostgresStore.open(postgres_engine_url) as store:
        found = await doctor.examine(store, SystemClock())
    assert "permission denied for table effects" in found[0].what
    assert "GRANT SELECT ON runstone.effects TO runstone_engine" in {problem.remedy for problem in found}
    assert not any("backup" in problem.remedy for problem in found)


@pytest.mark.parametrize(
    ("drop", "name"),
    [
        ("DROP INDEX runstone.run_queue_due", "run_queue_due"),
        ("DROP TRIGGER streams_no_delete ON runstone.streams", "streams_no_delete"),
    ],
)
async def test_what_is_missing(connection: Connection, other: Connection, drop: str, name: str) -> None:
    assert list(await health.missing_objects(connection)) == []
    await other.execute(drop)
    assert name in only(await health.missing_objects(connection)).what
