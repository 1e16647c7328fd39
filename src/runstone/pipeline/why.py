"""Why an artifact is as it is: what made it, from what, why it is stale, and what depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from runstone.core.catalogue import CATALOGUE
from runstone.core.events import Event
from runstone.core.payloads import ArtifactInvalidated
from runstone.core.pipeline import PipelineState
from runstone.errors import NotFound
from runstone.pipeline.plan import makers


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the artifact was made from."""

    name: str
    sha256: str
    changed: bool
    """Whether it is another now."""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    name: str
    path: str
    sha256: str
    schema_id: str | None
    writer_worker: str
    written_at: datetime
    item: str | None
    """The work item that made it, and how often that was tried."""
    tries: int
    made_from: tuple[Source, ...]
    needed_by: tuple[str, ...]
    stale: bool
    reasons: tuple[str, ...]
    """From the artifact up to the first cause."""
    touched: tuple[str, ...] = ()
    """Of it and all it was made from, what is another on disk than in the log."""


def why(
    name: str,
    state: PipelineState,
    events: Iterable[Event],
    on_disk: Callable[[str], str | None] | None = None,
) -> Why:
    """Explains an artifact from a run's log; `on_disk` gives the hash of an artifact's file as it is now."""
    artifact = state.artifacts.get(name)
    if artifact is None:
        raise NotFound(
            f"The run has no artifact {name!r}: it has {', '.join(sorted(state.artifacts)) or 'none'}"
        )
    item = makers(state).get(name)
    return Why(
        name=name,
        path=artifact.path,
        sha256=artifact.sha256,
        schema_id=artifact.schema_id,
        writer_worker=artifact.writer_worker,
        written_at=artifact.ts,
        item=item,
        tries=state.work_items[item].starts if item else 0,
        made_from=tuple(
            Source(name=source, sha256=sha256, changed=_now(state, source) != sha256)
            for source, sha256 in sorted(artifact.inputs.items())
        ),
        needed_by=tuple(sorted(other for other, known in state.artifacts.items() if name in known.inputs)),
        stale=artifact.stale,
        reasons=_reasons(name, state, events) if artifact.stale else (),
        touched=_touched(name, state, on_disk) if on_disk else (),
    )


def _touched(name: str, state: PipelineState, on_disk: Callable[[str], str | None]) -> tuple[str, ...]:
    found, ahead = {name}, [name]
    while ahead:
        for source in state.artifacts[ahead.pop()].inputs:
            if source in state.artifacts and source not in found:
                found.add(source)
                ahead.append(source)
    current = sorted(each for each in found if not state.artifacts[each].stale)
    return tuple(each for each in current if on_disk(each) != state.artifacts[each].sha256)


def _now(state: PipelineState, name: str) -> str | None:
    known = state.artifacts.get(name)
    return known.sha256 if known else None


def _reasons(name: str, state: PipelineState, events: Iterable[Event]) -> tuple[str, ...]:
    """Follows what made it stale up to what is not stale itself."""
    said: dict[str, ArtifactInvalidated] = {}
    for event in events:
        if event.event_type == ArtifactInvalidated.EVENT_TYPE:
            data = CATALOGUE.decode(event)
            assert isinstance(data, ArtifactInvalidated), "its type says so"
            said[data.name] = data
    reasons: list[str] = []
    passed: set[str] = set()
    while name in said and name not in passed and state.artifacts[name].stale:
        passed.add(name)
        reasons.append(f"{name}: {said[name].reason or f'because of {said[name].because}'}")
        name = said[name].because
    return tuple(reasons)
