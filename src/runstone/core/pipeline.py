"""The state of a run that lives in a folder, and its snapshot (§PIP-9).

The graph itself, with what may follow what, is declared by `pipeline/`; the fold only records
where the run went, so that replay never depends on a declaration that has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

import msgspec

from runstone.core.events import Event
from runstone.core.payloads import (
    ArtifactInvalidated,
    ArtifactRevalidated,
    ArtifactWritten,
    CommitRecorded,
    ErrorInfo,
    InvalidStateTransition,
    IssueOpened,
    IssueResolved,
    IssueSeverity,
    Payload,
    ResumeRewind,
    RunStateChanged,
    SectionStateChanged,
    WorkItemCompleted,
    WorkItemFailed,
    WorkItemStarted,
)
from runstone.errors import CommandRefused, StateTransitionError

WorkItemStatus: TypeAlias = Literal["RUNNING", "DONE", "FAILED"]
IssueStatus: TypeAlias = Literal["OPEN", "RESOLVED"]

_T = TypeVar("_T")


class ArtifactEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that the run made, as the snapshot shows it.

    What it was made from are the inputs of one try at one work item. They stand there, once: an item that
    makes many artifacts from many would otherwise fill the snapshot with their product.
    """

    path: str
    sha256: str
    schema_id: str | None = None
    writer_worker: str
    ts: datetime
    item: str | None = None
    item_start: int = 0
    """Which of the item's tries, counted from 1."""
    stale: bool = False
    stale_because: str | None = None


class Artifact(ArtifactEntry, frozen=True, kw_only=True, omit_defaults=True):
    """The same with what it was made from at hand."""

    inputs: Mapping[str, str] = {}

    @property
    def entry(self) -> ArtifactEntry:
        return ArtifactEntry(**{field: getattr(self, field) for field in ArtifactEntry.__struct_fields__})


