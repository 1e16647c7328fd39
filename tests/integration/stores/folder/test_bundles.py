"""Runs go from a folder to other stores and back, as bundles: unchanged, whole, once (§STO-43 to §STO-46)."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from runstone.audit.bundles import export_bundle, import_bundle, read_bundle
from runstone.audit.verify import correlation_of, verify_all
from runstone.errors import CommandRefused, CommitRefused, DuplicateKey
from runstone.ports.store import Store
from runstone.stores.folder import FolderStore
from runstone.stores.sqlite import SqliteStore
from runstone.testing.clock import SeededIds, VirtualClock
from runstone.testing.conformance.entities import put
from runstone.testing.conformance.scene import Scene, draft
from runstone.testing.histories import five_step_history
from tests.integration.stores.folder.falling import Fallen, FallingDisk, MemoryDisk
from tests.integration.stores.folder.scene import EVENTS, RUN, TENANT, Writer, log_file, prove, usual


def whole(store: FolderStore) -> Store:
    """What of it a bundle needs is there."""
    return cast(Store, store)


async def bundle_of(root: Path, run_id: str = RUN) -> bytes:
    async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as store:
        return await export_bundle(whole(store), TENANT, await correlation_of(whole(store), TENANT, run_id))


async def sqlite_bundle(path: Path) -> tuple[bytes, str]:
    """A run of the engine's in a file, and its id."""
    clock = VirtualClock()
    async with await SqliteStore.open(path, inline=True) as store:
        history = five_step_history(tenant_id=TENANT, clock=clock, new_id=SeededIds(1, clock))
        for decision in history:
            await store.commit(decision.commit)
        run_id = history[-1].case.run.stream_id
        return await export_bundle(store, TENANT, await correlation_of(store, TENANT, run_id)), run_id


