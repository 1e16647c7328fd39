"""Taking a run up again: where it goes on, what is made again, and what is left alone."""

from __future__ import annotations

import errno
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.core import payloads
from runstone.core.pipeline import PipelineState
from runstone.errors import CommandRefused, StoreError, StoreFull, StoreReadOnly
from runstone.pipeline import files as pipeline_files
from runstone.pipelines import Pipelines
from tests.integration.pipeline.press import Crash, Press, files, index, opened, told


async def stopped_at(pipelines: Pipelines, press: Press, item: str, **options: Any) -> str:
    """A run whose process died while it did an item."""
    run_id = pipelines.new_id()
    press.before = _die(item)
    with pytest.raises(Crash):
        await pipelines.run(press.pipeline, run_id=run_id, **options)
    press.before = lambda name: None
    press.calls.clear()
    return run_id


def _die(at: str) -> Callable[[str], None]:
    def die(item: str) -> None:
        if item == at:
            raise Crash

    return die


async def state_of(pipelines: Pipelines, run_id: str) -> PipelineState:
    _, state = await pipelines.look(run_id)
    return state


def artifact(pipelines: Pipelines, run_id: str, name: str) -> Path:
    return pipelines.folders.folder(run_id) / "artifacts" / name


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
            press.before = _die("fix#2")
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


