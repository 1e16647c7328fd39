"""Retention: what is archived is proven before it is removed, whatever interrupts it, and on every store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio

from runstone.audit import archive as archive_module
from runstone.audit.archive import Archive
from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.audit.rebuild import rebuild_all
from runstone.audit.retention import RUNS_KEPT, SIGNALS_KEPT, Retained, find_expired, rest, retain
from runstone.audit.verify import Verified, verify_all, verify_run
from runstone.core import commands
from runstone.core.tombstone import Tombstone
from runstone.errors import BundleInvalid, CommitRefused, NotFound, OutcomeUnknown, RunArchived
from runstone.ports.store import Store
from runstone.stores.postgres import PostgresStore
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import VirtualClock
from runstone.testing.conformance.retention import correlation_id, ended
from runstone.testing.conformance.scene import OpenStore, Scene
from runstone.testing.faults import Fault, FaultPlan, FaultyStore
from runstone.testing.memory import MemoryData, MemoryStore

MONTHS: Final = timedelta(days=91)


def opens_memory() -> OpenStore:
    data = MemoryData()

    async def open_store(clock: Any) -> MemoryStore:
        return MemoryStore(data, clock=clock)

    return open_store


def opens_sqlite(path: Path) -> OpenStore:
    async def open_store(clock: Any) -> SqliteStore:
        return await SqliteStore.open(path, clock=clock)

    return open_store


def opens_postgres(url: str) -> OpenStore:
    async def open_store(clock: Any) -> PostgresStore:
        return await PostgresStore.open(url, clock=clock)

    return open_store


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "memory":
        return opens_memory()
    if request.param == "sqlite":
        return opens_sqlite(tmp_path / "store.db")
    return opens_postgres(request.getfixturevalue("postgres_engine_url"))


@pytest_asyncio.fixture
async def scene(open_store: OpenStore) -> AsyncIterator[Scene]:
    clock = VirtualClock()
    scene = Scene(open_store, await open_store(clock), clock)
    yield scene
    await scene.store.close()


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


async def retained(
    scene: Scene, archive: Archive, store: Store | None = None, **asked: Any
) -> list[Retained]:
    now = scene.clock.now()
    return [one async for one in retain(store or scene.store, archive, rest(now), now=now, **asked)]


async def proven(store: Store, archive: Archive | None = None) -> list[Verified]:
    """All that `verify` says; it has to find nothing."""
    parts = [part async for part in verify_all(store, archive=archive)]
    assert [finding for part in parts for finding in part.findings] == []
    return parts


def bundles(archive: Archive) -> list[Path]:
    return sorted(path for path in archive.folder.rglob("*") if path.is_file())


async def test_what_has_rested_is_archived_and_removed(scene: Scene, archive: Archive) -> None:
    old = await ended(scene, source_id="mail-1")
    content = await export_bundle(scene.store, scene.tenant_id, correlation_id(old))
    scene.clock.advance(MONTHS)
    young, live = await ended(scene), await scene.running()
    await proven(scene.store)
    (done,) = await retained(scene, archive)
    assert (done.correlation_id, done.removed, done.problem) == (correlation_id(old), True, None)
    (path,) = bundles(archive)
    assert str(path.relative_to(archive.folder)) == done.bundle
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o077 == 0
    parts = await proven(scene.store, archive)
    assert sum(part.archived for part in parts) == 2
    assert {part.correlation_id for part in parts} - {""} == {correlation_id(young), correlation_id(live)}
    assert await retained(scene, archive) == []
    async for rebuilt in rebuild_all(scene.store):
        assert rebuilt.problem is None


async def test_ninety_days_for_runs_and_thirty_for_signals(scene: Scene, archive: Archive) -> None:
    """§STO-34"""
    await ended(scene)
    await scene.carry(scene.new_case(), scene.receive())
    scene.clock.advance(SIGNALS_KEPT - timedelta(seconds=1))
    assert await retained(scene, archive) == []
    scene.clock.advance(timedelta(seconds=1))
    assert [one.events for one in await retained(scene, archive)] == [1]
    scene.clock.advance(RUNS_KEPT - SIGNALS_KEPT - timedelta(seconds=1))
    assert await retained(scene, archive) == []
    scene.clock.advance(timedelta(seconds=1))
    assert [one.removed for one in await retained(scene, archive)] == [True]


async def test_a_live_run_keeps_its_correlation(scene: Scene, archive: Archive) -> None:
    """§STO-35"""
    parent = await ended(scene)
    receive = msgspec.structs.replace(
        scene.receive(), correlation_id=correlation_id(parent), cause=parent.run.last_event
    )
    await scene.carry(scene.new_case(), receive, scene.create(), commands.StartRun())
    scene.clock.advance(10 * MONTHS)
    assert await retained(scene, archive) == []
    assert bundles(archive) == []
    assert len(await scene.store.correlation(scene.tenant_id, correlation_id(parent))) == 4


async def test_a_limit_and_a_tenant(scene: Scene, archive: Archive) -> None:
    other = scene.for_tenant(scene.new_id())
    for _ in range(6):
        await ended(scene)
        scene.clock.advance(timedelta(seconds=1))
    await ended(other)
    scene.clock.advance(MONTHS)
    resting = rest(scene.clock.now())
    assert len([one async for one in find_expired(scene.store, resting)]) == 7
    assert len([one async for one in find_expired(scene.store, resting, limit=3)]) == 3
    assert len(await retained(scene, archive, limit=5, tenant_id=scene.tenant_id)) == 5
    assert len(await retained(scene, archive, tenant_id=scene.tenant_id)) == 1
    assert len(await retained(scene, archive)) == 1
    await proven(scene.store, archive)


async def test_more_than_a_page(scene: Scene, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstone.audit.retention.PAGE", 3)
    for _ in range(8):
        await ended(scene)
        await scene.running()
    scene.clock.advance(MONTHS)
    assert [one.removed for one in await retained(scene, archive)] == [True] * 8
    assert len(bundles(archive)) == 8
    assert (await scene.store.count_runs(scene.tenant_id)) == {"RUNNING": 8}


# Interrupted anywhere


class Killed(BaseException):
    """As if the process had been killed."""


STEPS: Final = ("os.mkdir", "os.open", "os.fsync", "os.replace", "pathlib.Path.read_bytes")
"""What writing a bundle asks of the system."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[list[str]]:
    """Lets the process die before its so-manieth step; the steps that it took."""
    taken: list[str] = []

    def dying(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any, **named: Any) -> Any:
            taken.append(name)
            if len(taken) == number:
                raise Killed
            return step(*arguments, **named)

        return take

    with monkeypatch.context() as patched:
        for name in STEPS:
            place, _, last = name.rpartition(".")
            holder: Any = Path if place.startswith("pathlib") else os
            patched.setattr(holder, last, dying(name, getattr(holder, last)))
        yield taken


