"""The snapshot of a run: the same from rows and from the log, in the words of the contract."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from runstone.core import codec, commands
from runstone.core.payloads import ArtifactRef
from runstone.core.rows import all_rows
from runstone.core.snapshot import (
    STEP_STATUS,
    RunSnapshot,
    StepSnapshot,
    project,
    project_run,
    run_snapshot,
)
from runstone.core.step import Step
from tests.unit.core.build import HASH, NOON, TENANT, Story, decided, error
from tests.unit.core.stories import STORIES


def snapshot(story: Story) -> RunSnapshot:
    made = project(story.state)
    assert made is not None
    return made


def shown_as(view: object) -> Any:
    return codec.parse(codec.encode(view))


def only_step(story: Story) -> StepSnapshot:
    (step,) = snapshot(story).steps
    return step


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_rows_and_log_give_the_same_bytes(tell: Callable[[], Story]) -> None:
    """§STO-9"""
    story = tell()
    steps = [row for row in all_rows(story.state) if isinstance(row, Step)]
    from_rows = run_snapshot(story.run, steps, story.state.last_seq)
    from_log = project_run(story.run_id, TENANT, story.run_events)
    assert codec.encode(from_rows) == codec.encode(from_log) == codec.encode(project(story.state))


def test_what_it_looks_like() -> None:
    """§STO-10: the names of the contract, nothing that is not known."""
    story = Story.running()
    story.do(commands.StartStep(step_key="work", step_type="DECISION"), engine_attempt=2)
    artifact = ArtifactRef(uri="s3://b/k", kind="log", sha256=HASH, size_bytes=5, expires_at=NOON)
    story.do(commands.CompleteStep(step_key="work", output=decided(1), artifacts=(artifact,)))
    story.returned()
    shown = {
        "uri": "s3://b/k",
        "kind": "log",
        "sha256": HASH,
        "sizeBytes": 5,
        "expiresAt": "2026-03-01T12:00:00Z",
    }
    assert shown_as(snapshot(story)) == {
        "runId": story.run_id,
        "status": "COMPLETED",
        "lastEventSeq": 6,
        "startedAt": "2026-03-01T12:00:02Z",
        "completedAt": "2026-03-01T12:00:05Z",
        "totalDurationMs": 3000,
        "artifacts": [shown],
        "steps": [
            {
                "stepId": "work",
                "status": "SUCCESS",
                "logicalAttemptId": "1",
                "engineAttemptId": "2",
                "startedAt": "2026-03-01T12:00:03Z",
                "completedAt": "2026-03-01T12:00:04Z",
                "durationMs": 1000,
                "artifacts": [shown],
            }
        ],
    }


def test_a_new_run_has_little_to_show() -> None:
    story = Story.queued()
    assert shown_as(snapshot(story)) == {
        "runId": story.run_id,
        "status": "PENDING",
        "lastEventSeq": 1,
        "steps": [],
        "artifacts": [],
    }


def test_a_completed_step_is_a_success_there() -> None:
    """§STO-11"""
    assert STEP_STATUS == {
        "RUNNING": "RUNNING",
        "COMPLETED": "SUCCESS",
        "FAILED": "FAILED",
        "SKIPPED": "SKIPPED",
    }


def test_an_open_step() -> None:
    story = Story.running()
    story.open_step()
    step = only_step(story)
    assert (step.status, step.completed_at, step.duration_ms) == ("RUNNING", None, None)
    assert (step.engine_attempt_id, step.error) == (None, None)


def test_a_failed_step_says_why() -> None:
    story = Story.running()
    story.open_step()
    story.do(commands.FailStep(step_key="work", error=error("BOOM", retryable=True)))
    assert shown_as(only_step(story).error) == {
        "category": "APPLICATION",
        "code": "BOOM",
        "message": "It went BOOM",
        "retryable": True,
    }


def test_of_several_attempts_it_shows_the_last() -> None:
    """§STO-11"""
    story = Story.running()
    story.failed_step()
    story.do(commands.RetryStep(step_key="work"))
    story.step()
    step = only_step(story)
    assert (step.status, step.logical_attempt_id) == ("SUCCESS", "2")


def test_the_same_key_in_two_generations_is_two_steps() -> None:
    story = STORIES["continued"]()
    assert [step.step_id for step in snapshot(story).steps] == ["page", "page"]


@pytest.mark.parametrize("microseconds", [0, 999])
@pytest.mark.parametrize("milliseconds", [0, 1, 1001, 4_003_001])
def test_durations_are_whole_milliseconds(milliseconds: int, microseconds: int) -> None:
    story = Story.running()
    story.open_step()
    taken = timedelta(milliseconds=milliseconds, microseconds=microseconds)
    story.do(commands.CompleteStep(step_key="work", output=decided(1)), now=story.now + taken)
    assert only_step(story).duration_ms == milliseconds


def test_a_run_that_does_not_exist_has_none() -> None:
    story = Story.received()
    assert project(story.state) is None
    assert project_run(story.run_id, TENANT, []) is None
