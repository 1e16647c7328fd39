"""One writer to a run: who has it, what a second one is told, and what a death or a fork leaves behind."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from runstone.core import codec
from runstone.core.events import EventDraft
from runstone.errors import OutcomeUnknown, StoreBusy, StoreFull, StoreReadOnly, StoreUnusable
from runstone.stores.folder import FolderStore, folders
from runstone.stores.folder.disk import Disk
from runstone.stores.folder.folders import OPEN_AT_MOST
from runstone.stores.folder.lock import owner_of
from tests.integration.stores.folder.processes import child, heard, said, tell
from tests.integration.stores.folder.scene import (
    EVENTS,
    RUN,
    TENANT,
    Writer,
    log_file,
    prove,
    recovered,
    snapshot_file,
    usual,
)


async def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    """§PIP-8"""
    with child("hold", tmp_path) as holder:
        assert heard(holder) == "holds it"
        owner = owner_of(tmp_path / "runs" / RUN / "lock")
        assert owner is not None
        assert (owner.pid, owner.host) == (holder.pid, socket.gethostname())
        async with await FolderStore.open(tmp_path) as other:
            writer = Writer(other, seed=2)
            for attempt in (writer.record(EVENTS[2]), writer.recover(), writer.create()):
                with pytest.raises(StoreBusy, match=f"written to by process {holder.pid} on "):
                    await attempt
            assert len(await other.fetch(TENANT, RUN)) == 4, "anybody may read"
        tell(holder)
        said(holder)
    async with await FolderStore.open(tmp_path) as other:
        await Writer(other, seed=2).record(EVENTS[2])
    assert owner_of(tmp_path / "runs" / RUN / "lock") is None
    await prove(tmp_path)


async def test_a_dead_owner_holds_nobody_up(tmp_path: Path) -> None:
    with child("hold", tmp_path) as holder:
        assert heard(holder) == "holds it"
        holder.kill()
        holder.wait()
        assert owner_of(tmp_path / "runs" / RUN / "lock") is not None, "its name is still there"
        async with await FolderStore.open(tmp_path) as other:
            writer = Writer(other, seed=2)
            assert (await writer.recover()).failed is None
            await writer.record(EVENTS[2])


async def test_two_stores_of_one_process_are_two_writers(tmp_path: Path) -> None:
    async with await FolderStore.open(tmp_path) as one, await FolderStore.open(tmp_path) as two:
        await Writer(one).create()
        with pytest.raises(StoreBusy, match=f"process {os.getpid()}"):
            await Writer(two, seed=2).record(EVENTS[0])
        await Writer(two, seed=2).create(RUN[:-1] + "e")


async def test_a_forked_child_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    with child("fork", tmp_path) as parent:
        assert [heard(parent), heard(parent)] == ["child StoreClosed", "child StoreBusy"]
        tell(parent)
        assert heard(parent) == "parent recorded"
        parent.wait(30)
        async with await FolderStore.open(tmp_path) as other:  # though the child lives on
            await Writer(other, seed=2).record(EVENTS[1])


async def test_a_reader_sees_what_a_writer_of_another_store_adds(tmp_path: Path) -> None:
    """§STO-18"""
    async with await FolderStore.open(tmp_path) as one, await FolderStore.open(tmp_path) as two:
        writer = Writer(one)
        await writer.create()
        for count, data in enumerate(EVENTS, 3):
            await writer.record(data)
            assert len(await two.fetch(TENANT, RUN)) == count
            assert await two.view(TENANT, RUN) == await one.view(TENANT, RUN)


async def test_a_store_lets_the_run_go_that_it_has_not_used_for_longest(tmp_path: Path) -> None:
    async with await FolderStore.open(tmp_path, inline=True) as many:
        writer = Writer(many)
        await writer.create()
        await writer.record(EVENTS[5])
        for number in range(OPEN_AT_MOST):
            await writer.create(f"{RUN[:-4]}{number:04x}")
        assert owner_of(tmp_path / "runs" / RUN / "lock") is None
        assert snapshot_file(tmp_path).read_bytes() == await many.replay(TENANT, RUN)
        await writer.record(EVENTS[0])


# The snapshot follows


async def test_a_snapshot_follows_at_once_when_the_run_moves_and_soon_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§PIP-13"""
    monkeypatch.setattr(folders, "LAG", 0.05)
    async with await FolderStore.open(tmp_path) as folder:
        writer = Writer(folder)
        await writer.create()
        for data in EVENTS:
            await writer.record(data)
            if data.EVENT_TYPE in ("RUN_STATE_CHANGED", "RUN_COMPLETED"):
                assert snapshot_file(tmp_path).read_bytes() == await folder.replay(TENANT, RUN)
            for _ in range(3000):
                if snapshot_file(tmp_path).read_bytes() == await folder.replay(TENANT, RUN):
                    break
                await asyncio.sleep(0.01)
            else:
                pytest.fail(f"the snapshot did not follow {data.EVENT_TYPE}")


