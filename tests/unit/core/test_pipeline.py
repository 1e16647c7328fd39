"""The state of a run that lives in a folder, and its snapshot (§PIP-9)."""

from __future__ import annotations

from typing import Any

import pytest

from runstone.core import codec, payloads
from runstone.core.chain import GENESIS, event_hash
from runstone.core.fold import fold_run
from runstone.core.payloads import Payload
from runstone.core.pipeline import PipelineFold, PipelineState, folder_snapshot
from runstone.errors import CommandRefused, InvalidPayload, StateTransitionError
from tests.unit.core.build import HASH, NOON, OTHER_HASH, SECOND, Story, error


def told(*events: Payload) -> Story:
    story = Story.running()
    story.record(*events)
    return story


def state(story: Story) -> PipelineState:
    assert story.state.pipeline is not None
    return story.state.pipeline


def written(name: str, sha256: str = HASH, **given: Any) -> payloads.ArtifactWritten:
    return payloads.ArtifactWritten(
        name=name, path=f"{name}.json", sha256=sha256, writer_worker="writer", **given
    )


class TestStateGraph:
    """§PIP-13: the fold records where the run went; what may follow what is declared elsewhere."""

    def test_it_is_entered_and_followed(self) -> None:
        story = told(payloads.RunStateChanged(to_state="CREATED"))
        assert state(story).run_state == "CREATED"
        story.record(payloads.RunStateChanged(from_state="CREATED", to_state="INGESTED"))
        assert state(story).run_state == "INGESTED"

    def test_visits_are_counted_whatever_was_rewound(self) -> None:
        """§PIP-12: what bounds the number of fixes."""
        story = told(
            payloads.RunStateChanged(to_state="VALIDATING"),
            payloads.RunStateChanged(from_state="VALIDATING", to_state="FIXING"),
            payloads.RunStateChanged(from_state="FIXING", to_state="VALIDATING"),
            payloads.ResumeRewind(from_state="VALIDATING", to_state="DRAFT_READY"),
        )
        assert state(story).run_state == "DRAFT_READY"
        assert state(story).visits == {"VALIDATING": 2, "FIXING": 1}
        assert state(story).entered == {"VALIDATING": 5, "FIXING": 4, "DRAFT_READY": 6}

    @pytest.mark.parametrize(
        "move",
        [
            payloads.RunStateChanged(from_state="PLAN_READY", to_state="DONE"),
            payloads.RunStateChanged(to_state="DONE"),
            payloads.ResumeRewind(from_state="PLAN_READY", to_state="DONE"),
        ],
    )
    def test_a_move_begins_where_the_run_is(self, move: Payload) -> None:
        story = told(payloads.RunStateChanged(to_state="CREATED"))
        with pytest.raises(StateTransitionError) as refused:
            story.record(move)
        assert (refused.value.aggregate, refused.value.aggregate_id) == ("run state", story.run_id)
        assert (refused.value.from_state, refused.value.to_state) == ("CREATED", "DONE")

    def test_a_refused_move_is_a_fact_that_changes_nothing(self) -> None:
        """§PIP-14"""
        story = told(payloads.RunStateChanged(to_state="CREATED"))
        before = state(story)
        story.record(payloads.InvalidStateTransition(from_state="CREATED", to_state="DONE"))
        assert state(story) == before

    def test_sections_have_states_of_their_own(self) -> None:
        """§PIP-15"""
        story = told(
            payloads.SectionStateChanged(section="intro", state="DRAFTED"),
            payloads.SectionStateChanged(section="end", state="DRAFTED"),
            payloads.SectionStateChanged(section="intro", state="LINKED"),
        )
        assert state(story).section_states == {"intro": "LINKED", "end": "DRAFTED"}
        assert state(story).run_state is None


