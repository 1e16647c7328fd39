"""The state of a run that lives in a folder, and its snapshot (§PIP-9)."""

from __future__ import annotations

from typing import Any

import pytest

from runstone.core import codec, payloads
from runstone.core.fold import fold_run
from runstone.core.payloads import Payload
from runstone.core.pipeline import PipelineState, folder_snapshot
from runstone.errors import CommandRefused, StateTransitionError
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
        assert (refused.value.entity, refused.value.entity_id) == ("run state", story.run_id)
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
        story = told(written("draft", schema_id="draft.v1", inputs={"facts": OTHER_HASH}))
        artifact = state(story).artifacts["draft"]
        assert (artifact.path, artifact.sha256, artifact.schema_id) == ("draft.json", HASH, "draft.v1")
        assert (artifact.writer_worker, artifact.ts) == ("writer", story.now)
        assert artifact.inputs == {"facts": OTHER_HASH}
        assert (artifact.stale, artifact.stale_because) == (False, None)

    def test_it_becomes_stale_and_is_made_again(self) -> None:
        story = told(written("facts"), written("draft"))
        story.record(payloads.ArtifactInvalidated(name="draft", because="facts"))
        draft = state(story).artifacts["draft"]
        assert (draft.stale, draft.stale_because) == (True, "facts")
        assert not state(story).artifacts["facts"].stale
        story.record(written("draft", OTHER_HASH))
        draft = state(story).artifacts["draft"]
        assert (draft.stale, draft.stale_because, draft.sha256) == (False, None, OTHER_HASH)


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


class TestIssues:
    """§PIP-31: a resolved issue stays."""

    def test_opened_and_resolved(self) -> None:
        story = told(
            payloads.IssueOpened(issue="2", code="BrokenLink", severity="WARNING", message="404"),
            payloads.IssueOpened(issue="1", code="SnapshotInvalid"),
        )
        opened = state(story).issues["2"]
        assert (opened.code, opened.severity, opened.message) == ("BrokenLink", "WARNING", "404")
        assert (opened.status, opened.opened_at, opened.resolved_at) == ("OPEN", story.now, None)
        assert state(story).issues["1"].severity == "ERROR"
        story.record(payloads.IssueResolved(issue="2", resolution="removed"))
        resolved = state(story).issues["2"]
        assert (resolved.status, resolved.resolution) == ("RESOLVED", "removed")
        assert resolved.resolved_at == story.now
        assert list(state(story).issues) == ["2", "1"]


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (payloads.ArtifactInvalidated(name="x", because="y"), "artifact 'x'"),
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
        shown = folder_snapshot(story.run_id, story.state.last_seq, state(story))
        replayed = fold_run(story.beginning.run, story.run_events)
        again = folder_snapshot(story.run_id, replayed.last_seq, replayed.pipeline)
        assert codec.encode(shown) == codec.encode(again)
        now = story.now.isoformat().replace("+00:00", "Z")
        assert codec.parse(codec.encode(shown)) == {
            "run_id": story.run_id,
            "last_seq": 8,
            "run_state": "CREATED",
            "section_states": {"intro": "DRAFTED"},
            "artifacts_index": {
                "draft": {"path": "draft.json", "sha256": HASH, "writer_worker": "writer", "ts": now}
            },
            "work_items": {"intro": {"status": "RUNNING", "worker": "w-1", "started_at": now}},
            "issues": [
                {"issue": "b", "code": "Z", "severity": "ERROR", "opened_at": now},
                {"issue": "a", "code": "Y", "severity": "ERROR", "opened_at": now},
            ],
        }

    def test_of_nothing_yet(self) -> None:
        assert codec.parse(codec.encode(folder_snapshot("r", 0, None))) == {
            "run_id": "r",
            "last_seq": 0,
            "run_state": None,
            "section_states": {},
            "artifacts_index": {},
            "work_items": {},
            "issues": [],
        }


def test_a_later_event_leaves_the_earlier_state_alone() -> None:
    story = told(payloads.RunStateChanged(to_state="CREATED"), written("a"))
    before = state(story)
    kept = codec.encode(before)
    story.record(written("b"), payloads.IssueOpened(issue="1", code="X"))
    assert codec.encode(before) == kept
    assert before.artifacts["a"].ts == NOON + 3 * SECOND
