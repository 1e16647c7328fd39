"""Opening a file: made, brought up to date, or refused and left as it was."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from runstone.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreTooNew, StoreUnusable
from runstone.stores.sql import Migration, migrations
from runstone.stores.sqlite import SqliteStore, commits, files
from runstone.stores.sqlite.files import open_writer, schema_problems
from tests.integration.stores.sqlite import scene
from tests.integration.stores.sqlite.processes import child, inject, needs_strace

KNOWN: Final = migrations("sqlite")
FUTURE: Final = Migration(len(KNOWN) + 1, "9999_future", "CREATE TABLE future (id TEXT PRIMARY KEY) STRICT;")
BROKEN: Final = Migration(
    len(KNOWN) + 1, "9999_broken", "CREATE TABLE new (id TEXT) STRICT;\nCREATE TABLE runs (id TEXT) STRICT;"
)
NO_DATABASES: Final = (b"Dear diary, " * 1000, b"SQLite format 3\0" + bytes(range(256)) * 64, b"no")


def use(monkeypatch: pytest.MonkeyPatch, known: Iterable[Migration]) -> None:
    """As if this were a Runstone with these migrations."""
    listed = list(known)
    monkeypatch.setattr(files, "migrations", lambda _: listed)


def dump(path: Path) -> list[str]:
    """All that is in a file, and what it says of itself."""
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()
        return [str(version), *connection.iterdump()]


def company(path: Path) -> set[str]:
    """The files beside a file."""
    return {file.name for file in path.parent.iterdir()} - {path.name}


async def test_a_fresh_file_becomes_a_store(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        assert await store.self_check() == []
        await scene.write(store, scene.usual(1))
    assert company(path) == {"runstone.db-turn", "runstone.db-lock"}
    async with await SqliteStore.open(path) as store:
        assert await scene.problems(store) == []
        assert len(await store.list_runs(scene.TENANT)) == 1


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    scene.overwrite(path, b"")
    async with await SqliteStore.open(path) as store:
        assert await store.self_check() == []


@pytest.mark.parametrize("seen", range(1, len(KNOWN)))
async def test_a_file_of_every_earlier_version_is_brought_up_to_date(
    seen: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        use(earlier, KNOWN[:seen])
        with closing(open_writer(str(path))) as connection:
            assert schema_problems(connection) == []
            commits.apply(connection, list(map(commits.Packed, scene.usual(1))), 0, str(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (seen,)
    async with await SqliteStore.open(path) as store:
        assert await scene.problems(store) == []
        assert len(await store.list_runs(scene.TENANT)) == 1
    with closing(sqlite3.connect(path)) as connection:
        applied = connection.execute("SELECT version, name, checksum FROM migrations ORDER BY version")
        assert applied.fetchall() == [(one.version, one.name, one.checksum) for one in KNOWN]


@pytest.mark.parametrize("locks", ["as they are", pytest.param("slow", marks=needs_strace)])
async def test_processes_that_open_a_fresh_file_at_once_all_succeed(locks: str, tmp_path: Path) -> None:
    """With slow locks, each finds the others in the middle of it."""
    paths = [tmp_path / f"{place}.db" for place in range(3)]
    faults = inject("fcntl", "delay_exit=5000", "1+") if locks == "slow" else []
    with ExitStack() as stack:
        openers = [stack.enter_context(child("create", *paths, faults=faults)) for _ in range(4)]
        assert [opener.read() for opener in openers] == ["ready"] * 4
        for _ in paths:
            for opener in openers:
                opener.tell()
            assert [opener.read() for opener in openers] == ["opened"] * 4
    for path in paths:
        async with await SqliteStore.open(path, inline=True) as store:
            assert await store.self_check() == []


def test_a_file_that_becomes_a_store_while_it_is_looked_at_is_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header was read before another process made it a store, its tables would be counted after that."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connect = files.connect
    others: list[str] = []

    def interrupt(statement: str) -> None:
        if "sqlite_master" in statement and not others:
            others.append(statement)
            open_writer(str(path)).close()

    def interrupted(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(interrupt)
        return connection

    monkeypatch.setattr(files, "connect", interrupted)
    with closing(open_writer(str(path))) as connection:
        assert others
        assert schema_problems(connection) == []


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await SqliteStore.open(path) as store:
        await scene.write(store, scene.usual(1))
    before = dump(path)
    with monkeypatch.context() as broken:
        use(broken, [*KNOWN, BROKEN])
        with pytest.raises(StoreUnusable, match="table runs already exists"):
            await SqliteStore.open(path)
    assert dump(path) == before
    async with await SqliteStore.open(path) as store:
        assert await scene.problems(store) == []


@needs_strace
async def test_a_process_killed_while_it_migrates_leaves_the_file_as_it_was(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before every fifth write to the log, until one comes through."""
    with monkeypatch.context() as earlier:
        use(earlier, KNOWN[:1])
        open_writer(str(path)).close()
    before = dump(path)
    for place in range(1, 200, 5):
        copy = tmp_path / f"{place}.db"
        shutil.copy(path, copy)
        faults = inject("pwrite64", "signal=KILL", place, scene.wal(copy))
        with child("close_cleanly", copy, faults=faults) as opener:
            said = opener.rest()
        if said:
            break
        assert dump(copy) == before
        async with await SqliteStore.open(copy) as store:
            assert await store.self_check() == []
    assert said == ["opened", "closed"]
    assert place > 5
    assert dump(copy) != before


