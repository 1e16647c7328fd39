"""The bell between processes: a hint that comes once, and again after a lost connection (§STO-30)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runstone.stores.postgres import PostgresStore, bell
from tests.integration.stores.postgres.filled import Connection


async def until(true: Callable[[], bool], ring: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(30):
        while not true():
            ring()
            await asyncio.sleep(0.02)


async def test_a_ring_is_heard_in_another_process(store: PostgresStore, other: PostgresStore) -> None:
    here: list[str] = []
    there: list[str] = []
    store.bell.listen(here.append)
    other.bell.listen(there.append)
    store.bell.start()
    other.bell.start()
    await until(lambda: "first" in there, lambda: store.bell.ring("first"))
    here.clear()
    there.clear()
    for number in range(500):
        store.bell.ring(f"run-{number}")
    assert here == [f"run-{number}" for number in range(500)]
    await until(lambda: "run-499" in there)
    assert [heard for heard in there if heard != "first"] == here
    await until(lambda: "back" in here, lambda: other.bell.ring("back"))
    assert here.count("run-0") == 1, "what this process rang itself is not told twice"


async def test_it_rings_again_after_its_connections_were_lost(
    store: PostgresStore, other: PostgresStore, connection: Connection
) -> None:
    there: list[str] = []
    other.bell.listen(there.append)
    store.bell.start()
    other.bell.start()
    await until(lambda: "before" in there, lambda: store.bell.ring("before"))
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await until(lambda: "after" in there, lambda: store.bell.ring("after"))


async def test_a_bell_that_was_not_started_rings_in_its_own_process(store: PostgresStore) -> None:
    here: list[str] = []
    store.bell.listen(here.append)
    store.bell.ring("run")
    assert here == ["run"]


async def test_what_was_rung_is_heard_although_the_bell_is_stopped_at_once(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that sends one control signal lives no longer than that."""
    monkeypatch.setattr(bell, "PARTING", 30.0)  # however busy the machine is
    there: list[str] = []
    other.bell.listen(there.append)
    other.bell.start()
    store.bell.start()
    await until(lambda: "before" in there, lambda: store.bell.ring("before"))
    await store.bell.stop()
    store.bell.start()
    store.bell.ring("parting")
    await store.bell.stop()
    await until(lambda: "parting" in there)