class TestArtifacts:
    """§PIP-24 to §PIP-26"""

    def test_one_is_written(self) -> None:
        story = told(
            payloads.WorkItemStarted(item="write", worker="w", inputs={"facts": HASH}),
            payloads.WorkItemStarted(item="write", worker="w", inputs={"facts": OTHER_HASH}),
            written("draft", schema_id="draft.v1", item="write"),
        )
        artifact = state(story).artifacts["draft"]
        assert (artifact.path, artifact.sha256, artifact.schema_id) == ("draft.json", HASH, "draft.v1")
        assert (artifact.writer_worker, artifact.ts) == ("writer", story.now)
        assert (artifact.item, artifact.item_start) == ("write", 2)
        assert artifact.inputs == {"facts": OTHER_HASH}
        assert (artifact.stale, artifact.stale_because) == (False, None)

    def test_what_it_was_made_from_stands_with_its_work_item(self) -> None:
        """Not with each artifact: for an item with many inputs and many outputs it would be their product."""
        story = told(
            payloads.WorkItemStarted(item="write", worker="w", inputs={"facts": OTHER_HASH}),
            written("draft", item="write"),
        )
        shown = folder_snapshot(story.run_id, story.state.last_seq, story.state.head, state(story))
        entry = codec.parse(codec.encode(shown))["artifacts_index"]["draft"]
        assert (entry["item"], entry["item_start"]) == ("write", 1)
        assert "inputs" not in entry
        with pytest.raises(CommandRefused, match="There is no work item 'nobody'"):
            story.record(written("draft", item="nobody"))

    def test_one_that_no_work_item_made_stays_made_from_what_it_was(self) -> None:
        """§PIP-25, §PIP-39: an edit, or a mend."""
        story = told(
            payloads.WorkItemStarted(item="write", worker="w", inputs={"facts": HASH}),
            written("draft", item="write"),
            payloads.WorkItemStarted(item="write", worker="w", inputs={"facts": OTHER_HASH}),
            written("draft", OTHER_HASH),
        )
        artifact = state(story).artifacts["draft"]
        assert (artifact.item, artifact.item_start, artifact.inputs) == ("write", 1, {"facts": HASH})
        assert artifact.sha256 == OTHER_HASH

    def test_it_becomes_stale_and_is_made_again(self) -> None:
        story = told(written("facts"), written("draft"))
        story.record(payloads.ArtifactInvalidated(name="draft", because="facts"))
        draft = state(story).artifacts["draft"]
        assert (draft.stale, draft.stale_because) == (True, "facts")
        assert not state(story).artifacts["facts"].stale
        story.record(written("draft", OTHER_HASH))
        draft = state(story).artifacts["draft"]
        assert (draft.stale, draft.stale_because, draft.sha256) == (False, None, OTHER_HASH)

    def test_it_stands_when_all_it_was_made_from_is_as_it_was(self) -> None:
        """§PIP-27"""
        story = told(written("facts"), written("draft"))
        before = state(story).artifacts["draft"]
        story.record(payloads.ArtifactInvalidated(name="draft", because="facts"))
        story.record(payloads.ArtifactRevalidated(name="draft"))
        assert state(story).artifacts["draft"] == before