async def test_killed_while_the_bundle_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every step that the file takes: the correlation is there, and the next one finishes."""
    number = 0
    while True:
        number += 1
        clock = VirtualClock()
        scene = Scene(opens_memory(), await opens_memory()(clock), clock)
        case = await ended(scene)
        clock.advance(MONTHS)
        archive = Archive(tmp_path / str(number))
        died = False
        with killed_at(monkeypatch, number) as taken:
            try:
                await retained(scene, archive)
            except Killed:
                died = True
        if not died:
            break
        assert len(await scene.store.correlation(scene.tenant_id, correlation_id(case))) == 2
        await proven(scene.store, archive)
        (done,) = await retained(scene, archive)
        assert done.removed
        await proven(scene.store, archive)
    assert set(STEPS) <= set(taken)
    assert number > 10


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
async def test_any_operation_of_the_store_may_fail(
    open_store: OpenStore, archive: Archive, fault: Fault
) -> None:
    """Refused, cancelled, or with its answer lost: whoever comes next finishes, and nothing is lost."""
    clock = VirtualClock()
    store = await open_store(clock)
    scene = Scene(open_store, store, clock)
    hit, number = True, 0
    try:
        while hit:
            number += 1
            await ended(scene)
            clock.advance(MONTHS)
            faulty = FaultyStore(store, FaultPlan(number, fault))
            await asyncio.gather(retained(scene, archive, store=faulty), return_exceptions=True)
            hit = faulty.hit
            await proven(store, archive)
            await retained(scene, archive)
            parts = await proven(store, archive)
            assert sum(part.archived for part in parts) == 2 * number
            assert await store.count_events() == 0
        assert number > 4
    finally:
        await store.close()


async def test_an_answer_that_is_lost_again_and_again_is_told(scene: Scene, archive: Archive) -> None:
    class Silent(FaultyStore):
        async def forget(self, tombstones: Any) -> bool:
            await self.store.forget(tombstones)
            raise OutcomeUnknown

    await ended(scene)
    scene.clock.advance(MONTHS)
    silent = Silent(scene.store, FaultPlan(0, Fault.REFUSED))
    with pytest.raises(OutcomeUnknown):
        await retained(scene, archive, store=silent)
    await proven(scene.store, archive)
    assert await retained(scene, archive) == []


async def test_an_answer_that_is_lost_once_is_asked_for_again(scene: Scene, archive: Archive) -> None:
    class Forgetful(FaultyStore):
        asked = 0

        async def forget(self, tombstones: Any) -> bool:
            self.asked += 1
            removed = await self.store.forget(tombstones)
            if self.asked == 1:
                raise OutcomeUnknown
            return removed

    await ended(scene)
    scene.clock.advance(MONTHS)
    forgetful = Forgetful(scene.store, FaultPlan(0, Fault.REFUSED))
    assert [one.removed for one in await retained(scene, archive, store=forgetful)] == [True]
    assert forgetful.asked == 2


# Others at the same time


async def test_two_at_once_do_no_harm(scene: Scene, open_store: OpenStore, archive: Archive) -> None:
    for _ in range(12):
        await ended(scene)
    scene.clock.advance(MONTHS)
    other = await open_store(scene.clock)
    try:
        both = await asyncio.gather(retained(scene, archive), retained(scene, archive, store=other))
    finally:
        await other.close()
    assert sum(one.removed for part in both for one in part) == 12
    assert [one.problem for part in both for one in part if one.problem] == []
    assert len(bundles(archive)) == 12
    await proven(scene.store, archive)


async def test_verify_passes_meanwhile(scene: Scene, archive: Archive) -> None:
    """§STO-41: what is removed under its eyes has left a tombstone."""
    for _ in range(12):
        await ended(scene)
    scene.clock.advance(MONTHS)
    removing = asyncio.ensure_future(retained(scene, archive))
    while not removing.done():
        await proven(scene.store)
        await asyncio.sleep(0)
    assert len(await removing) == 12
    await proven(scene.store, archive)


async def test_a_correlation_that_moves_on_meanwhile_stays(scene: Scene, archive: Archive) -> None:
    case = await ended(scene)
    scene.clock.advance(MONTHS)

    class Busy(FaultyStore):
        async def forget(self, tombstones: Any) -> bool:
            await scene.carry(case, commands.ReportConflict(source_hash="1" * 64))
            return await self.store.forget(tombstones)

    busy = Busy(scene.store, FaultPlan(0, Fault.REFUSED))
    (done,) = await retained(scene, archive, store=busy)
    assert (done.removed, done.problem) == (False, None)
    await proven(scene.store, archive)
    assert len(await scene.store.correlation(scene.tenant_id, correlation_id(case))) == 2
    scene.clock.advance(MONTHS)
    assert [one.removed for one in await retained(scene, archive)] == [True]
    assert len(bundles(archive)) == 2, "no bundle takes another's place"


# What cannot be archived stays


@pytest.mark.parametrize("change", ["actor = 'eve'", "event_data = CAST(x'22ff22' AS TEXT)"])
async def test_a_damaged_log_stays(tmp_path: Path, archive: Archive, change: str) -> None:
    clock = VirtualClock()
    scene = Scene(opens_sqlite(tmp_path / "s.db"), await opens_sqlite(tmp_path / "s.db")(clock), clock)
    try:
        case, sound = await ended(scene), await ended(scene)
        clock.advance(MONTHS)
        with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as connection:
            connection.execute("DROP TRIGGER orchestration_events_no_update")
            connection.execute(
                f"UPDATE orchestration_events SET {change} WHERE stream_id = ? AND run_seq = 1",
                (case.run.stream_id,),
            )
        done = {one.correlation_id: one for one in await retained(scene, archive)}
        assert done[correlation_id(sound)].removed
        left = done[correlation_id(case)]
        assert not left.removed
        assert "runstone verify" in (left.problem or "")
        assert len(await scene.store.heads(scene.tenant_id, correlation_id(case))) == 2
    finally:
        await scene.store.close()


async def test_a_disk_that_gives_back_other_bytes_removes_nothing(
    scene: Scene, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = await ended(scene)
    scene.clock.advance(MONTHS)
    monkeypatch.setattr(archive_module, "_write", lambda target, content: target.write_bytes(content[:-9]))
    (done,) = await retained(scene, archive)
    assert not done.removed
    assert "was changed" in (done.problem or "")
    assert len(await scene.store.correlation(scene.tenant_id, correlation_id(case))) == 2


async def test_an_archive_that_cannot_be_written_removes_nothing(scene: Scene, tmp_path: Path) -> None:
    case = await ended(scene)
    scene.clock.advance(MONTHS)
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(OSError):
        await retained(scene, Archive(tmp_path / "taken"))
    assert len(await scene.store.correlation(scene.tenant_id, correlation_id(case))) == 2


# Afterwards


async def test_who_asks_for_what_was_archived_is_told_where_it_is(scene: Scene, archive: Archive) -> None:
    case = await ended(scene)
    scene.clock.advance(MONTHS)
    (done,) = await retained(scene, archive)
    with pytest.raises(RunArchived, match=str(done.bundle)) as told:
        await export_bundle(scene.store, scene.tenant_id, correlation_id(case))
    assert told.value.removed_at == scene.clock.now()
    verified = await verify_run(scene.store, scene.tenant_id, case.run.stream_id, archive)
    assert (verified.archived, verified.streams, verified.findings) == (2, 0, ())
    with pytest.raises(NotFound):
        await verify_run(scene.store, scene.tenant_id, scene.new_id(), archive)


async def test_a_bundle_can_be_brought_back_and_archived_again(scene: Scene, archive: Archive) -> None:
    """§STO-53"""
    case = await ended(scene, key="order-7")
    scene.clock.advance(MONTHS)
    await retained(scene, archive)
    (path,) = bundles(archive)
    bundle = read_bundle(path.read_bytes())
    assert await import_bundle(scene.store, bundle) is True
    assert await import_bundle(scene.store, bundle) is False
    await proven(scene.store, archive)
    run = await scene.store.find_run(scene.tenant_id, "order-7")
    assert run is not None
    assert run.id == case.run.stream_id
    assert [one.removed for one in await retained(scene, archive)] == [True]
    assert bundles(archive) == [path]


async def test_an_older_bundle_is_not_taken_back(scene: Scene, archive: Archive) -> None:
    """§STO-53: something would be missing that was there."""
    case = await ended(scene)
    early = read_bundle(await export_bundle(scene.store, scene.tenant_id, correlation_id(case)))
    await scene.carry(case, commands.ReportConflict(source_hash="1" * 64))
    scene.clock.advance(MONTHS)
    await retained(scene, archive)
    with pytest.raises(CommitRefused, match="was archived"):
        await import_bundle(scene.store, early)
    await proven(scene.store, archive)


async def test_bundles_that_are_lost_or_changed_are_found(scene: Scene, archive: Archive) -> None:
    case = await ended(scene)
    scene.clock.advance(MONTHS)
    await retained(scene, archive)
    (path,) = bundles(archive)
    content = path.read_bytes()
    await proven(scene.store, archive)

    async def found() -> list[str]:
        parts = [part async for part in verify_all(scene.store, archive=archive)]
        (one,) = {finding.check for part in parts for finding in part.findings}
        assert one == "archive"
        return [finding.found for part in parts for finding in part.findings]

    path.write_bytes(content.replace(b"RUN_COMPLETED", b"RUN_FAILED"))
    assert all("was changed" in text for text in await found())
    path.unlink()
    assert len(await found()) == 2
    verified = await verify_run(scene.store, scene.tenant_id, case.run.stream_id, archive)
    assert len(verified.findings) == 2
    await proven(scene.store), "without its archive, a tombstone is taken at its word"


def test_a_tombstone_that_names_another_bundle_is_found(tmp_path: Path) -> None:
    async def build() -> tuple[Archive, Tombstone]:
        clock = VirtualClock()
        scene = Scene(opens_memory(), await opens_memory()(clock), clock)
        case = await ended(scene)
        clock.advance(MONTHS)
        archive = Archive(tmp_path)
        await retained(scene, archive)
        stone = await scene.store.find_tombstone(scene.tenant_id, stream_id=case.run.stream_id)
        assert stone is not None
        return archive, stone

    archive, stone = asyncio.run(build())
    assert archive.prove(stone) is None
    assert "does not end" in (archive.prove(msgspec.structs.replace(stone, last_seq=1)) or "")
    with pytest.raises(BundleInvalid, match="cannot be read"):
        archive.read("nothing", "")
