"""The world ends between any two system calls: what was acknowledged is there, and the run can be taken up.

First in this process, on a disk that stops at each call in turn; then for real, with strace killing a child.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from runstone.core.events import Event
from runstone.errors import NotFound
from runstone.stores.folder import FolderStore
from tests.integration.stores.folder.falling import Fallen, FallingDisk, MemoryDisk
from tests.integration.stores.folder.processes import child, kill_at, needs_strace, said
from tests.integration.stores.folder.scene import (
    EVENTS,
    RUN,
    TENANT,
    Writer,
    log_file,
    prove,
    recovered,
    usual,
)

Scenario = Callable[[FolderStore, Writer], Awaitable[None]]


async def whole_life(store: FolderStore, writer: Writer) -> None:
    """From nothing to the end of a run, and the store is closed."""
    await writer.create()
    await writer.record(*EVENTS)
    await store.close()


async def play(root: Path, scenario: Scenario, disk: FallingDisk) -> list[Event]:
    """Plays the scenario to its end or the world's; what was acknowledged till then."""
    store = await FolderStore.open(root, inline=True, disk=disk)
    writer = Writer(store)
    try:
        with suppress(Fallen):
            await scenario(store, writer)
    finally:
        store.forsake()
    return writer.acknowledged


async def count_calls(root: Path, scenario: Scenario) -> list[str]:
    disk = FallingDisk()
    try:
        await play(root, scenario, disk)
    finally:
        disk.let_go()
    return disk.calls


@contextmanager
def worlds(folder: Path, disk: FallingDisk) -> Iterator[list[Path]]:
    """What is found afterwards: by the next process, and by the next after the power was lost."""
    try:
        disk.after_power_loss(folder / "root", folder / "unplugged")
        yield [folder / "root", folder / "unplugged"]
    finally:
        disk.let_go()
        for left in ("root", "unplugged"):
            shutil.rmtree(folder / left, ignore_errors=True)


def fresh(folder: Path) -> Path:
    root = folder / "root"
    root.mkdir()
    return root


@pytest.mark.parametrize("halfway", [False, True])
async def test_a_run_that_is_cut_off_anywhere_is_taken_up_again(halfway: bool, tmp_path: Path) -> None:
    """§STO-17, §PIP-5, §PIP-7: not an acknowledged event is lost, and at most one that was not is there."""
    calls = await count_calls(fresh(tmp_path), whole_life)
    shutil.rmtree(tmp_path / "root")
    assert {*calls} == {"open", "write", "sync", "truncate", "rename", "make"}
    assert len(calls) > 80
    for at in range(1, len(calls) + 1):
        if halfway and calls[at - 1] != "write":
            continue
        disk = FallingDisk(at, halfway=halfway)
        acknowledged = await play(fresh(tmp_path), whole_life, disk)
        with worlds(tmp_path, disk) as found:
            for root in found:
                await assert_taken_up(root, acknowledged, f"{calls[at - 1]}, call {at}, {root.name}")


def invalid(root: Path) -> list[Path]:
    """What had to be kept aside, for it was not what any crash may leave behind."""
    return list(root.rglob("*.invalid"))


async def assert_taken_up(
    root: Path, acknowledged: list[Event], where: str, at_most: int | None = None
) -> None:
    try:
        recovery = await recovered(root)
    except NotFound:
        assert not acknowledged, where
        async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as store:
            await Writer(store, seed=5).create()
    else:
        assert recovery.failed is None, where
    events, view = await prove(root)
    assert not invalid(root), f"a snapshot was half written or ahead of its log: {where}"
    recorded = events[2:]  # behind RUN_CREATED and RUN_STARTED
    assert recorded[: len(acknowledged)] == acknowledged, where
    assert len(recorded) <= (len(acknowledged) + 1 if at_most is None else at_most), where
    async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as store:
        writer = Writer(store, seed=7)
        await writer.create()  # which a crash may have cut off, and is safe to ask for again
        await writer.record(*EVENTS[max(0, len(await store.fetch(TENANT, RUN)) - 2) :])
        run = await store.run(TENANT, RUN)
        assert run is not None
        assert run.status == "COMPLETED", where
        signal = [event.event_type for event in await store.fetch(TENANT, run.signal_id)]
        assert signal == ["SIGNAL_RECEIVED", "SIGNAL_PROCESSING_STARTED", "SIGNAL_PROCESSED"], where
    events, view = await prove(root)
    assert [event.event_type for event in events[2:]] == [data.EVENT_TYPE for data in EVENTS], where
    assert view.run_state == "DONE"