class TestWorkItems:
    """§PIP-28"""

    def test_one_that_is_done(self) -> None:
        story = told(payloads.WorkItemStarted(item="intro", worker="w-1"))
        running = state(story).work_items["intro"]
        assert (running.status, running.worker, running.starts) == ("RUNNING", "w-1", 1)
        assert (running.started_at, running.ended_at) == (story.now, None)
        story.record(payloads.WorkItemCompleted(item="intro", outputs=("draft",)))
        done = state(story).work_items["intro"]
        assert (done.status, done.outputs, done.ended_at) == ("DONE", ("draft",), story.now)
        assert done.started_at == story.now - SECOND
        assert done.last_done == done

    def test_a_further_try_is_a_further_start(self) -> None:
        story = told(
            payloads.WorkItemStarted(item="intro", worker="w-1"),
            payloads.WorkItemFailed(item="intro", error=error("DIED")),
        )
        failed = state(story).work_items["intro"]
        assert failed.status == "FAILED"
        assert failed.error == error("DIED")
        story.record(payloads.WorkItemStarted(item="intro", worker="w-2"))
        again = state(story).work_items["intro"]
        assert (again.status, again.worker, again.starts, again.error) == ("RUNNING", "w-2", 2, None)

    def test_every_try_is_kept(self) -> None:
        """§PIP-16: the history of a work item can be told from the snapshot."""
        story = told(
            payloads.WorkItemStarted(item="intro", worker="w", inputs={"facts": HASH}),
            payloads.WorkItemCompleted(item="intro", outputs=("draft",)),
            payloads.WorkItemStarted(item="intro", worker="w", inputs={"facts": OTHER_HASH}),
            payloads.WorkItemFailed(item="intro", error=error("DIED")),
            payloads.WorkItemStarted(item="intro", worker="w", forced=True),
        )
        item = state(story).work_items["intro"]
        assert [(t.status, t.forced, dict(t.inputs)) for t in item.tries] == [
            ("DONE", False, {"facts": HASH}),
            ("FAILED", False, {"facts": OTHER_HASH}),
            ("RUNNING", True, {}),
        ]
        assert item.starts == len(item.tries)
        assert item.last_done is not None
        assert item.last_done.outputs == ("draft",)
        assert item.tries[1].error == error("DIED")

    def test_one_that_was_never_done_has_no_such_try(self) -> None:
        assert state(told(payloads.WorkItemStarted(item="x", worker="w"))).work_items["x"].last_done is None

    def test_one_that_another_run_had_done(self) -> None:
        story = told(payloads.WorkItemStarted(item="intro", worker="w"))
        story.record(payloads.WorkItemCompleted(item="intro", reused_from=story.signal_id))
        assert state(story).work_items["intro"].reused_from == story.signal_id


def test_commits_are_kept_in_their_order() -> None:
    """§PIP-41"""
    first = payloads.CommitRecorded(sha="c" * 40, repository="docs", branch="main", message="one", item="i")
    story = told(first, payloads.CommitRecorded(sha="d" * 64))
    shown = [(c.sha, c.repository, c.branch, c.message, c.item) for c in state(story).commits]
    assert shown == [("c" * 40, "docs", "main", "one", "i"), ("d" * 64, "", "", "", None)]
    assert {c.ts for c in state(story).commits} == {story.now}


@pytest.mark.parametrize("sha", ["", "C" * 40, "c" * 39, "c" * 41, "c" * 40 + "\n", "g" * 40])
def test_a_commit_is_known_by_a_whole_hash(sha: str) -> None:
    with pytest.raises(InvalidPayload):
        told(payloads.CommitRecorded(sha=sha))


class TestIssues:
    """§PIP-31: a resolved issue stays."""

    def test_opened_and_resolved(self) -> None:
        story = told(
            payloads.IssueOpened(issue="2", code="BrokenLink", severity="WARNING", message="404"),
            payloads.IssueOpened(issue="1", code="SnapshotInvalid", item="check"),
        )
        opened = state(story).issues["2"]
        assert (opened.code, opened.severity, opened.message) == ("BrokenLink", "WARNING", "404")
        assert (opened.status, opened.opened_at, opened.resolved_at) == ("OPEN", story.now, None)
        assert state(story).issues["1"].severity == "ERROR"
        assert (opened.item, state(story).issues["1"].item) == (None, "check")
        story.record(payloads.IssueResolved(issue="2", resolution="removed"))
        resolved = state(story).issues["2"]
        assert (resolved.status, resolved.resolution) == ("RESOLVED", "removed")
        assert resolved.resolved_at == story.now
        assert list(state(story).issues) == ["2", "1"]


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (payloads.ArtifactInvalidated(name="x", because="y"), "artifact 'x'"),
        (payloads.ArtifactRevalidated(name="x"), "artifact 'x'"),
        (payloads.WorkItemCompleted(item="x"), "work item 'x'"),
        (payloads.WorkItemFailed(item="x", error=error()), "work item 'x'"),
        (payloads.IssueResolved(issue="x"), "issue 'x'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Payload) else "",
)
def test_what_was_never_made_cannot_change(event: Payload, what: str) -> None:
    with pytest.raises(CommandRefused, match=f"no {what} in this run"):
        told(event)


