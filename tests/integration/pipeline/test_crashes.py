"""A process that dies before or after any event: the run goes on and ends the same, nothing done twice."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from runstone.core.payloads import WorkItemCompleted
from runstone.pipelines import Pipelines
from runstone.stores.folder import FolderStore
from tests.integration.pipeline.press import Crash, Hasty, Mortal, Press, files, index, opened, told

EVENTS = 65
"""How many events one run records, its creation apart."""


async def events_of_one_run(root: Path) -> tuple[int, dict[str, bytes], dict[str, tuple[str, str, bool]]]:
    async with opened(root) as pipelines:
        outcome = await pipelines.run(Press().pipeline)
        events = await pipelines.events(outcome.run_id)
        _, state = await pipelines.look(outcome.run_id)
        return len(events) - 2, files(pipelines.folders.folder(outcome.run_id)), index(state)


async def test_the_number_of_events_is_known(tmp_path: Path) -> None:
    count, _, _ = await events_of_one_run(tmp_path)
    assert count == EVENTS


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, EVENTS + 1))
async def test_a_crash_at_any_event(tmp_path: Path, at: int, after: bool) -> None:
    """§PIP-22, §PIP-24, §PIP-29: with the artifacts of a run that nothing happened to."""
    _, wanted_files, wanted_index = await events_of_one_run(tmp_path / "whole")
    press = Press()
    run_id = await die(tmp_path / "cut", press, at, after)
    async with opened(tmp_path / "cut") as pipelines:
        done_before = {name for name, item in (await state_of(pipelines, run_id)).items() if item == "DONE"}
        called_before = Counter(press.calls)
        outcome = await pipelines.resume(press.pipeline, run_id)
        assert outcome.run_state == "DONE"
        folder = pipelines.folders.folder(run_id)
        assert files(folder) == wanted_files
        _, state = await pipelines.look(run_id)
        assert index(state) == wanted_index
        assert (folder / "snapshot.json").read_bytes() == await pipelines.folders.replay(
            pipelines.tenant_id, run_id
        )
        repeated = {name for name in done_before if press.calls[name] > called_before[name]}
        # A validation whose pages a mend has changed since is due again, crash or none.
        assert repeated <= {"validate"}
        completed = Counter(done["item"] for done in told(await pipelines.events(run_id), WorkItemCompleted))
        assert {name: count for name, count in completed.items() if count > 1} == {"validate": 2}
        assert (await pipelines.folders.run(pipelines.tenant_id, run_id)).status == "COMPLETED"  # type: ignore[union-attr]


async def die(root: Path, press: Press, at: int, after: bool) -> str:
    store = await FolderStore.open(root, inline=True, disk=Hasty())
    pipelines = Pipelines(Mortal(store, at, after=after))
    run_id = pipelines.new_id()
    with pytest.raises(Crash):
        await pipelines.run(press.pipeline, run_id=run_id)
    await store.close()
    return run_id


async def state_of(pipelines: Pipelines, run_id: str) -> dict[str, str]:
    _, state = await pipelines.look(run_id)
    return {name: item.status for name, item in state.work_items.items()}


@pytest.mark.parametrize("at", range(1, 16))
async def test_a_crash_between_a_file_and_its_event(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§PIP-24: files are there, the log does not know of them; they are made again, the same."""
    _, wanted_files, wanted_index = await events_of_one_run(tmp_path / "whole")
    press, left, replace = Press(), at, os.replace

    def mortal(source: str, target: str, **more: int) -> None:
        nonlocal left
        replace(source, target, **more)
        left -= "src_dir_fd" in more
        if left == 0:
            raise Crash

    async with opened(tmp_path / "cut") as pipelines:
        run_id = pipelines.new_id()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", mortal)
            with pytest.raises(Crash):
                await pipelines.run(press.pipeline, run_id=run_id)
    async with opened(tmp_path / "cut") as pipelines:
        assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
        assert files(pipelines.folders.folder(run_id)) == wanted_files
        _, state = await pipelines.look(run_id)
        assert index(state) == wanted_index