async def test_many_events_cost_few_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing moves the run, none before the time has come."""
    monkeypatch.setattr(folders, "LAG", 600.0)

    class Counting(Disk):
        renames = 0

        def rename(self, source: Path, target: Path) -> None:
            self.renames += 1
            super().rename(source, target)

    disk = Counting()
    async with await FolderStore.open(tmp_path, disk=disk) as folder:
        writer = Writer(folder)
        await writer.create()
        before = disk.renames
        for _ in range(50):
            await writer.record(EVENTS[5])
        assert disk.renames == before
        assert snapshot_file(tmp_path).read_bytes() != await folder.replay(TENANT, RUN)
    assert disk.renames == before + 1, "the store was closed"
    await prove(tmp_path)


# A disk that fails


class FailingDisk(Disk):
    """Fails calls by name, a number of times."""

    def __init__(self) -> None:
        self.failing: dict[str, list[int]] = {}

    def fail(self, call: str, *errors: int) -> None:
        self.failing[call] = list(errors)

    def _maybe(self, call: str) -> None:
        if self.failing.get(call):
            number = self.failing[call].pop(0)
            if number:
                raise OSError(number, os.strerror(number))

    def write(self, descriptor: int, content: bytes) -> None:
        if self.failing.get("write"):
            super().write(descriptor, content[:10])
        self._maybe("write")
        super().write(descriptor, content)

    def sync(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self._maybe("truncate")
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe("rename")
        super().rename(source, target)


@pytest.mark.parametrize(
    ("call", "number", "error"),
    [
        ("write", errno.ENOSPC, StoreFull),
        ("write", errno.EROFS, StoreReadOnly),
        ("write", errno.EIO, StoreUnusable),
        ("sync", errno.EIO, StoreUnusable),
        ("sync", errno.ENOSPC, StoreFull),
    ],
)
async def test_what_could_not_be_written_leaves_nothing_behind(
    call: str, number: int, error: type[Exception], tmp_path: Path
) -> None:
    disk = FailingDisk()
    async with await FolderStore.open(tmp_path, disk=disk) as folder:
        writer = Writer(folder)
        await writer.create()
        before = log_file(tmp_path).read_bytes()
        disk.fail(call, number)
        with pytest.raises(error):
            await writer.record(EVENTS[0])
        assert log_file(tmp_path).read_bytes() == before
        await writer.record(*EVENTS)
    assert [event.event_type for event in (await prove(tmp_path))[0][2:]] == [d.EVENT_TYPE for d in EVENTS]


async def test_what_could_not_be_written_is_no_duplicate_of_itself(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with await FolderStore.open(tmp_path, disk=disk) as folder:
        writer = Writer(folder)
        await writer.create()
        last = (await folder.fetch(TENANT, RUN))[-1]
        known = {field: getattr(last, field) for field in EventDraft.__struct_fields__}
        data = codec.canonical({"section": "intro", "state": "DRAFTED"})
        fresh = known | {"id": writer.new_id(), "idempotency_key": "5" * 64, "event_data": data}
        draft = EventDraft(**fresh | {"event_type": "SECTION_STATE_CHANGED"})
        disk.fail("sync", errno.EIO)
        with pytest.raises(StoreUnusable):
            await folder.append(draft)
        assert (await folder.append(draft)).persisted
        assert (await folder.append(draft)).idempotent
        assert (await folder.append(EventDraft(**known))).idempotent, "what was there before is still known"
    assert len((await prove(tmp_path))[0]) == 3


async def test_what_cannot_be_taken_back_either_is_unknown(tmp_path: Path) -> None:
    """§STO-19: the log is read again, and what is there is there."""
    disk = FailingDisk()
    async with await FolderStore.open(tmp_path, disk=disk) as folder:
        writer = Writer(folder)
        await writer.create()
        disk.fail("sync", errno.EIO)
        disk.fail("truncate", errno.EIO)
        with pytest.raises(OutcomeUnknown):
            await writer.record(EVENTS[0])
        assert [event.event_type for event in await folder.fetch(TENANT, RUN)][2:] == ["RUN_STATE_CHANGED"]
        await writer.record(*EVENTS[1:])
    await prove(tmp_path)


async def test_after_that_the_snapshot_waits_until_the_log_was_read_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with await FolderStore.open(tmp_path, disk=disk) as folder:
        writer = Writer(folder)
        await writer.create()
        before = snapshot_file(tmp_path).read_bytes()
        disk.fail("sync", errno.EIO)
        disk.fail("truncate", errno.EIO)
        with pytest.raises(OutcomeUnknown):
            await folder.record(TENANT, RUN, *EVENTS[:2], context=writer.context())
        assert snapshot_file(tmp_path).read_bytes() == before
        assert (await writer.recover()).snapshot.run_state == "INGESTED"
    await prove(tmp_path)


async def test_a_snapshot_that_cannot_be_written_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event is durable, and so acknowledged; the snapshot is made by the next that succeeds."""
    monkeypatch.setattr(folders, "LAG", 600.0)  # nor is it tried again while we look
    disk = FailingDisk()
    async with await FolderStore.open(tmp_path, disk=disk) as folder:
        writer = Writer(folder)
        await writer.create()
        disk.fail("rename", errno.ENOSPC)
        await writer.record(EVENTS[0])
        assert "is not up to date" in caplog.text
        assert snapshot_file(tmp_path).read_bytes() != await folder.replay(TENANT, RUN)
    await prove(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    await usual(tmp_path)
    (tmp_path / "runs").chmod(0o500)
    try:
        async with await FolderStore.open(tmp_path) as folder:
            with pytest.raises(StoreReadOnly, match="permissions"):
                await Writer(folder).create(RUN[:-1] + "e")
    finally:
        (tmp_path / "runs").chmod(0o700)
    assert (await recovered(tmp_path)).failed is None
