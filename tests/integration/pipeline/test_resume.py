"""Taking a run up again: where it goes on, and what stops it."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from pathlib import Path

import pytest

import runstone as rs
from runstone.core import payloads
from runstone.errors import CommandRefused, StoreError, StoreFull, StoreReadOnly
from runstone.pipeline import files as pipeline_files
from tests.integration.pipeline.press import Crash, Press, dies_at, opened, state_of, stopped_at, told


class TestDisk:
    """§PIP-32: a disk that is full is no fault of the work."""

    @pytest.mark.parametrize(
        ("number", "expected"),
        [(errno.ENOSPC, StoreFull), (errno.EROFS, StoreReadOnly), (errno.EIO, StoreError)],
    )
    async def test_what_cannot_be_put_on_disk_stops_the_run_and_does_not_fail_it(
        self,
        tmp_path: Path,
        press: Press,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        expected: type[StoreError],
    ) -> None:
        def full(name: str, content: bytes, folder: int) -> None:
            if name == "b.json":
                raise OSError(number, "as the system says")
            replace(name, content, folder)

        replace = pipeline_files._replace
        monkeypatch.setattr(pipeline_files, "_replace", full)
        async with opened(tmp_path) as pipelines:
            run_id = pipelines.new_id()
            with pytest.raises(expected, match=r"artifacts/facts/b\.json: .*as the system says"):
                await pipelines.run(press.pipeline, run_id=run_id)
            run, state = await pipelines.look(run_id)
            assert (run.status, state.run_state, state.issues) == ("RUNNING", "INGESTED", {})
        monkeypatch.undo()
        async with opened(tmp_path) as pipelines:
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            item = (await state_of(pipelines, run_id)).work_items["facts/b"]
            assert [each.error and each.error.code for each in item.tries] == ["INTERRUPTED", None]


class TestRewinding:
    """§PIP-20 to §PIP-22"""

    @pytest.mark.parametrize(
        ("item", "found_in", "rewound_to"),
        [
            ("draft/two", "DRAFTING", "PLAN_READY"),
            ("link/one", "LINKING", "DRAFT_READY"),
            ("validate", "VALIDATING", "DRAFT_READY"),
            ("fix#1", "FIXING", "DRAFT_READY"),
        ],
    )
    async def test_from_a_transitional_state(
        self,
        tmp_path: Path,
        press: Press,
        caplog: pytest.LogCaptureFixture,
        item: str,
        found_in: str,
        rewound_to: str,
    ) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, item)
            assert (await state_of(pipelines, run_id)).run_state == found_in
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            events = await pipelines.events(run_id)
        assert told(events, payloads.ResumeRewind) == [{"from_state": found_in, "to_state": rewound_to}]
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert f"RESUME_REWIND: {found_in} → {rewound_to}" in warnings

    @pytest.mark.parametrize("item", ["clone", "facts/b", "request"])
    async def test_from_any_other_it_goes_on_where_it_stands(
        self, tmp_path: Path, press: Press, item: str
    ) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, item)
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            assert told(await pipelines.events(run_id), payloads.ResumeRewind) == []

    async def test_what_was_done_is_not_done_again(self, tmp_path: Path, press: Press) -> None:
        """§PIP-29"""
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "link/two")
            await pipelines.resume(press.pipeline, run_id)
        assert press.calls == {"link/two": 1, "validate": 2, "fix#1": 1, "request": 1}

    async def test_the_item_in_hand_is_said_to_be_interrupted(self, tmp_path: Path, press: Press) -> None:
        """§PIP-28: its history has every try, with how it ended."""
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "draft/two")
            await pipelines.resume(press.pipeline, run_id)
            item = (await state_of(pipelines, run_id)).work_items["draft/two"]
        assert [(t.status, t.error and t.error.code) for t in item.tries] == [
            ("FAILED", "INTERRUPTED"),
            ("DONE", None),
        ]

    async def test_attempts_at_fixing_survive_a_rewind(self, tmp_path: Path) -> None:
        """§PIP-12: dying in a fix is no way to get another one."""
        press = Press(max_fix_attempts=2)
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "fix#1")
            press.before = dies_at("fix#2")
            with pytest.raises(Crash):
                await pipelines.resume(press.pipeline, run_id)
            press.before = lambda name: None
            outcome = await pipelines.resume(press.pipeline, run_id)
            state = await state_of(pipelines, run_id)
        assert (outcome.run_state, outcome.exit_reason) == ("FAILED", "LoopLimitReached")
        assert state.visits["FIXING"] == 2

    async def test_a_run_that_has_ended_stays_as_it_is(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = (await pipelines.run(press.pipeline)).run_id
            before = await pipelines.events(run_id)
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            assert await pipelines.events(run_id) == before

    async def test_a_graph_without_the_run_s_state_is_refused(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "facts/b")
            other = rs.Pipeline("press", graph=rs.Graph(rs.State("A", to="B"), rs.State("B")))
            with pytest.raises(
                CommandRefused, match="INGESTED, a state that the graph of 'press' does not have"
            ):
                await pipelines.resume(other, run_id)


class TestWishes:
    async def test_a_forced_item_is_done_again_and_only_it(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            await pipelines.resume(press.pipeline, run_id, force=["facts/*"])
            state = await state_of(pipelines, run_id)
        assert press.calls == Counter({"facts/a": 1, "facts/b": 1, "facts/c": 1, "request": 1})
        assert [t.forced for t in state.work_items["facts/a"].tries] == [False, True]

    async def test_all_from_a_state_on(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            outcome = await pipelines.resume(press.pipeline, run_id, from_state="LINKING")
            events = await pipelines.events(run_id)
        assert outcome.run_state == "DONE"
        assert told(events, payloads.ResumeRewind) == [
            {"from_state": "READY_FOR_PR", "to_state": "DRAFT_READY"}
        ]
        assert press.calls == Counter({"link/one": 1, "link/two": 1, "validate": 2, "fix#2": 1, "request": 1})

    async def test_not_from_a_state_that_is_still_ahead(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "facts/b")
            with pytest.raises(CommandRefused, match="cannot go back to LINKING"):
                await pipelines.resume(press.pipeline, run_id, from_state="LINKING")


class TestBrokenFolders:
    """§PIP-17 to §PIP-19"""

    async def test_a_snapshot_that_makes_no_sense_is_made_again(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "link/one")
        (tmp_path / "runs" / run_id / "snapshot.json").write_text('{"run_id": 7}')
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.resume(press.pipeline, run_id)
        assert outcome.run_state == "DONE"
        assert outcome.notes

    async def test_a_log_that_is_gone_ends_the_run(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "link/one")
        (tmp_path / "runs" / run_id / "events.ndjson").unlink()
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.resume(press.pipeline, run_id)
            state = await state_of(pipelines, run_id)
        assert outcome.run_state == "FAILED"
        assert [(i.code, i.severity) for i in state.issues.values()] == [("SnapshotInvalid", "BLOCKER")]
        assert press.calls == {}
