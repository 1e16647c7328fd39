"""What another run has made from the very same inputs need not be made again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from runstone.core import payloads
from runstone.core.catalogue import CATALOGUE
from runstone.core.events import Event
from runstone.core.pipeline import PipelineState
from runstone.pipeline.files import Files, digest
from runstone.pipeline.items import Item
from runstone.pipeline.plan import Wishes
from runstone.pipeline.work import Work


class Base:
    """A run of the same pipeline whose results may be taken over."""

    def __init__(
        self,
        run_id: str,
        state: PipelineState,
        files: Files,
        events: Iterable[Event],
        without: Wishes,
    ) -> None:
        self.run_id = run_id
        self.without = without
        """What is made anew all the same."""
        self._state = state
        self._files = files
        self._sections: dict[str, dict[str, str]] = defaultdict(dict)
        self._judges: set[str] = set()
        """Items that said more than what they made: issues and commits are not taken over."""
        self._listen(events)

    def _listen(self, events: Iterable[Event]) -> None:
        """Notes which item said what; items come one after the other."""
        item = ""
        for event in events:
            match CATALOGUE.decode(event):
                case payloads.WorkItemStarted(item=started):
                    item = started
                case payloads.SectionStateChanged(section=section, state=state):
                    self._sections[item][section] = state
                case payloads.IssueOpened() | payloads.IssueResolved() | payloads.CommitRecorded():
                    self._judges.add(item)

    def fill(self, work: Work, item: Item, inputs: Mapping[str, str]) -> bool:
        """Does an item's work with what this run has, if that was made from the same; whether it could."""
        known = self._state.work_items.get(item.name)
        done = known.last_done if known else None
        pure = item.declaration.reuse and not item.declaration.in_loop and item.name not in self._judges
        if done is None or not done.outputs or not pure or not inputs or dict(done.inputs) != dict(inputs):
            return False
        contents = {name: self._content(name, item) for name in done.outputs}
        sound = {name: content for name, content in contents.items() if content is not None}
        if len(sound) < len(contents):
            return False
        work.made.update(sound)
        for section, state in self._sections[item.name].items():
            work.section(section, state)
        return True

    def _content(self, name: str, item: Item) -> bytes | None:
        """An artifact as that item left it: none if it was lost, edited or mended by another since."""
        artifact = self._state.artifacts[name]
        if artifact.stale or artifact.writer_worker != item.declaration.name or item.makes(name) is None:
            return None
        content = self._files.read(name)
        return content if content is not None and digest(content) == artifact.sha256 else None