async def test_a_migration_that_was_changed_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_writer(str(path)).close()
    before = scene.content(path)
    rewritten = Migration(1, KNOWN[0].name, KNOWN[0].script + "-- harmless\n")
    use(monkeypatch, [rewritten, *KNOWN[1:]])
    with pytest.raises(StoreUnusable, match=f"{KNOWN[0].name} was changed"):
        await SqliteStore.open(path)
    use(monkeypatch, [rewritten, *KNOWN[1:], FUTURE])
    with pytest.raises(StoreUnusable, match=f"{KNOWN[0].name} was changed"):
        await SqliteStore.open(path)
    assert scene.content(path) == before


class TestTooNew:
    """A file that a newer Runstone has written."""

    @pytest.fixture
    def newer(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        with monkeypatch.context() as future:
            use(future, [*KNOWN, FUTURE])
            open_writer(str(path)).close()
        return path

    async def test_it_is_refused(self, newer: Path) -> None:
        before = scene.content(newer)
        with pytest.raises(StoreTooNew, match=f"schema version {FUTURE.version}.*upgrade"):
            await SqliteStore.open(newer)
        assert scene.content(newer) == before

    def test_also_when_it_became_so_a_moment_ago(self, newer: Path) -> None:
        """Between the first look at the file and the lock, another process may have migrated it."""
        with closing(files.connect(str(newer))) as connection:
            with pytest.raises(StoreTooNew):
                files.migrate(connection, str(newer))
            assert connection.execute("PRAGMA user_version").fetchone() == (FUTURE.version,)


@pytest.mark.parametrize(
    "made_with",
    [
        "CREATE TABLE theirs (id TEXT)",
        "PRAGMA application_id = 42",
        "PRAGMA user_version = 1",
        "PRAGMA journal_mode = WAL; CREATE TABLE runs (id TEXT); PRAGMA user_version = 2",
    ],
)
async def test_another_programs_file_is_refused_and_left_alone(made_with: str, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(made_with)
    before = scene.content(path)
    with pytest.raises(StoreUnusable, match="another program: choose another path"):
        await SqliteStore.open(path)
    assert scene.content(path) == before
    assert company(path) == set()


@pytest.mark.parametrize("content", NO_DATABASES)
async def test_what_is_no_database_is_refused_and_left_alone(content: bytes, path: Path) -> None:
    scene.overwrite(path, content)
    with pytest.raises(StoreCorrupt, match=r"not a database|malformed"):
        await SqliteStore.open(path)
    assert scene.content(path) == content
    assert company(path) == set()


async def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "runstone.db", tmp_path):
        with pytest.raises(StoreReadOnly, match="unable to open"):
            await SqliteStore.open(path)


async def test_a_file_system_without_shared_memory_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite then goes on without a write-ahead log, and does not say so."""
    real = sqlite3.connect
    dotfile = f"file:{path}?vfs=unix-dotfile"
    monkeypatch.setattr(sqlite3, "connect", lambda _, **given: real(dotfile, uri=True, **given))
    with pytest.raises(StoreUnusable, match="cannot keep a write-ahead log"):
        await SqliteStore.open(path)


async def test_a_file_whose_log_was_switched_off_gets_it_back(path: Path) -> None:
    open_writer(str(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    async with await SqliteStore.open(path) as store:
        await scene.write(store, scene.usual(1))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_every_refusal_is_an_error_of_the_port(path: Path) -> None:
    scene.overwrite(path, b"no")
    with pytest.raises(StoreError) as refused:
        await SqliteStore.open(path)
    assert isinstance(refused.value.__cause__, sqlite3.Error)
    assert str(path) in str(refused.value)