async def test_what_a_process_left_unsynced_is_durable_once_another_relied_on_it(tmp_path: Path) -> None:
    """It is killed between a line and its sync; the next one reads the line, and then the power goes."""
    calls = await count_calls(fresh(tmp_path), whole_life)
    shutil.rmtree(tmp_path / "root")
    for at in [place for place, call in enumerate(calls, 1) if call == "sync"][::3]:
        disk = FallingDisk(at)
        await play(fresh(tmp_path), whole_life, disk)
        after = disk.next_process()
        store = await FolderStore.open(tmp_path / "root", inline=True, disk=after)
        relied_on = 0
        with suppress(NotFound):
            relied_on = (await Writer(store, seed=3).recover()).snapshot.last_seq
        store.forsake()
        with worlds(tmp_path, after) as (_, unplugged):
            there = log_file(unplugged).read_bytes().count(b"\n") if log_file(unplugged).exists() else 0
            assert there >= relied_on, f"call {at}"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "torn": lambda root: log_file(root).write_bytes(log_file(root).read_bytes() + b'{"actor":"te'),
    "without its end": lambda root: log_file(root).write_bytes(log_file(root).read_bytes()[:-1]),
    "broken": lambda root: log_file(root).write_bytes(
        log_file(root).read_bytes().replace(b"ARTIFACT_WRITTEN", b"ARTIFACT_WRITTER")
    ),
    "gone": lambda root: log_file(root).unlink(),
    "behind": lambda root: (root / "runs" / RUN / "snapshot.json").unlink(),
    "wrong": lambda root: (root / "runs" / RUN / "snapshot.json").write_bytes(b"{}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_recovery_that_is_cut_off_anywhere_is_done_again(damage: str, tmp_path: Path) -> None:
    """To the same end, whatever the first one got done."""

    async def recover(store: FolderStore, writer: Writer) -> None:
        await writer.recover()
        await store.close()

    async def damaged(at: int | None) -> FallingDisk:
        shutil.rmtree(tmp_path / "root", ignore_errors=True)
        shutil.copytree(tmp_path / "damaged", tmp_path / "root")
        disk = FallingDisk(at)
        disk.all_is_durable(tmp_path / "root")
        await play(tmp_path / "root", recover, disk)
        return disk

    await usual(tmp_path / "damaged", events=EVENTS[:-3])
    DAMAGE[damage](tmp_path / "damaged")
    straight = await damaged(None)
    straight.let_go()
    expected, shown = await prove(tmp_path / "root")
    for at in range(1, len(straight.calls) + 1):
        disk = await damaged(at)
        with worlds(tmp_path, disk) as found:
            for root in found:
                recovery = await recovered(root)
                where = f"{straight.calls[at - 1]}, call {at}, {root.name}"
                events, view = await prove(root)
                assert [e.event_type for e in events] == [e.event_type for e in expected], where
                assert view.run_state == shown.run_state, where
                assert (recovery.failed is not None) == (damage in ("broken", "gone")), where


# For real

LOG = ("runs", RUN, "events.ndjson")
DRAFT = ("runs", RUN, ".snapshot.json.new")


@needs_strace
@pytest.mark.parametrize(
    ("call", "times", "path"),
    [
        ("mkdir", (1, 2, 3), ()),
        ("fdatasync", (1, 4, 6, 9, 12, 13, 16, 20), ()),
        ("write", (1, 2, 3, 14), LOG),
        ("fdatasync", (1, 2, 3, 14), LOG),
        ("write", (1, 2), DRAFT),
        ("rename", (1, 2, 4), ()),
    ],
)
async def test_a_process_that_is_killed_at_a_system_call_loses_nothing(
    call: str, times: tuple[int, ...], path: tuple[str, ...], tmp_path: Path
) -> None:
    for when in times:
        root = tmp_path / f"killed-{when}"
        root.mkdir()
        paths = [root.joinpath(*path)] if path else []
        with child("live", root, kill_at(call, when, *paths)) as process:
            lines = said(process)
        assert "closed" not in lines, f"{call} was not called {when} times"
        async with await FolderStore.open(root, inline=True) as store:
            there = [event.id for event in await store.fetch(TENANT, RUN)] if log_file(root).exists() else []
        assert there[2 : 2 + len(lines)] == lines, f"{call} {when}"
        await assert_taken_up(root, [], f"{call} {when}", at_most=len(lines) + 1)


@needs_strace
async def test_a_process_that_nobody_kills_comes_to_its_end(tmp_path: Path) -> None:
    """The calls that are counted above are all there."""
    with child("live", tmp_path, kill_at("rename", 999)) as process:
        assert said(process)[-1] == "closed"
    assert len((await prove(tmp_path))[0]) == 2 + len(EVENTS)