class TestChangedArtifacts:
    """§PIP-25 to §PIP-27"""

    async def test_only_what_was_made_from_it_is_made_again(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            artifact(pipelines, run_id, "facts/a.json").write_text('{"letters":9}')
            outcome = await pipelines.resume(press.pipeline, run_id)
            events = await pipelines.events(run_id)
            state = await state_of(pipelines, run_id)
            made = files(pipelines.folders.folder(run_id))
        assert outcome.run_state == "DONE"
        assert press.calls == Counter(
            {"draft/one": 1, "link/one": 1, "validate": 2, "fix#2": 1, "request": 1}
        )
        assert made["site/one.md"] == b"T\nfacts/a.json 9\ndone"
        assert told(events, payloads.ResumeRewind) == [
            {"from_state": "READY_FOR_PR", "to_state": "PLAN_READY"}
        ]
        stale = [(e["name"], e["because"]) for e in told(events, payloads.ArtifactInvalidated)]
        assert stale[1:4] == [
            ("drafts/one.md", "facts/a.json"),
            ("site/one.md", "drafts/one.md"),
            ("report.json", "site/one.md"),
        ]
        assert not any(found.stale for found in state.artifacts.values())
        assert state.artifacts["facts/a.json"].writer_worker == "external"
        assert state.work_items["facts/a"].starts == 1

    async def test_a_file_that_is_gone_is_made_again(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            before = index(await state_of(pipelines, run_id))
            artifact(pipelines, run_id, "facts/b.json").unlink()
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            state = await state_of(pipelines, run_id)
            events = await pipelines.events(run_id)
        assert press.calls == Counter({"facts/b": 1, "request": 1})
        after = index(state)
        assert {name: after[name] for name in before} == before
        stands = {event["name"] for event in told(events, payloads.ArtifactRevalidated)}
        assert stands == {"drafts/two.md", "site/two.md", "report.json"}

    async def test_the_cascade_is_cut_off_where_nothing_changes(self, tmp_path: Path, press: Press) -> None:
        """§PIP-27: another source with the same facts."""
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            artifact(pipelines, run_id, "sources/a.txt").write_text("alpHa")
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            events = await pipelines.events(run_id)
        assert press.calls == Counter({"facts/a": 1, "request": 1})
        stale = {event["name"] for event in told(events, payloads.ArtifactInvalidated)[-4:]}
        assert stale == {"facts/a.json", "drafts/one.md", "site/one.md", "report.json"}

    async def test_an_edit_of_a_page_is_kept_and_looked_at(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            artifact(pipelines, run_id, "site/two.md").write_text("by hand")
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "DONE"
            assert artifact(pipelines, run_id, "site/two.md").read_text() == "by hand"
        assert press.calls == Counter({"validate": 1, "request": 1})

    async def test_an_edit_is_held_to_the_schema(self, tmp_path: Path) -> None:
        """§PIP-37"""
        pipeline = rs.Pipeline("p")
        deadly = True

        @pipeline.item("CREATED", outputs=[rs.Output("n.json", schema={"type": "number"})])
        def count(work: rs.Work) -> None:
            work.write_json("n.json", 1)

        @pipeline.item("INGESTED", inputs=["n.json"])
        def stop(work: rs.Work) -> None:
            if deadly:
                raise Crash

        async with opened(tmp_path) as pipelines:
            run_id = pipelines.new_id()
            with pytest.raises(Crash):
                await pipelines.run(pipeline, run_id=run_id)
            deadly = False
            number = artifact(pipelines, run_id, "n.json")
            number.write_text('"two"')
            with pytest.raises(rs.RunstoneError, match=r"does not fit its schema.*remove the file"):
                await pipelines.resume(pipeline, run_id)
            number.write_text("2")
            assert (await pipelines.resume(pipeline, run_id)).run_state == "DONE"
            state = await state_of(pipelines, run_id)
        assert state.work_items["count"].starts == 1

    async def test_a_link_in_place_of_a_file_is_refused(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "request")
            outside = tmp_path / "outside"
            outside.write_text("x")
            page = artifact(pipelines, run_id, "site/two.md")
            page.unlink()
            page.symlink_to(outside)
            with pytest.raises(rs.RunstoneError, match=r"'site/two.md' cannot be reached: a link"):
                await pipelines.resume(press.pipeline, run_id)

    async def test_a_key_that_is_no_more_takes_its_artifacts_along(
        self, tmp_path: Path, press: Press
    ) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = await stopped_at(pipelines, press, "draft/one")
            del press.sources["c"]
            press.sources["d"] = "delta"
            await pipelines.resume(press.pipeline, run_id, force=["clone"])
            state = await state_of(pipelines, run_id)
            there = files(pipelines.folders.folder(run_id))
        assert [name for name in there if name.startswith(("facts", "sources"))] == [
            *("facts/a.json", "facts/b.json", "facts/d.json"),
            *("sources/a.txt", "sources/b.txt", "sources/d.txt"),
        ]
        assert state.artifacts["facts/c.json"].stale
        assert state.artifacts["sources/c.txt"].stale
        # The page that wanted it says so.
        assert state.run_state == "FAILED"
        assert "needs 'facts/c.json'" in list(state.issues.values())[-1].message


class TestChangedCode:
    """The pipeline's code may change between two processes."""

    async def test_what_nobody_makes_any_more_is_not_used_when_it_is_stale(self, tmp_path: Path) -> None:
        """§PIP-26"""

        def declare(*, whole: bool) -> rs.Pipeline:
            pipeline = rs.Pipeline("p")
            pipeline.item("CREATED", outputs=["a"], name="begin")(lambda work: work.write("a", "1"))
            if whole:
                pipeline.item("INGESTED", inputs=["a"], outputs=["b"], name="go_on")(
                    lambda work: work.write("b", work.text("a"))
                )
            pipeline.item("FACTS_READY", inputs=["b"], name="end")(_stop if whole else lambda work: None)
            return pipeline

        def _stop(work: rs.Work) -> None:
            raise Crash

        async with opened(tmp_path) as pipelines:
            run_id = pipelines.new_id()
            with pytest.raises(Crash):
                await pipelines.run(declare(whole=True), run_id=run_id)
            artifact(pipelines, run_id, "a").write_text("2")
            outcome = await pipelines.resume(declare(whole=False), run_id)
        assert "'end' needs 'b', which is stale" in outcome.message

    async def test_keys_that_can_no_longer_be_told_fail_the_run_where_they_are_needed(
        self, tmp_path: Path
    ) -> None:
        broken: list[Exception] = []

        def keys(read: rs.Reader) -> list[str]:
            if broken:
                raise broken[0]
            return ["x"]

        pipeline = rs.Pipeline("p")
        pipeline.item("CREATED", each=keys, name="begin")(lambda work, key: None)

        @pipeline.item("INGESTED")
        def stop(work: rs.Work) -> None:
            raise Crash

        async with opened(tmp_path) as pipelines:
            run_id = pipelines.new_id()
            with pytest.raises(Crash):
                await pipelines.run(pipeline, run_id=run_id)
            broken.append(KeyError("no plan"))
            outcome = await pipelines.resume(pipeline, run_id)
            events = await pipelines.events(run_id)
        assert told(events, payloads.ResumeRewind) == [{"from_state": "INGESTED", "to_state": "CREATED"}]
        assert outcome.message == "begin: KeyError: 'no plan'"


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


class TestReuse:
    async def test_touching_one_source_makes_only_what_depends_on_it(
        self, tmp_path: Path, press: Press
    ) -> None:
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            press.calls.clear()
            press.sources["b"] = "another"
            second = (await pipelines.run(press.pipeline, reuse=first)).run_id
            reused = await state_of(pipelines, second)
            made = files(pipelines.folders.folder(second))
        called = {name for name in press.calls if name.startswith(("facts", "draft"))}
        assert called == {"facts/b", "draft/two"}
        assert reused.work_items["draft/one"].reused_from == first
        assert reused.work_items["draft/two"].reused_from is None
        assert reused.section_states == {"one": "LINKED", "two": "LINKED"}
        fresh = Press()
        fresh.sources["b"] = "another"
        async with opened(tmp_path / "clean") as pipelines:
            clean = (await pipelines.run(fresh.pipeline)).run_id
            assert files(pipelines.folders.folder(clean)) == made

    async def test_what_has_no_inputs_or_acts_outside_is_done(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            press.calls.clear()
            await pipelines.run(press.pipeline, reuse=first)
        # The pages of the first run were mended in place, so they are linked, judged and mended here too.
        assert press.calls == Counter(
            {"clone": 1, "link/one": 1, "link/two": 1, "validate": 2, "fix#1": 1, "request": 1}
        )

    async def test_wishes_are_made(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            press.calls.clear()
            await pipelines.run(press.pipeline, reuse=first, force=["facts/a"], from_state="LINKING")
        assert press.calls["facts/a"] == 1
        assert press.calls["facts/b"] == press.calls["draft/one"] == 0
        assert press.calls["link/one"] == 1

    @pytest.mark.parametrize("other", ["version", "parameter"])
    async def test_what_other_code_or_parameters_made_is_not_reused(
        self, tmp_path: Path, press: Press, other: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Both go into the pages, and neither is an artifact whose hash would tell."""
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            press.calls.clear()
            if other == "version":
                press.pipeline.version = "2"
            params = {"title": "U"} if other == "parameter" else {}
            second = (await pipelines.run(press.pipeline, reuse=first, params=params)).run_id
            page = artifact(pipelines, second, "drafts/one.md").read_text()
        assert press.calls["facts/a"] == press.calls["draft/one"] == 1
        assert page.startswith("U" if other == "parameter" else "T")
        assert "all is made anew" in caplog.text

    async def test_a_run_that_was_stopped_goes_on_reusing(self, tmp_path: Path, press: Press) -> None:
        """It knows from which run, and what it was told to make anew."""
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            second = await stopped_at(pipelines, press, "clone", reuse=first, force=["draft/two"])
            await pipelines.resume(press.pipeline, second)
            state = await state_of(pipelines, second)
        assert press.calls["facts/a"] == press.calls["draft/one"] == 0
        assert press.calls["draft/two"] == 1
        assert state.work_items["draft/one"].reused_from == first

    async def test_a_run_to_reuse_that_is_gone(
        self, tmp_path: Path, press: Press, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            second = await stopped_at(pipelines, press, "clone", reuse=first)
        shutil.rmtree(tmp_path / "runs" / first)
        async with opened(tmp_path) as pipelines:
            assert (await pipelines.resume(press.pipeline, second)).run_state == "DONE"
        assert "cannot be reused any more" in caplog.text

    async def test_a_damaged_file_is_not_reused(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            first = (await pipelines.run(press.pipeline)).run_id
            artifact(pipelines, first, "facts/a.json").write_text("{}")
            press.calls.clear()
            await pipelines.run(press.pipeline, reuse=first)
        assert press.calls["facts/a"] == 1
        assert press.calls["facts/b"] == 0

    async def test_a_failed_run_can_be_reused(self, tmp_path: Path, press: Press) -> None:
        def fail(item: str) -> None:
            if item == "draft/two":
                raise ValueError

        async with opened(tmp_path) as pipelines:
            press.before = fail
            first = (await pipelines.run(press.pipeline)).run_id
            press.before = lambda name: None
            press.calls.clear()
            outcome = await pipelines.run(press.pipeline, reuse=first)
        assert outcome.run_state == "DONE"
        assert press.calls["draft/one"] == 0
        assert press.calls["draft/two"] == 1


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