def test_a_folder_belongs_to_a_run() -> None:
    story = Story.received()
    with pytest.raises(StateTransitionError):
        fold_run(story.case.run, [story.forge(payloads.RunStateChanged(to_state="CREATED"))])


def test_a_run_without_a_folder_has_no_such_state() -> None:
    assert Story.running().state.pipeline is None


class TestSnapshot:
    """§PIP-7, §PIP-9, §PIP-10"""

    def test_it_is_derived_from_the_log_alone(self) -> None:
        story = told(
            payloads.RunStateChanged(to_state="CREATED"),
            payloads.SectionStateChanged(section="intro", state="DRAFTED"),
            written("draft"),
            payloads.WorkItemStarted(item="intro", worker="w-1"),
            payloads.IssueOpened(issue="b", code="Z"),
            payloads.IssueOpened(issue="a", code="Y"),
        )
        shown = folder_snapshot(story.run_id, story.state.last_seq, story.state.head, state(story))
        replayed = fold_run(story.beginning.run, story.run_events)
        again = folder_snapshot(story.run_id, replayed.last_seq, replayed.head, replayed.pipeline)
        assert codec.encode(shown) == codec.encode(again)
        now = story.now.isoformat().replace("+00:00", "Z")
        assert codec.parse(codec.encode(shown)) == {
            "run_id": story.run_id,
            "last_seq": 8,
            "head": event_hash(story.run_events[-1]),
            "run_state": "CREATED",
            "visits": {"CREATED": 1},
            "entered": {"CREATED": 3},
            "section_states": {"intro": "DRAFTED"},
            "artifacts_index": {
                "draft": {"path": "draft.json", "sha256": HASH, "writer_worker": "writer", "ts": now}
            },
            "work_items": {"intro": {"status": "RUNNING", "worker": "w-1", "started_at": now}},
            "issues": [
                {"issue": "b", "code": "Z", "severity": "ERROR", "opened_at": now},
                {"issue": "a", "code": "Y", "severity": "ERROR", "opened_at": now},
            ],
            "commits": [],
        }

    def test_of_nothing_yet(self) -> None:
        assert codec.parse(codec.encode(folder_snapshot("r", 0, GENESIS, None))) == {
            "run_id": "r",
            "last_seq": 0,
            "head": GENESIS,
            "run_state": None,
            "visits": {},
            "entered": {},
            "section_states": {},
            "artifacts_index": {},
            "work_items": {},
            "issues": [],
            "commits": [],
        }


def test_a_later_event_leaves_the_earlier_state_alone() -> None:
    story = told(payloads.RunStateChanged(to_state="CREATED"), written("a"))
    before = state(story)
    kept = codec.encode(before)
    story.record(written("b"), payloads.IssueOpened(issue="1", code="X"))
    assert codec.encode(before) == kept
    assert before.artifacts["a"].ts == NOON + 3 * SECOND


def test_a_view_is_left_alone_by_what_comes_later() -> None:
    """A store shows the state of a fold that goes on."""
    fold = PipelineFold(PipelineState(run_state="CREATED", visits={"CREATED": 1}))
    before = fold.view()
    fold.sections["intro"] = "DRAFTED"
    fold.visits["CREATED"] = 2
    assert before == PipelineState(run_state="CREATED", visits={"CREATED": 1})
    assert fold.view().section_states == {"intro": "DRAFTED"}