async def test_a_run_goes_from_a_folder_to_a_file_and_back(tmp_path: Path) -> None:
    await usual(tmp_path / "one")
    content = await bundle_of(tmp_path / "one")
    async with await SqliteStore.open(tmp_path / "store.db", inline=True) as file:
        assert await import_bundle(file, read_bundle(content))
        assert not [part.findings async for part in verify_all(file) if part.findings]
        run = await file.get_run(TENANT, RUN)
        assert run is not None
        assert run.status == "COMPLETED"
        signal = await file.get_signal(TENANT, run.signal_id)
        assert signal is not None
        assert (signal.source_channel, signal.source_id, signal.status) == ("folder", RUN, "PROCESSED")
        assert await export_bundle(file, TENANT, run.correlation_id) == content
    async with await FolderStore.open(tmp_path / "two", inline=True) as folder:
        assert await import_bundle(whole(folder), read_bundle(content))
        assert not await import_bundle(whole(folder), read_bundle(content)), "it is there already"
    for name in (log_file(tmp_path), tmp_path / "runs" / RUN / "snapshot.json"):
        one, two = (tmp_path / root / name.relative_to(tmp_path) for root in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    await prove(tmp_path / "two")
    assert await bundle_of(tmp_path / "two") == content


async def test_a_run_of_the_engine_goes_into_a_folder(tmp_path: Path) -> None:
    content, run_id = await sqlite_bundle(tmp_path / "store.db")
    async with await FolderStore.open(tmp_path / "root", inline=True) as folder:
        assert await import_bundle(whole(folder), read_bundle(content))
        assert not [part.findings async for part in verify_all(whole(folder)) if part.findings]
        assert [run.id for run in await folder.list_runs(TENANT)] == [run_id]
        shown = await folder.snapshot(TENANT, run_id)
        assert shown is not None
        assert shown.status == "COMPLETED"
    await prove(tmp_path / "root", run_id)
    assert await bundle_of(tmp_path / "root", run_id) == content


async def test_an_unfinished_run_goes_only_when_asked_for_and_then_goes_on(tmp_path: Path) -> None:
    await usual(tmp_path / "one", events=EVENTS[:-3])
    bundle = read_bundle(await bundle_of(tmp_path / "one"))
    async with await FolderStore.open(tmp_path / "two", inline=True) as folder:
        with pytest.raises(CommandRefused, match="--unfinished"):
            await import_bundle(whole(folder), bundle)
        assert not list(await folder.run_ids())
        assert await import_bundle(whole(folder), bundle, unfinished=True)
        await Writer(folder, seed=4).record(*EVENTS[-3:])
    assert (await prove(tmp_path / "two"))[1].run_state == "DONE"


async def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    await usual(tmp_path / "one")
    bundle = read_bundle(await bundle_of(tmp_path / "one"))
    await usual(tmp_path / "two", events=EVENTS[:3])
    before = log_file(tmp_path / "two").read_bytes()
    async with await FolderStore.open(tmp_path / "two", inline=True) as folder:
        with pytest.raises(CommitRefused):
            await import_bundle(whole(folder), bundle)
    assert log_file(tmp_path / "two").read_bytes() == before


async def test_a_folder_in_which_somebody_keeps_other_things_is_left_alone(tmp_path: Path) -> None:
    await usual(tmp_path / "one")
    bundle = read_bundle(await bundle_of(tmp_path / "one"))
    kept = tmp_path / "two" / "runs" / RUN / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    async with await FolderStore.open(tmp_path / "two", inline=True) as folder:
        with pytest.raises(CommitRefused, match="the folder"):
            await import_bundle(whole(folder), bundle)
    assert kept.read_text() == "mine"
    assert not (tmp_path / "two" / "signals").exists(), "all or nothing"


async def test_a_folder_takes_no_other_commit(tmp_path: Path) -> None:
    clock = VirtualClock()
    new_id = SeededIds(1, clock)
    history = five_step_history(tenant_id=TENANT, clock=clock, new_id=new_id)
    async with await FolderStore.open(tmp_path, inline=True) as folder:
        with pytest.raises(CommandRefused, match="SQLite file or PostgreSQL"):
            await folder.commit(history[1].commit)


async def test_what_outlives_runs_has_no_place_in_a_folder_of_them(tmp_path: Path) -> None:
    """§STO-1: it says so, whether a bundle of it comes or an event, and leaves nothing behind."""
    clock = VirtualClock()
    async with await SqliteStore.open(tmp_path / "source.db", clock=clock) as source:
        scene = Scene(lambda clock: FolderStore.open(tmp_path), source, clock)
        entity = await put(scene, {"a": 1})
        content = await export_bundle(source, scene.tenant_id, entity.stream_id)
    (stream,) = read_bundle(content).streams
    folder = await FolderStore.open(tmp_path / "runs")
    with pytest.raises(CommitRefused, match="has no place for what outlives them"):
        await import_bundle(cast(Store, folder), read_bundle(content))
    with pytest.raises(CommitRefused, match="has no place for what outlives them"):
        await folder.append(draft(stream.events[0]))
    await folder.close()
    assert not (tmp_path / "runs" / ".arriving.new").exists()


async def test_a_key_names_one_run(tmp_path: Path) -> None:
    async with await FolderStore.open(tmp_path, inline=True) as folder:
        writer = Writer(folder)
        other = RUN[:-1] + "e"
        for _ in range(2):
            await folder.create(TENANT, RUN, plan_id="p", key="nightly", context=writer.context())
        with pytest.raises(DuplicateKey, match="nightly"):
            await folder.create(TENANT, other, plan_id="p", key="nightly", context=writer.context())
        found = await folder.find_run(TENANT, "nightly")
        assert found is not None
        assert found.id == RUN
        assert await folder.find_run(writer.new_id(), "nightly") is None
        assert await folder.find_run(TENANT, "weekly") is None


async def test_an_import_that_is_cut_off_anywhere_is_whole_or_not_there(tmp_path: Path) -> None:
    """§STO-45"""
    await usual(tmp_path / "one")
    content = await bundle_of(tmp_path / "one")
    bundle = read_bundle(content)

    async def take_in(at: int | None) -> FallingDisk:
        (tmp_path / "root").mkdir()
        disk = FallingDisk(at)
        folder = await FolderStore.open(tmp_path / "root", inline=True, disk=disk)
        with suppress(Fallen):
            await import_bundle(whole(folder), bundle)
        folder.forsake()
        disk.after_power_loss(tmp_path / "root", tmp_path / "unplugged")
        disk.let_go()
        return disk

    calls = (await take_in(None)).calls
    outcomes = set()
    for at in range(1, len(calls) + 2):
        for name in ("root", "unplugged"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        await take_in(at)
        for name in ("root", "unplugged"):
            root = tmp_path / name
            async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as folder:
                runs, signals = len(await folder.run_ids()), await folder.count_events()
                assert (runs, signals) in ((0, 0), (1, bundle.events)), f"{at} {calls[at - 1 : at]} {name}"
                outcomes.add(runs)
                assert await import_bundle(whole(folder), bundle) == (not runs)
            await prove(root)
            assert await bundle_of(root) == content
    assert outcomes == {0, 1}


async def test_the_audit_finds_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    await usual(tmp_path)
    log = log_file(tmp_path).read_bytes()
    snapshot = tmp_path / "runs" / RUN / "snapshot.json"
    good = snapshot.read_bytes()

    async def found() -> list[str]:
        async with await FolderStore.open(tmp_path, inline=True) as folder:
            parts = [part async for part in verify_all(whole(folder))]
            return [str(finding) for part in parts for finding in part.findings]

    assert await found() == []
    snapshot.write_bytes(good.replace(b'"DONE"', b'"FAILED"'))
    assert any("not what its log adds up to" in finding for finding in await found())
    snapshot.write_bytes(good)
    log_file(tmp_path).write_bytes(log + b'{"half')
    assert any("to be set aside" in finding for finding in await found())
    log_file(tmp_path).write_bytes(log.replace(b'"INGESTED"', b'"DIGESTED"', 1))
    assert any("it was changed" in finding for finding in await found())
