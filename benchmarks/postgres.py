"""PostgreSQL for benchmarks: a private server, set up as a small one in production, and databases on it.

Nothing that makes a commit durable is switched off: whoever takes part waits for the same disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import asyncpg

from benchmarks import measure
from benchmarks.registry import Progress, Run
from benchmarks.report import Report
from runstone.core.commit import Commit
from runstone.ports.store import Committed
from runstone.stores.postgres import PostgresStore
from runstone.stores.postgres.migrations import migrate
from tests.servers.postgres import Cluster, Server, binaries, in_thread, older_binaries, unprivileged

SETTINGS: Final = {
    "max_connections": "400",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
}
DURABLE: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
"""What every connection that is measured has to answer."""


class OnServer(Protocol):
    """A benchmark that needs a server."""

    def __call__(self, ground: Ground, quick: bool, progress: Progress, scale: float) -> Report: ...


class Ground:
    """Databases on one server, each empty but for Runstone's schema when it is made."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._names: list[str] = []
        in_thread(_prepared(self._create("blank", "template1")))
        self.version = in_thread(_version(server.url()))

    def database(self, name: str, *, migrated: bool = True) -> str:
        """The URL of a new one. It goes with the server: to drop it would force a checkpoint on others."""
        return self._create(name, self._names[0] if migrated else "template1")

    def _create(self, name: str, template: str) -> str:
        self._names.append(f"bench_{name}_{os.getpid()}_{len(self._names)}")
        return self.server.create(self._names[-1], template=template)

    @property
    def note(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in DURABLE.items())
        return f"PostgreSQL {self.version}, on every connection {settings}"


class RememberingStore(PostgresStore):
    """The store, which also keeps every commit that it was given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commits: list[Commit] = []

    def commit(self, commit: Commit) -> Awaitable[Committed]:
        self.commits.append(commit)
        return super().commit(commit)


def on_postgres(name: str, measured: OnServer) -> Run:
    """A benchmark with a server of its own; where there is none, it says so and reports nothing else."""

    def run(quick: bool, progress: Progress, scale: float = 1.0) -> Report:
        found = binaries() or older_binaries()
        if found is None:
            note = "nothing was measured, for no PostgreSQL server is installed here"
            return Report(
                name=name, columns=("what",), rows=(), ratios={}, targets={}, figures={}, notes=(note,)
            )
        progress("starting PostgreSQL")
        with private_server(found) as server:
            return measured(Ground(server), quick, progress, scale)

    return run


@contextmanager
def private_server(found: Path) -> Iterator[Cluster]:
    """A server on the disk that the project is on, gone afterwards."""
    cluster = Cluster(found, SETTINGS, parent=_parent())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def _parent() -> Path | None:
    """Where the data goes: beside other scratch data, if the user that the server runs as can go there."""
    folder = measure.SCRATCH
    folder.mkdir(exist_ok=True)
    reached = all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.resolve().parents))
    return folder if reached or unprivileged() is None else None


async def _prepared(url: str) -> None:
    """Migrated, and opened once: that begins the feed's first epoch."""
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()
    await (await PostgresStore.open(url)).close()


async def _version(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        version: str = await connection.fetchval("SELECT current_setting('server_version')")
        return version.split()[0]
    finally:
        await connection.close()


def fetch(url: str, query: str, *arguments: object) -> list[asyncpg.Record]:
    """The rows of one query, from code that is not async."""

    async def asked() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()

    return in_thread(asked())
