"""Several events in one call: one sync, none if one does not fit, and a crash leaves a beginning of them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runstone.core import payloads
from runstone.core.events import Event
from runstone.errors import StateTransitionError, StoreFull
from runstone.stores.folder import FolderStore
from runstone.stores.folder.disk import Disk
from tests.integration.stores.folder.falling import FallingDisk, MemoryDisk
from tests.integration.stores.folder.scene import (
    EVENTS,
    RUN,
    TENANT,
    Writer,
    log_file,
    prove,
    recovered,
    snapshot_file,
    torn_file,
    usual,
)

BEFORE, TOGETHER = EVENTS[:2], EVENTS[2:9]
"""A work item with all it says is recorded at once; none of it moves the run."""


async def recorded(root: Path, disk: Disk) -> list[Event]:
    """The usual run, and seven events of one call."""
    await usual(root, events=BEFORE)
    async with await FolderStore.open(root, inline=True, disk=disk) as store:
        writer = Writer(store, seed=2)
        writer.clock.advance(1000)
        await store.record(TENANT, RUN, *TOGETHER, context=writer.context())
        return list(await store.fetch(TENANT, RUN))


async def test_a_call_costs_one_sync_however_many_events_it_has(tmp_path: Path) -> None:
    await usual(tmp_path, events=BEFORE)
    disk = FallingDisk()
    async with await FolderStore.open(tmp_path, inline=True, disk=disk) as store:
        writer = Writer(store, seed=2)
        await writer.record(TOGETHER[0])  # takes the lock, and syncs what it finds
        calls = len(disk.calls)
        await store.record(TENANT, RUN, *TOGETHER[1:], context=writer.context())
        assert disk.calls[calls:] == ["write", "sync"]
        assert await store.record(TENANT, RUN, context=writer.context()) == []
        assert len(disk.calls) == calls + 2
    disk.let_go()
    await prove(tmp_path)


async def test_if_one_does_not_fit_none_is_written(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=BEFORE)
    async with await FolderStore.open(tmp_path, inline=True, disk=MemoryDisk()) as store:
        writer = Writer(store, seed=2)
        wrong = payloads.RunStateChanged(from_state="NOWHERE", to_state="DONE")
        with pytest.raises(StateTransitionError):
            await store.record(TENANT, RUN, *TOGETHER, wrong, context=writer.context())
        assert list(await store.fetch(TENANT, RUN)) == events
        await store.record(TENANT, RUN, *TOGETHER, context=writer.context())
    assert len((await prove(tmp_path))[0]) == len(events) + len(TOGETHER)


class Filling(MemoryDisk):
    """Takes half of the next write, and then it is full."""

    full = False

    def write(self, descriptor: int, content: bytes) -> None:
        if self.full:
            super().write(descriptor, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, content)


async def test_a_disk_that_fills_up_within_a_call_has_none_of_it(tmp_path: Path) -> None:
    events = await usual(tmp_path, events=BEFORE)
    disk = Filling()
    async with await FolderStore.open(tmp_path, inline=True, disk=disk) as store:
        writer = Writer(store, seed=2)
        await writer.record(TOGETHER[0])
        disk.full = True
        with pytest.raises(StoreFull):
            await store.record(TENANT, RUN, *TOGETHER[1:], context=writer.context())
        disk.full = False
        assert len(await store.fetch(TENANT, RUN)) == len(events) + 1
        await store.record(TENANT, RUN, *TOGETHER[1:], context=writer.context())
    assert len((await prove(tmp_path))[0]) == len(events) + len(TOGETHER)


async def test_a_call_that_is_cut_leaves_its_first_events(tmp_path: Path) -> None:
    """A killed process wrote a part of it: whole lines are events, the rest is set aside."""
    events = await recorded(tmp_path, MemoryDisk())
    log = log_file(tmp_path).read_bytes()
    earlier = len(events) - len(TOGETHER)
    start = len(b"".join(log.splitlines(keepends=True)[:earlier]))
    for cut in (at for at in range(start, len(log)) if at % 29 == 0 or b"\n" in log[at - 1 : at + 2]):
        restore(tmp_path, log[:cut])
        assert (await recovered(tmp_path)).failed is None
        left, view = await prove(tmp_path)
        whole = log[:cut].count(b"\n") + (log[cut : cut + 1] == b"\n")
        assert left == events[:whole], cut
        assert view.last_seq == whole


@pytest.mark.parametrize("block", [64, 512, 4096])
async def test_a_call_with_blocks_that_were_never_written_leaves_its_first_events(
    block: int, tmp_path: Path
) -> None:
    """The power went before the sync: any block of the call may be zeros, the later ones may be there."""
    events = await recorded(tmp_path, MemoryDisk())
    log = log_file(tmp_path).read_bytes()
    earlier = len(events) - len(TOGETHER)
    start = len(b"".join(log.splitlines(keepends=True)[:earlier]))
    for hole in range(start, len(log), block):
        lost = log[hole : hole + block]
        found = log[:hole] + b"\0" * len(lost) + log[hole + block :]
        restore(tmp_path, found)
        recovery = await recovered(tmp_path)
        assert recovery.failed is None, hole
        left, _ = await prove(tmp_path)
        whole = log[:hole].count(b"\n")
        assert left in (events[:whole], events[: whole + 1]), "of a line that lacks its end, that is added"
        place = len(log_file(tmp_path).read_bytes())
        assert torn_file(tmp_path).read_bytes() in (found[place:] + b"\n", found[place - 1 :] + b"\n")


def restore(root: Path, log: bytes) -> None:
    """The log as a crash left it, and no snapshot that would know better."""
    log_file(root).write_bytes(log)
    snapshot_file(root).unlink(missing_ok=True)
    torn_file(root).unlink(missing_ok=True)
