"""Runs that take over what another run has made, and what they make themselves."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.pipeline.press import Press, artifact, files, opened, state_of, stopped_at


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
