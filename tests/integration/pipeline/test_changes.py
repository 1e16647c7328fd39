"""What was changed since a run was left: artifacts and code, and what is made again because of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import runstone as rs
from runstone.core import payloads
from tests.integration.pipeline.press import (
    Crash,
    Press,
    artifact,
    files,
    index,
    opened,
    state_of,
    stopped_at,
    told,
)


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
