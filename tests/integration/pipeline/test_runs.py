"""A pipeline from its start to its end: what is recorded, what fails it, what is not done again."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.core import payloads
from runstone.core.chain import event_hash
from runstone.core.codec import canonical
from runstone.core.commit import Context
from runstone.errors import CommandRefused, NotFound, RegistrationError, StateTransitionError, StoreBusy
from runstone.pipeline.runner import Progress
from runstone.ports.clock import SystemClock, new_id
from tests.integration.pipeline.press import COMMIT, Press, files, opened, told

ITEMS = ["clone", "draft/one", "draft/two", "facts/a", "facts/b", "facts/c", "fix#1", "link/one", "link/two"]


class TestAWholeRun:
    async def test_every_item_is_done_and_the_run_completes(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(press.pipeline, params={"title": "Manual"})
            run, state = await pipelines.look(outcome.run_id)
            made = files(pipelines.folders.folder(outcome.run_id))
        assert (outcome.run_state, outcome.exit_reason) == ("DONE", None)
        assert run.status == "COMPLETED"
        assert sorted(state.work_items) == [*ITEMS, "request", "validate"]
        assert all(item.status == "DONE" for item in state.work_items.values())
        assert press.calls == {**dict.fromkeys(ITEMS, 1), "request": 1, "validate": 2}
        assert made["site/two.md"] == b"Manual\nfacts/b.json 4\nfacts/c.json 5\ndone"
        assert state.section_states == {"one": "LINKED", "two": "LINKED"}
        assert [commit.sha for commit in state.commits] == [COMMIT]
        assert [(issue.issue, issue.status) for issue in state.issues.values()] == [
            ("todo/site/one.md", "RESOLVED"),
            ("todo/site/two.md", "RESOLVED"),
        ]

    async def test_it_passes_the_states_of_its_graph(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(press.pipeline)
            moves = told(await pipelines.events(outcome.run_id), payloads.RunStateChanged)
        path = [move["to_state"] for move in moves]
        assert path[:9] == list(rs.DOCS_GRAPH.names[:9])
        assert path[9:] == ["FIXING", "VALIDATING", "READY_FOR_PR", "PR_OPENED", "DONE"]
        assert [move.get("from_state") for move in moves] == [None, *path[:-1]]

    async def test_every_event_has_its_trace_and_span_and_place(self, tmp_path: Path, press: Press) -> None:
        """§EVT-3, §PIP-4: all of one trace; those of one work item of one span."""
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(press.pipeline)
            events = await pipelines.events(outcome.run_id)
        assert {event.trace_id for event in events} == {events[0].correlation_id.replace("-", "")}
        assert all(int(event.span_id, 16) for event in events)
        assert len({event.id for event in events}) == len(events)
        assert [event.run_seq for event in events] == list(range(1, len(events) + 1))
        assert [event.prev_hash for event in events[1:]] == [event_hash(event) for event in events[:-1]]
        spans = [event.span_id for event in events if event.event_type.startswith("WORK_ITEM")]
        assert len(set(spans)) == len(spans) / 2

    async def test_two_runs_record_the_same_but_for_ids_and_times(self, tmp_path: Path) -> None:
        """§PIP-30: the order depends on the declaration alone."""
        told_of = []
        for root in ("a", "b"):
            async with opened(tmp_path / root) as pipelines:
                outcome = await pipelines.run(Press().pipeline)
                events = await pipelines.events(outcome.run_id)
                told_of.append([(event.event_type, bytes(event.event_data)) for event in events[2:]])
        assert told_of[0] == told_of[1]

    async def test_progress_is_shown(self, tmp_path: Path, press: Press) -> None:
        seen: list[Progress] = []
        async with opened(tmp_path, watch=seen.append) as pipelines:
            await pipelines.run(press.pipeline)
        drafting = [at for at in seen if at.state == "DRAFTING"]
        assert [(at.item, at.done, at.total) for at in drafting] == [
            ("draft/one", 0, 2),
            ("draft/two", 1, 2),
            ("", 2, 2),
        ]


class TestFailing:
    """§PIP-32: a complete trail and a final snapshot."""

    async def test_an_item_that_raises_ends_the_run(
        self, tmp_path: Path, press: Press, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(item: str) -> None:
            if item == "draft/two":
                raise ValueError("no ink\0left")

        press.before = fail
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(press.pipeline)
            run, state = await pipelines.look(outcome.run_id)
            events = await pipelines.events(outcome.run_id)
            shown = (pipelines.folders.folder(outcome.run_id) / "snapshot.json").read_bytes()
            replayed = await pipelines.folders.replay(pipelines.tenant_id, outcome.run_id)
        assert (outcome.run_state, outcome.exit_reason) == ("FAILED", "WorkItemFailed")
        assert outcome.message == "draft/two: ValueError: no ink\N{REPLACEMENT CHARACTER}left"
        assert [event.event_type for event in events[-5:]] == [
            "WORK_ITEM_STARTED",
            "WORK_ITEM_FAILED",
            "ISSUE_OPENED",
            "RUN_STATE_CHANGED",
            "RUN_FAILED",
        ]
        assert (run.status, state.run_state) == ("FAILED", "FAILED")
        item = state.work_items["draft/two"]
        assert item.error is not None
        assert (item.status, item.error.code) == ("FAILED", "ValueError")
        assert [(i.severity, i.status) for i in state.issues.values()] == [("BLOCKER", "OPEN")]
        assert shown == replayed
        assert b'"run_state":"FAILED"' in shown
        assert any(record.levelno == logging.ERROR for record in caplog.records)

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_an_item_that_exits_ends_the_run_and_not_the_process(
        self, tmp_path: Path, threaded: bool
    ) -> None:
        pipeline = rs.Pipeline("p")

        def leaves(work: rs.Work) -> None:
            sys.exit(4)

        async def leaves_the_loop(work: rs.Work) -> None:
            sys.exit(4)

        pipeline.item("CREATED", name="leaves")(leaves if threaded else leaves_the_loop)
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(pipeline)
            _, state = await pipelines.look(outcome.run_id)
        assert (outcome.run_state, outcome.message) == ("FAILED", "leaves: SystemExit: 4")
        item = state.work_items["leaves"]
        assert item.error is not None
        assert item.error.code == "SystemExit"

    async def test_what_a_failed_item_had_written_is_not_there(self, tmp_path: Path) -> None:
        pipeline = rs.Pipeline("p")

        @pipeline.item("CREATED", outputs=["a"])
        def half(work: rs.Work) -> None:
            work.write("a", "half")
            work.open_issue("i", "Code")
            raise RuntimeError("cut off")

        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(pipeline)
            _, state = await pipelines.look(outcome.run_id)
            assert files(pipelines.folders.folder(outcome.run_id)) == {}
        assert state.artifacts == {}
        assert list(state.issues) == ["failed/half"]

    async def test_fixes_that_do_not_help_come_to_an_end(self, tmp_path: Path) -> None:
        """§PIP-12"""
        press = Press(max_fix_attempts=2, mends=False)
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(press.pipeline)
            run, state = await pipelines.look(outcome.run_id)
        assert (outcome.run_state, run.exit_reason) == ("FAILED", "LoopLimitReached")
        assert state.visits["FIXING"] == 2
        assert (press.calls["fix#1"], press.calls["fix#2"], press.calls["fix#3"]) == (1, 1, 0)
        assert press.calls["validate"] == 1  # nothing it reads has changed
        assert [issue.code for issue in state.issues.values()] == ["Todo", "Todo", "LoopLimitReached"]

    async def test_a_choice_that_raises_ends_the_run(self, tmp_path: Path) -> None:
        def choose(state: object) -> str:
            raise KeyError("lost")

        graph = rs.Graph(
            rs.State("A", to=("B", "END"), choose=choose), rs.State("B", to="END"), rs.State("END")
        )
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(rs.Pipeline("p", graph=graph))
        assert (outcome.run_state, outcome.message) == ("FAILED", "A: KeyError: 'lost'")

    async def test_a_choice_that_the_graph_does_not_have_is_refused(self, tmp_path: Path) -> None:
        """§PIP-14: the state stays, and a mended pipeline can go on."""
        choice = ["ELSEWHERE"]
        graph = rs.Graph(
            rs.State("A", to=("B", "END"), choose=lambda state: choice[0]),
            rs.State("B", to="END"),
            rs.State("END"),
        )
        pipeline = rs.Pipeline("p", graph=graph)
        async with opened(tmp_path) as pipelines:
            run_id = pipelines.new_id()
            with pytest.raises(StateTransitionError, match="A → ELSEWHERE"):
                await pipelines.run(pipeline, run_id=run_id)
            _, state = await pipelines.look(run_id)
            assert state.run_state == "A"
            choice[0] = "B"
            assert (await pipelines.resume(pipeline, run_id)).run_state == "END"
            events = await pipelines.events(run_id)
        assert told(events, payloads.InvalidStateTransition) == [{"from_state": "A", "to_state": "ELSEWHERE"}]

    async def test_an_input_that_nobody_makes(self, tmp_path: Path) -> None:
        pipeline = rs.Pipeline("p")
        pipeline.item("CREATED", inputs=["a"], name="x")(lambda work: None)
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(pipeline)
        assert outcome.message == "x: ArtifactInvalid: Work item 'x' needs 'a', and nothing has made it"

    async def test_keys_that_cannot_be_told(self, tmp_path: Path) -> None:
        pipeline = rs.Pipeline("p")
        pipeline.item("CREATED", each=lambda read: read.json("plan"), name="x")(lambda work, key: None)
        async with opened(tmp_path) as pipelines:
            outcome = await pipelines.run(pipeline)
        assert outcome.message == "x: ArtifactInvalid: There is no artifact 'plan' yet"


def doing(function: Callable[[rs.Work], object], **declared: Any) -> rs.Pipeline:
    """A pipeline with one item that reads `in` and makes `out`."""
    pipeline = rs.Pipeline("p")

    @pipeline.item("CREATED", outputs=["in", "secret"])
    def begin(work: rs.Work) -> None:
        work.write("in", "text")
        work.write("secret", "text")

    given: dict[str, Any] = {"inputs": ["in"], "outputs": ["out"], **declared}
    pipeline.item("CLONED_INPUTS", name="x", **given)(function)
    return pipeline


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda work: work.read("secret"), "'x' reads 'secret' without saying so: add it to its inputs"),
        (lambda work: work.read("nothing"), "There is no artifact 'nothing'"),
        (lambda work: work.write("other", ""), "'x' makes 'other' without saying so: add it to its outputs"),
        (lambda work: work.write("../out", ""), "'../out' is no name for an artifact"),
        (lambda work: work.resolve_issue("i"), "'x' resolves 'i', which nobody has opened"),
        (lambda work: work.write_json("out", float("nan")), "not a JSON number"),
    ],
)
async def test_what_an_item_must_not_do(
    tmp_path: Path, function: Callable[[rs.Work], object], problem: str
) -> None:
    async with opened(tmp_path) as pipelines:
        outcome = await pipelines.run(doing(function))
    assert outcome.run_state == "FAILED"
    assert problem in outcome.message


async def test_content_that_does_not_fit_its_schema_is_not_written(tmp_path: Path) -> None:
    output = rs.Output("out", schema={"$id": "urn:number", "type": "number"})
    async with opened(tmp_path) as pipelines:
        outcome = await pipelines.run(doing(lambda work: work.write("out", '"x"'), outputs=[output]))
        _, state = await pipelines.look(outcome.run_id)
        assert "does not fit its schema urn:number" in outcome.message
        assert "out" not in state.artifacts
        outcome = await pipelines.run(doing(lambda work: work.write("out", "7"), outputs=[output]))
        _, state = await pipelines.look(outcome.run_id)
    assert state.artifacts["out"].schema_id == "urn:number"


async def test_an_artifact_has_one_maker(tmp_path: Path) -> None:
    pipeline = rs.Pipeline("p")
    for name, state in (("one", "CREATED"), ("two", "INGESTED")):
        pipeline.item(state, outputs=["a"], name=name)(lambda work: work.write("a", work.item))
    async with opened(tmp_path) as pipelines:
        outcome = await pipelines.run(pipeline)
    assert "'a' is made by 'one' already" in outcome.message


async def test_an_item_sees_what_it_wrote_and_what_is_wrong(tmp_path: Path) -> None:
    seen: list[object] = []

    def look(work: rs.Work) -> None:
        work.write("out", "mine")
        seen.extend([work.text("out"), work.names(), work.key, work.issues(), work.scratch.is_dir()])
        work.open_issue("i", "Code", "text", severity="WARNING")
        work.open_issue("i", "Code", "text", severity="WARNING")
        work.resolve_issue("i", "never mind")
        work.log("%d done", 1)

    async with opened(tmp_path) as pipelines:
        outcome = await pipelines.run(doing(look))
        _, state = await pipelines.look(outcome.run_id)
    assert outcome.run_state == "DONE"
    assert seen == ["mine", ["in"], "", [], True]
    assert [(i.severity, i.status, i.resolution) for i in state.issues.values()] == [
        ("WARNING", "RESOLVED", "never mind")
    ]


async def test_a_loop_may_mend_page_by_page(tmp_path: Path) -> None:
    """§PIP-39: the report that asks for two mends is stale after the first, and still asks for the second."""
    pipeline = rs.Pipeline("p")

    @pipeline.item("DRAFTING", each=["a", "b"], outputs=["pages/{key}"])
    def draft(work: rs.Work, key: str) -> None:
        work.write(f"pages/{key}", "bad")

    @pipeline.item("LINKING", inputs=["pages/*"], outputs=["index"])
    def link(work: rs.Work) -> None:
        work.write("index", ",".join(work.text(name) for name in work.names()))

    @pipeline.item("VALIDATING", inputs=["pages/*"], outputs=["report"])
    def validate(work: rs.Work) -> None:
        bad = [name.removeprefix("pages/") for name in work.names() if work.text(name) == "bad"]
        for name in bad:
            work.open_issue(name, "Bad")
        work.write_json("report", bad)

    @pipeline.item(
        "FIXING", each=lambda r: r.json("report"), inputs=["pages/{key}", "report"], outputs=["pages/{key}"]
    )
    def fix(work: rs.Work, key: str) -> None:
        assert key in work.json("report")
        work.write(f"pages/{key}", "good")

    async with opened(tmp_path) as pipelines:
        outcome = await pipelines.run(pipeline)
        _, state = await pipelines.look(outcome.run_id)
        made = files(pipelines.folders.folder(outcome.run_id))
    assert outcome.run_state == "DONE", outcome.message
    # What was made from a page before it was mended is made again, before anybody goes on.
    assert made == {"pages/a": b"good", "pages/b": b"good", "index": b"good,good", "report": b"[]"}
    assert not any(artifact.stale for artifact in state.artifacts.values())
    assert [name for name in sorted(state.work_items) if "#" in name] == ["fix/a#1", "fix/b#1"]
    assert state.work_items["link"].starts == 2


async def test_an_item_that_raises_what_asyncio_cannot_carry(tmp_path: Path) -> None:
    async with opened(tmp_path) as pipelines:
        outcome = await pipelines.run(doing(lambda work: next(iter(()))))
    assert outcome.message == "x: RuntimeError: StopIteration: "


async def test_a_file_that_changes_under_an_item_is_noticed(tmp_path: Path) -> None:
    folders: list[Path] = []

    def read(work: rs.Work) -> None:
        (folders[0] / work.run_id / "artifacts" / "in").write_text("other")
        work.read("in")

    async with opened(tmp_path) as pipelines:
        folders.append(tmp_path / "runs")
        outcome = await pipelines.run(doing(read))
    assert "'in' was changed on disk while the run was under way" in outcome.message


async def test_a_run_that_some_other_program_began(tmp_path: Path) -> None:
    """It has a log and a folder, and does not say of which pipeline it is."""
    async with opened(tmp_path) as pipelines:
        run_id = pipelines.new_id()
        context = Context(now=SystemClock().now(), new_id=new_id, actor="somebody")
        metadata = canonical({"tags": [1]})
        await pipelines.folders.create(
            pipelines.tenant_id, run_id, plan_id="press", metadata=metadata, context=context
        )
        assert await pipelines.about(run_id) is None
        with pytest.raises(CommandRefused, match="was not begun by a pipeline"):
            await pipelines.cancel(run_id, "no")
        assert (await pipelines.resume(Press().pipeline, run_id)).run_state == "FAILED"  # no parameters
        with pytest.raises(NotFound, match="There is no run"):
            await pipelines.look(pipelines.new_id())


async def test_it_opens_and_closes_by_itself(tmp_path: Path, press: Press) -> None:
    async with rs.open_pipelines(tmp_path) as pipelines:
        run_id = (await pipelines.run(press.pipeline)).run_id
    assert (tmp_path / "runs" / run_id / "snapshot.json").exists()


class TestCancelling:
    async def test_a_run_that_nobody_works_on(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = pipelines.new_id()
            press.before = _interrupt
            with pytest.raises(KeyboardInterrupt):
                await pipelines.run(press.pipeline, run_id=run_id)
            await pipelines.cancel(run_id, "no longer needed")
            run, state = await pipelines.look(run_id)
            assert (run.status, run.exit_reason) == ("CANCELLED", "no longer needed")
            assert state.run_state == "CANCELLED"
            assert (await pipelines.resume(press.pipeline, run_id)).run_state == "CANCELLED"
            with pytest.raises(StateTransitionError, match="CANCELLED → CANCELLED"):
                await pipelines.cancel(run_id, "again")

    @pytest.mark.parametrize("cancelled", [True, False])
    async def test_a_run_whose_process_died_before_its_first_state(
        self, tmp_path: Path, press: Press, cancelled: bool
    ) -> None:
        """Just after RUN_CREATED: it can be cancelled, and it can be resumed."""
        async with opened(tmp_path) as pipelines:
            run_id = (await pipelines.run(press.pipeline)).run_id
        log = tmp_path / "runs" / run_id / "events.ndjson"
        log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
        (tmp_path / "runs" / run_id / "snapshot.json").unlink()
        async with opened(tmp_path) as pipelines:
            if cancelled:
                await pipelines.cancel(run_id, "never mind")
            else:
                await pipelines.resume(press.pipeline, run_id)
            run, state = await pipelines.look(run_id)
        wanted = ("CANCELLED", "CANCELLED") if cancelled else ("COMPLETED", "DONE")
        assert (run.status, state.run_state) == wanted

    async def test_a_run_in_another_process_ends_after_its_item(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines, opened(tmp_path) as others:
            run_id = pipelines.new_id()

            def cancel(item: str) -> None:
                if item == "facts/b":
                    others.ask_to_cancel(run_id, "too dear")

            press.before = cancel
            outcome = await pipelines.run(press.pipeline, run_id=run_id)
            _, state = await pipelines.look(run_id)
        assert (outcome.run_state, outcome.exit_reason) == ("CANCELLED", "too dear")
        assert state.work_items["facts/b"].status == "DONE"
        assert "facts/c" not in state.work_items
        assert not (tmp_path / "runs" / run_id / "cancel").exists()

    async def test_a_run_in_hand_is_not_taken_from_it(self, tmp_path: Path) -> None:
        started, go_on = asyncio.Event(), asyncio.Event()
        pipeline = rs.Pipeline("p")

        @pipeline.item("CREATED")
        async def wait(work: rs.Work) -> None:
            started.set()
            await go_on.wait()

        async with opened(tmp_path) as pipelines, opened(tmp_path) as others:
            run_id = pipelines.new_id()
            running = asyncio.ensure_future(pipelines.run(pipeline, run_id=run_id))
            await started.wait()
            with pytest.raises(StoreBusy):
                await others.cancel(run_id, "now")
            with pytest.raises(StoreBusy):
                await others.resume(pipeline, run_id)
            go_on.set()
            assert (await running).run_state == "DONE"


def _interrupt(item: str) -> None:
    if item == "facts/b":
        raise KeyboardInterrupt


class TestAskingForTooMuch:
    async def test_names_are_checked_before_anything_happens(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            with pytest.raises(NotFound, match="no work item 'dratf'"):
                await pipelines.run(press.pipeline, force=["dratf"])
            with pytest.raises(NotFound, match="no state 'NOWHERE'"):
                await pipelines.run(press.pipeline, from_state="NOWHERE")
            with pytest.raises(RegistrationError, match="no parameter"):
                await pipelines.run(press.pipeline, params={"x": "y"})
            with pytest.raises(NotFound):
                await pipelines.run(press.pipeline, reuse=pipelines.new_id())
            assert await pipelines.folders.run_ids() == []

    async def test_a_run_belongs_to_its_pipeline(self, tmp_path: Path, press: Press) -> None:
        async with opened(tmp_path) as pipelines:
            run_id = (await pipelines.run(press.pipeline)).run_id
            with pytest.raises(CommandRefused, match="of pipeline 'press', not of 'other'"):
                await pipelines.resume(rs.Pipeline("other"), run_id)
            with pytest.raises(CommandRefused, match="of pipeline 'press': 'other' cannot reuse it"):
                await pipelines.run(rs.Pipeline("other"), reuse=run_id)
            with pytest.raises(CommandRefused, match="has ended"):
                await pipelines.resume(press.pipeline, run_id, force=["draft"])
