"""What an item made becomes files and events: checked, in place, and then said (§PIP-24 to §PIP-27).

Files come first. A process that dies between them and their events leaves an item that was not
completed, and it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runstone.core import payloads
from runstone.core.payloads import Payload
from runstone.core.pipeline import PipelineState
from runstone.errors import ArtifactInvalid, CommandRefused
from runstone.pipeline import plan
from runstone.pipeline.files import Files, digest
from runstone.pipeline.items import Item
from runstone.pipeline.schemas import check_content
from runstone.pipeline.work import Work


@dataclass(frozen=True)
class Result:
    """What one try comes to."""

    contents: tuple[tuple[str, bytes], ...]
    events: tuple[Payload, ...]
    dropped: tuple[str, ...]
    """What the item made before and has not made this time."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.contents)


class Results:
    """Turns finished work into files and events."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def of(self, item: Item, work: Work, state: PipelineState) -> Result:
        """What the work comes to; refuses what must not be written, before any of it is."""
        made_by = plan.makers(state)
        hashes = {name: digest(content) for name, content in work.written()}
        written: list[Payload] = []
        for name, content in work.written():
            output = item.makes(name)
            assert output is not None, "work.write has checked it"
            self._check_maker(name, item, made_by.get(name))
            if output.schema is not None:
                check_content(name, content, output.schema, output.id)
            written.append(
                payloads.ArtifactWritten(
                    name=name,
                    path=self._files.path(name),
                    sha256=hashes[name],
                    schema_id=output.id,
                    writer_worker=item.declaration.name,
                    # One that a loop mends stays made from what it was made from. Otherwise the report
                    # that asked for a mend, once it is out of date, would undo the mend.
                    item=None if item.declaration.in_loop else item.name,
                )
            )
        changed = {name: sha for name, sha in hashes.items() if _differs(state, name, sha)}
        # Staleness goes first: if the process dies here, the artifact is made again and says so again.
        stale = plan.downstream(state, changed, keep=hashes.keys())
        return Result(
            contents=tuple(work.written()),
            events=(*stale, *written, *_notes(item, work, state)),
            dropped=() if item.declaration.in_loop else self._dropped(item, hashes, state),
        )

    def put(self, result: Result) -> None:
        """Puts all files in their places, durable."""
        made = dict(result.contents)
        self._files.write({name: made[name] for name in made if self._files.read(name) != made[name]})

    def orphans(self, state: PipelineState, items: Iterable[str]) -> list[str]:
        """The artifacts of items that are there no more."""
        gone = set(items)
        made_by = plan.makers(state)
        ours = [name for name, maker in made_by.items() if maker in gone]
        return [name for name in ours if state.artifacts[name].stale_because != name]

    def _dropped(self, item: Item, made: Mapping[str, str], state: PipelineState) -> tuple[str, ...]:
        return tuple(name for name in self.orphans(state, [item.name]) if name not in made)

    def _check_maker(self, name: str, item: Item, maker: str | None) -> None:
        """An artifact has one maker; only a loop, which mends what others made, may write it too."""
        if maker in (None, item.name) or item.declaration.in_loop or "#" in (maker or ""):
            return
        raise ArtifactInvalid(
            f"Artifact {name!r} is made by {maker!r} already: {item.name!r} needs another name for it"
        )


def _differs(state: PipelineState, name: str, sha256: str) -> bool:
    known = state.artifacts.get(name)
    return known is not None and known.sha256 != sha256


def _notes(item: Item, work: Work, state: PipelineState) -> Iterable[Payload]:
    """Issues and section states, each said once however often the item is done (§PIP-31)."""
    issues = {issue.issue: issue.status for issue in state.issues.values()}
    sections = dict(state.section_states)
    found = {note.issue for note in work.noted if isinstance(note, payloads.IssueOpened)}
    for note in work.noted:
        if isinstance(note, payloads.IssueOpened):
            if issues.get(note.issue) != "OPEN":
                yield note
            issues[note.issue] = "OPEN"
        elif isinstance(note, payloads.IssueResolved):
            if note.issue not in issues:
                raise CommandRefused(
                    f"Work item {item.name!r} resolves {note.issue!r}, which nobody has opened"
                )
            if issues[note.issue] == "OPEN":
                yield note
            issues[note.issue] = "RESOLVED"
        elif isinstance(note, payloads.SectionStateChanged):
            if sections.get(note.section) != note.state:
                yield note
            sections[note.section] = note.state
        else:
            yield note
    for issue in state.issues.values():
        ours = issue.item is not None and plan.family(issue.item) == plan.family(item.name)
        if ours and issue.issue not in found and issues[issue.issue] == "OPEN":
            yield payloads.IssueResolved(issue=issue.issue, resolution=f"{item.name} finds it no more")