class Try(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try at a piece of work and what became of it."""

    status: WorkItemStatus
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    forced: bool = False
    inputs: Mapping[str, str] = {}
    outputs: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    reused_from: str | None = None


class WorkItem(Try, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of work: its latest try, and those before it.

    None is left out: what bounds them is what bounds the log.
    """

    starts: int = 1
    earlier: tuple[Try, ...] = ()

    @property
    def tries(self) -> tuple[Try, ...]:
        """The whole history, the oldest first."""
        return (*self.earlier, _as_try(self))

    @property
    def last_done(self) -> Try | None:
        """The latest try that was completed."""
        if self.status == "DONE":
            return self
        return next((found for found in reversed(self.tries) if found.status == "DONE"), None)


class Issue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something wrong with the work."""

    issue: str
    code: str
    severity: IssueSeverity
    message: str = ""
    item: str | None = None
    status: IssueStatus = "OPEN"
    opened_at: datetime
    resolved_at: datetime | None = None
    resolution: str = ""


class RecordedCommit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit that the run made in a version control system."""

    sha: str
    repository: str = ""
    branch: str = ""
    message: str = ""
    item: str | None = None
    ts: datetime


class PipelineState(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's pipeline events add up to."""

    run_state: str | None = None
    visits: Mapping[str, int] = {}
    """How often each state was entered: what bounds a loop, whatever was rewound."""
    entered: Mapping[str, int] = {}
    """The `run_seq` at which each state was last entered or rewound to: which stable state was the last."""
    section_states: Mapping[str, str] = {}
    artifacts: Mapping[str, Artifact] = {}
    work_items: Mapping[str, WorkItem] = {}
    issues: Mapping[str, Issue] = {}
    commits: tuple[RecordedCommit, ...] = ()


class FolderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`snapshot.json`: the whole of a folder run's state, derived from its events alone."""

    run_id: str
    last_seq: int
    head: str
    """The hash of the last event: all others are vouched for by their successors."""
    run_state: str | None
    visits: Mapping[str, int]
    entered: Mapping[str, int]
    section_states: Mapping[str, str]
    artifacts_index: Mapping[str, ArtifactEntry]
    work_items: Mapping[str, WorkItem]
    issues: tuple[Issue, ...]
    commits: tuple[RecordedCommit, ...]


def folder_snapshot(run_id: str, last_seq: int, head: str, state: PipelineState | None) -> FolderSnapshot:
    """The snapshot of a run's pipeline state; issues stand in the order they were opened."""
    state = state or PipelineState()
    return FolderSnapshot(
        run_id=run_id,
        last_seq=last_seq,
        head=head,
        run_state=state.run_state,
        visits=state.visits,
        entered=state.entered,
        section_states=state.section_states,
        artifacts_index={name: artifact.entry for name, artifact in state.artifacts.items()},
        work_items=state.work_items,
        issues=tuple(state.issues.values()),
        commits=state.commits,
    )


class PipelineFold:
    """Takes pipeline events in, one at a time, on containers of its own."""

    def __init__(self, state: PipelineState | None) -> None:
        state = state or PipelineState()
        self.run_state = state.run_state
        self.visits = dict(state.visits)
        self.entered = dict(state.entered)
        self.sections = dict(state.section_states)
        self.artifacts = dict(state.artifacts)
        self.work_items = dict(state.work_items)
        self.issues = dict(state.issues)
        self.commits = list(state.commits)

    def freeze(self) -> PipelineState:
        return PipelineState(
            run_state=self.run_state,
            visits=self.visits,
            entered=self.entered,
            section_states=self.sections,
            artifacts=self.artifacts,
            work_items=self.work_items,
            issues=self.issues,
            commits=tuple(self.commits),
        )

    def view(self) -> PipelineState:
        """The state so far, on containers that later events leave alone."""
        return PipelineFold(self.freeze()).freeze()

    def apply(self, event: Event, data: Payload) -> None:
        match data:
            case RunStateChanged():
                self._leave(event, data.from_state, data.to_state)
                self.visits[data.to_state] = self.visits.get(data.to_state, 0) + 1
            case ResumeRewind():
                self._leave(event, data.from_state, data.to_state)
            case InvalidStateTransition():
                pass
            case SectionStateChanged():
                self.sections[data.section] = data.state
            case ArtifactWritten():
                self.artifacts[data.name] = self._written(event, data)
            case ArtifactInvalidated():
                artifact = _known(self.artifacts, "artifact", data.name)
                self.artifacts[data.name] = msgspec.structs.replace(
                    artifact, stale=True, stale_because=data.because
                )
            case ArtifactRevalidated():
                artifact = _known(self.artifacts, "artifact", data.name)
                self.artifacts[data.name] = msgspec.structs.replace(artifact, stale=False, stale_because=None)
            case CommitRecorded():
                self.commits.append(
                    RecordedCommit(
                        sha=data.sha,
                        repository=data.repository,
                        branch=data.branch,
                        message=data.message,
                        item=data.item,
                        ts=event.occurred_at,
                    )
                )
            case WorkItemStarted():
                before = self.work_items.get(data.item)
                self.work_items[data.item] = WorkItem(
                    status="RUNNING",
                    worker=data.worker,
                    started_at=event.occurred_at,
                    forced=data.forced,
                    inputs=data.inputs,
                    starts=before.starts + 1 if before else 1,
                    earlier=before.tries if before else (),
                )
            case WorkItemCompleted():
                item = _known(self.work_items, "work item", data.item)
                self.work_items[data.item] = msgspec.structs.replace(
                    item,
                    status="DONE",
                    ended_at=event.occurred_at,
                    outputs=data.outputs,
                    reused_from=data.reused_from,
                )
            case WorkItemFailed():
                item = _known(self.work_items, "work item", data.item)
                self.work_items[data.item] = msgspec.structs.replace(
                    item, status="FAILED", ended_at=event.occurred_at, error=data.error
                )
            case IssueOpened():
                self.issues[data.issue] = Issue(
                    issue=data.issue,
                    code=data.code,
                    severity=data.severity,
                    message=data.message,
                    item=data.item,
                    opened_at=event.occurred_at,
                )
            case _:
                assert isinstance(data, IssueResolved), data
                issue = _known(self.issues, "issue", data.issue)
                self.issues[data.issue] = msgspec.structs.replace(
                    issue, status="RESOLVED", resolved_at=event.occurred_at, resolution=data.resolution
                )

    def _written(self, event: Event, data: ArtifactWritten) -> Artifact:
        """Made from what its work item got; without one, from what it was made from before."""
        artifact = Artifact(
            path=data.path,
            sha256=data.sha256,
            schema_id=data.schema_id,
            writer_worker=data.writer_worker,
            ts=event.occurred_at,
        )
        before = self.artifacts.get(data.name)
        if data.item is not None:
            made = _known(self.work_items, "work item", data.item)
            origin: tuple[str | None, int, Mapping[str, str]] = data.item, made.starts, made.inputs
        elif before is not None:
            origin = before.item, before.item_start, before.inputs
        else:
            return artifact
        item, start, inputs = origin
        return msgspec.structs.replace(artifact, item=item, item_start=start, inputs=inputs)

    def _leave(self, event: Event, from_state: str | None, to_state: str) -> None:
        if from_state != self.run_state:
            raise StateTransitionError("run state", event.stream_id, self.run_state, to_state)
        self.run_state = to_state
        self.entered[to_state] = event.run_seq


def _as_try(item: WorkItem) -> Try:
    return Try(**{field: getattr(item, field) for field in Try.__struct_fields__})


def _known(found: Mapping[str, _T], what: str, name: str) -> _T:
    try:
        return found[name]
    except KeyError:
        raise CommandRefused(f"There is no {what} {name!r} in this run") from None
