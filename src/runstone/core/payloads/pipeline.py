"""Runs that live in a folder: the state graph, artifacts, work items, issues (§PIP-1)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from runstone.core.events import AggregateType
from runstone.core.ids import Digest, Id
from runstone.core.payloads.base import ErrorInfo, Payload

IssueSeverity: TypeAlias = Literal["INFO", "WARNING", "ERROR", "BLOCKER"]


class RunStateChanged(Payload, frozen=True, kw_only=True):
    """The run moved along its state graph."""

    EVENT_TYPE: ClassVar[str] = "RUN_STATE_CHANGED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    from_state: Annotated[str | None, Meta(description="Where it was; none: the graph is entered.")] = None
    to_state: Annotated[str, Meta(description="Where it is now, or was asked to go.")]


class ResumeRewind(Payload, frozen=True, kw_only=True):
    """On resume the run went back from a transitional state to its last stable one."""

    EVENT_TYPE: ClassVar[str] = "RESUME_REWIND"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    from_state: Annotated[str, Meta(description="Where it was.")]
    to_state: Annotated[str, Meta(description="Where it is now, or was asked to go.")]


class InvalidStateTransition(Payload, frozen=True, kw_only=True):
    """A move that the graph does not have was asked for and refused; nothing changed."""

    EVENT_TYPE: ClassVar[str] = "INVALID_STATE_TRANSITION"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    from_state: Annotated[str, Meta(description="Where it was.")]
    to_state: Annotated[str, Meta(description="Where it is now, or was asked to go.")]


class SectionStateChanged(Payload, frozen=True, kw_only=True):
    """One section of the work reached another state."""

    EVENT_TYPE: ClassVar[str] = "SECTION_STATE_CHANGED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    section: Annotated[str, Meta(min_length=1, description="The section.")]
    state: Annotated[str, Meta(description="Its state from now on.")]


class ArtifactWritten(Payload, frozen=True, kw_only=True):
    """A file was made, or made again."""

    EVENT_TYPE: ClassVar[str] = "ARTIFACT_WRITTEN"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    name: Annotated[str, Meta(min_length=1, description="Its name, unique in the run.")]
    path: Annotated[str, Meta(description="Relative to the run's folder.")]
    sha256: Annotated[Digest, Meta(description="The hash of its bytes.")]
    schema_id: Annotated[str | None, Meta(description="The schema its content follows.")] = None
    writer_worker: Annotated[str, Meta(description="Who made it.")]
    item: Annotated[
        str | None,
        Meta(description="The work item whose inputs it was made from; none: it is from what it was from."),
    ] = None


class ArtifactInvalidated(Payload, frozen=True, kw_only=True):
    """Something upstream changed: the artifact is stale and has to be made again."""

    EVENT_TYPE: ClassVar[str] = "ARTIFACT_INVALIDATED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    name: Annotated[str, Meta(description="The artifact.")]
    because: Annotated[
        str, Meta(description="The upstream artifact that changed; itself: its own file is gone.")
    ]
    reason: Annotated[str, Meta(description="For people.")] = ""


class ArtifactRevalidated(Payload, frozen=True, kw_only=True):
    """All that a stale artifact was made from is again as it was then: it stands as it is."""

    EVENT_TYPE: ClassVar[str] = "ARTIFACT_REVALIDATED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    name: Annotated[str, Meta(description="The artifact.")]


class CommitRecorded(Payload, frozen=True, kw_only=True):
    """The run made a commit in a version control system."""

    EVENT_TYPE: ClassVar[str] = "COMMIT_RECORDED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    sha: Annotated[
        str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$(?!\n)", description="The commit's own hash.")
    ]
    repository: Annotated[str, Meta(description="Where it was made.")] = ""
    branch: Annotated[str, Meta(description="The branch it is on.")] = ""
    message: Annotated[str, Meta(description="Its message.")] = ""
    item: Annotated[str | None, Meta(description="The piece of work that made it.")] = None


class WorkItemStarted(Payload, frozen=True, kw_only=True):
    """A worker took a piece of work."""

    EVENT_TYPE: ClassVar[str] = "WORK_ITEM_STARTED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    item: Annotated[str, Meta(min_length=1, description="The piece of work, unique in the run.")]
    worker: Annotated[str, Meta(description="Who took it.")]
    forced: Annotated[bool, Meta(description="Whether it had been done and was asked for again.")] = False
    inputs: Annotated[dict[str, Digest], Meta(description="The artifacts it gets, as they are.")] = (
        msgspec.field(default_factory=dict)
    )


class WorkItemCompleted(Payload, frozen=True, kw_only=True):
    """A piece of work is done and is not done again."""

    EVENT_TYPE: ClassVar[str] = "WORK_ITEM_COMPLETED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    item: Annotated[str, Meta(description="The piece of work.")]
    outputs: Annotated[tuple[str, ...], Meta(description="The artifacts it made.")] = ()
    reused_from: Annotated[
        Id | None, Meta(description="The run that had made the same from the same inputs; nothing ran here.")
    ] = None


class WorkItemFailed(Payload, frozen=True, kw_only=True):
    """A piece of work went wrong."""

    EVENT_TYPE: ClassVar[str] = "WORK_ITEM_FAILED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    item: Annotated[str, Meta(description="The piece of work.")]
    error: Annotated[ErrorInfo, Meta(description="What went wrong.")]


class IssueOpened(Payload, frozen=True, kw_only=True):
    """Something is wrong with the work itself."""

    EVENT_TYPE: ClassVar[str] = "ISSUE_OPENED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    issue: Annotated[str, Meta(min_length=1, description="Its id, unique in the run.")]
    code: Annotated[str, Meta(description="What kind it is, such as SnapshotInvalid.")]
    severity: Annotated[IssueSeverity, Meta(description="How bad it is; a BLOCKER ends the run.")] = "ERROR"
    message: Annotated[str, Meta(description="For people.")] = ""
    item: Annotated[str | None, Meta(description="The piece of work that found it.")] = None


class IssueResolved(Payload, frozen=True, kw_only=True):
    """It is wrong no more."""

    EVENT_TYPE: ClassVar[str] = "ISSUE_RESOLVED"
    AGGREGATE: ClassVar[AggregateType] = "RUN"

    issue: Annotated[str, Meta(description="The issue.")]
    resolution: Annotated[str, Meta(description="What put it right.")] = ""
