"""What guards tombstones in the file itself, whoever writes to it (§STO-37, §STO-52, §STO-53)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from runstone.core.tombstone import Tombstone
from runstone.stores.sqlite import SqliteStore, retention
from runstone.stores.sqlite.files import open_writer
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.retention import ended, forgotten
from runstone.testing.conformance.scene import Scene


@pytest_asyncio.fixture
async def stones(path: Path) -> AsyncIterator[tuple[Tombstone, ...]]:
    """The tombstones of a run that was archived, in a file that holds another."""
    clock = VirtualClock()

    async def open_store(_: object) -> SqliteStore:
        return await SqliteStore.open(path, clock=clock)

    scene = Scene(open_store, await open_store(clock), clock)
    await ended(scene)
    yield await forgotten(scene, await ended(scene, source_id="mail-1", key="order-7"))
    assert await scene.store.self_check() == []
    await scene.store.close()


@pytest.fixture
def connection(path: Path, stones: object) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(str(path))) as connection:
        yield connection


def test_tombstones_are_not_changed(connection: sqlite3.Connection) -> None:
    for column in ("head", "bundle", "source_id", "removed_at"):
        with pytest.raises(sqlite3.IntegrityError, match="tombstones are immutable"):
            connection.execute(f"UPDATE tombstones SET {column} = {column}")


def test_tombstones_stay_until_their_stream_is_back(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="a tombstone stays"):
        connection.execute("DELETE FROM tombstones")
    assert connection.execute("SELECT count(*) FROM tombstones").fetchone() == (2,)


def test_replacing_is_deleting(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT OR REPLACE INTO tombstones SELECT * FROM tombstones")


@pytest.mark.parametrize("values", ["last_seq + 1, head", "last_seq, '00'"])
def test_a_stream_comes_back_whole_or_not_at_all(connection: sqlite3.Connection, values: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=r"tombstones\.stream_id"):
        connection.execute(
            f"INSERT INTO streams SELECT stream_id, tenant_id, kind, {values}, 0, 0 FROM tombstones"
        )
    with pytest.raises(sqlite3.IntegrityError, match=r"tombstones\.stream_id"):
        connection.execute(
            "INSERT INTO streams SELECT stream_id, 'another', kind, last_seq, head, 0, 0 FROM tombstones"
        )
    connection.execute("BEGIN")
    connection.execute(
        "INSERT INTO streams SELECT stream_id, tenant_id, kind, last_seq, head, 0, 0 FROM tombstones"
    )
    assert connection.execute("SELECT count(*) FROM tombstones").fetchone() == (0,)
    connection.execute("ROLLBACK")


def test_sources_and_keys_stay_taken(connection: sqlite3.Connection, stones: tuple[Tombstone, ...]) -> None:
    names = [row[1] for row in connection.execute("PRAGMA table_info(signals)")]
    taken = {"id": "'other'", "source_id": "'mail-1'"}
    copied = ", ".join(taken.get(name, name) for name in names)
    with pytest.raises(sqlite3.IntegrityError, match=r"tombstones\.source_channel"):
        connection.execute(f"INSERT INTO signals SELECT {copied} FROM signals")
    names = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    taken = {"id": "'other'", "key": "'order-7'", "run_request_id": "'other'"}
    copied = ", ".join(taken.get(name, name) for name in names)
    with pytest.raises(sqlite3.IntegrityError, match=r"tombstones\.run_key"):
        connection.execute(f"INSERT INTO runs SELECT {copied} FROM runs")


def test_nobody_else_deletes_what_has_ended(connection: sqlite3.Connection) -> None:
    """§STO-39"""
    for table in ("orchestration_events", "runs", "signals"):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(f"DELETE FROM {table}")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("expired", "SEARCH s USING INDEX signals_by_age ("),
        ("expired_schedules", "SEARCH d USING INDEX schedules_over ("),
    ],
)
def test_what_has_expired_is_found_along_an_index(
    connection: sqlite3.Connection, name: str, first: str
) -> None:
    names = ("ended_before", "received_before", "tenant_id", "began_at", "first_id", "limit")
    plan = connection.execute(f"EXPLAIN QUERY PLAN {retention._SQL[name]}", dict.fromkeys(names)).fetchall()
    steps = [row[3] for row in plan]
    assert steps[0].startswith(first)
    assert [step for step in steps if step.startswith("SCAN")] == []
    assert [step for step in steps if "TEMP B-TREE" in step] == []
