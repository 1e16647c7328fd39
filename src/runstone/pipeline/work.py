"""What the function of a work item gets: its inputs to read, and a place for what it makes.

What an item makes is kept until it returns, and then put on disk and recorded at once; an item that
raises has made nothing. So the same context serves plain and async functions alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from runstone.core import codec, payloads
from runstone.core.payloads import IssueSeverity, Payload
from runstone.core.pipeline import Issue, PipelineState
from runstone.errors import ArtifactInvalid
from runstone.pipeline.files import Files, digest, parts_of

_LOG: Final = logging.getLogger("runstone.pipeline")


class Reader:
    """Reads the artifacts that a run has made so far. What `each=` gets."""

    def __init__(
        self, files: Files, state: PipelineState, params: Mapping[str, str], inputs: Mapping[str, str]
    ) -> None:
        self.params = params
        """What the run was started with."""
        self._files = files
        self._state = state
        self._inputs = inputs

    def names(self, pattern: str = "*") -> list[str]:
        """The names of the artifacts that can be read, in order; `*` stands for any characters."""
        return sorted(name for name in self._inputs if fnmatchcase(name, pattern))

    def read(self, name: str) -> bytes:
        """An artifact's content."""
        sha256 = self._inputs.get(name)
        if sha256 is None:
            raise ArtifactInvalid(self._absent(name))
        content = self._files.read(name)
        if content is None or digest(content) != sha256:
            raise ArtifactInvalid(
                f"Artifact {name!r} was changed on disk while the run was under way: stop and resume it"
            )
        return content

    def text(self, name: str) -> str:
        """An artifact's content as text."""
        return self.read(name).decode("utf-8")

    def json(self, name: str) -> Any:
        """An artifact's content as the JSON value it is."""
        return codec.parse(self.read(name))

    def issues(self, code: str | None = None) -> list[Issue]:
        """The issues that are open, in the order in which they were opened; of one code if it is given."""
        open_ones = (issue for issue in self._state.issues.values() if issue.status == "OPEN")
        return [issue for issue in open_ones if code in (None, issue.code)]

    def _absent(self, name: str) -> str:
        return f"There is no artifact {name!r} yet"


class Work(Reader):
    """One piece of work in hand."""

    def __init__(
        self,
        item: str,
        key: str,
        run_id: str,
        scratch: Path,
        writes: Callable[[str], bool],
        files: Files,
        state: PipelineState,
        params: Mapping[str, str],
        inputs: Mapping[str, str],
    ) -> None:
        super().__init__(files, state, params, inputs)
        self.item = item
        """The work item's name in the log."""
        self.key = key
        """What `each=` gave; empty for an item that is there once."""
        self.run_id = run_id
        self._scratch = scratch
        self._writes = writes
        self.made: dict[str, bytes] = {}
        """What it has written so far."""
        self.noted: list[Payload] = []
        """What else it has to say, in the order in which it said it."""

    @property
    def scratch(self) -> Path:
        """A folder of the run for what is no artifact, such as a clone; nothing in it is tracked."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        return self._scratch

    def read(self, name: str) -> bytes:
        """An artifact's content, as this item has written it or as it was when the item began."""
        return self.made[name] if name in self.made else super().read(name)

    def _absent(self, name: str) -> str:
        if name in self._state.artifacts:
            return f"Work item {self.item!r} reads {name!r} without saying so: add it to its inputs"
        return f"There is no artifact {name!r}"

    def write(self, name: str, content: bytes | str) -> None:
        """Makes an artifact, or makes it again."""
        parts_of(name)
        if not self._writes(name):
            raise ArtifactInvalid(
                f"Work item {self.item!r} makes {name!r} without saying so: add it to its outputs"
            )
        self.made[name] = content.encode("utf-8") if isinstance(content, str) else bytes(content)

    def write_json(self, name: str, value: object) -> None:
        """Makes an artifact of a value: canonical JSON, the same bytes for the same value."""
        self.write(name, bytes(codec.canonical(value)))

    def open_issue(
        self, issue: str, code: str, message: str = "", *, severity: IssueSeverity = "ERROR"
    ) -> None:
        """Says that something is wrong with the work; `issue` is its id, the same each time it is found.

        An item that is done again and no longer finds an issue of its own resolves it by that.
        """
        self.noted.append(
            payloads.IssueOpened(issue=issue, code=code, severity=severity, message=message, item=self.item)
        )

    def resolve_issue(self, issue: str, resolution: str = "") -> None:
        """Says that it is wrong no more."""
        self.noted.append(payloads.IssueResolved(issue=issue, resolution=resolution))

    def section(self, section: str, state: str) -> None:
        """Says which state a section of the work has reached."""
        self.noted.append(payloads.SectionStateChanged(section=section, state=state))

    def record_commit(self, sha: str, *, repository: str = "", branch: str = "", message: str = "") -> None:
        """Says that this item made a commit, so that the run can be found by it."""
        self.noted.append(
            payloads.CommitRecorded(
                sha=sha, repository=repository, branch=branch, message=message, item=self.item
            )
        )

    def log(self, message: str, *values: object) -> None:
        """A line for people who watch; it is no history."""
        _LOG.info(f"%s: {message}", self.item, *values)

    def written(self) -> Sequence[tuple[str, bytes]]:
        """All it has made, in the order of names."""
        return sorted(self.made.items())
