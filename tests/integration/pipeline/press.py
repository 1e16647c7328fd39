"""A small pipeline to test with: three sources, their facts, two pages, a report, a mend, a request.

`Press` keeps what the functions see outside: the sources they read, and which functions were called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runstone as rs
from runstone.core import codec
from runstone.core.events import Event
from runstone.core.payloads import Payload
from runstone.core.pipeline import FolderSnapshot, PipelineState
from runstone.pipelines import Pipelines
from runstone.ports.folder import RunFolders
from runstone.stores.folder import FolderStore
from runstone.stores.folder.disk import Disk

PAGES: Mapping[str, list[str]] = {"one": ["facts/a.json"], "two": ["facts/b.json", "facts/c.json"]}
COMMIT = "c" * 40


class Press:
    """The outside of the pipeline, and the pipeline itself."""

    def __init__(self, *, max_fix_attempts: int = 3, mends: bool = True) -> None:
        self.sources = {"a": "alpha", "b": "beta", "c": "gamma"}
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda item: None
        """Called when an item's function begins."""
        self.mends = mends
        self.pipeline = rs.Pipeline(
            "press",
            version="1",
            graph=rs.docs_graph(max_fix_attempts=max_fix_attempts),
            params={"title": "T"},
        )
        self._declare()

    def _declare(self) -> None:
        item = self.pipeline.item

        @item("CREATED", outputs=["sources/*"])
        def clone(work: rs.Work) -> None:
            self._called(work)
            for name, text in self.sources.items():
                work.write(f"sources/{name}.txt", text)

        @item("INGESTED", each=_sources, inputs=["sources/{key}.txt"], outputs=["facts/{key}.json"])
        def facts(work: rs.Work, key: str) -> None:
            self._called(work)
            text = work.text(f"sources/{key}.txt")
            work.write_json(f"facts/{key}.json", {"letters": len(text), "first": text[:1]})

        @item("DRAFTING", each=PAGES, outputs=["drafts/{key}.md"])
        async def draft(work: rs.Work, key: str) -> None:
            self._called(work)
            lines = [f"{name} {work.json(name)['letters']}" for name in work.names("facts/*")]
            work.write(f"drafts/{key}.md", "\n".join([work.params["title"], *lines]))
            work.section(key, "DRAFTED")

        @item("LINKING", each=list(PAGES), inputs=["drafts/{key}.md"], outputs=["site/{key}.md"])
        def link(work: rs.Work, key: str) -> None:
            self._called(work)
            work.write(f"site/{key}.md", work.text(f"drafts/{key}.md") + "\nTODO")
            work.section(key, "LINKED")

        @item("VALIDATING", inputs=["site/*"], outputs=["report.json"])
        def validate(work: rs.Work) -> None:
            self._called(work)
            bad = [name for name in work.names() if "TODO" in work.text(name)]
            for name in bad:
                work.open_issue(f"todo/{name}", "Todo", f"{name} is not done")
            work.write_json("report.json", bad)

        @item("FIXING", inputs=["report.json", "site/*"], outputs=["site/*"])
        def fix(work: rs.Work) -> None:
            self._called(work)
            for name in work.json("report.json") if self.mends else ():
                work.write(name, work.text(name).replace("TODO", "done"))

        @item("READY_FOR_PR", inputs=["site/*"], outputs=["request.json"], reuse=False)
        async def request(work: rs.Work) -> None:
            self._called(work)
            work.record_commit(COMMIT, repository="site", branch="docs")
            work.write_json("request.json", {"pages": work.names()})

    def _called(self, work: rs.Work) -> None:
        self.calls[work.item] += 1
        self.before(work.item)


def _sources(read: rs.Reader) -> list[str]:
    return [name.removeprefix("sources/").removesuffix(".txt") for name in read.names("sources/*")]


class Hasty(Disk):
    """A disk that is never cut off, and so need not be synced: tests are quicker."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""


@asynccontextmanager
async def opened(root: Path, **options: Any) -> AsyncIterator[Pipelines]:
    async with await FolderStore.open(root, inline=True, disk=Hasty()) as store:
        yield Pipelines(store, **options)


def files(folder: Path) -> dict[str, bytes]:
    """Every artifact in a run's folder."""
    root = folder / "artifacts"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def index(state: PipelineState | FolderSnapshot) -> dict[str, tuple[str, str, bool]]:
    """The artifacts' index without what differs from run to run."""
    artifacts = state.artifacts if isinstance(state, PipelineState) else state.artifacts_index
    return {name: (made.path, made.sha256, made.stale) for name, made in sorted(artifacts.items())}


def told(events: list[Event], *kinds: type[Payload]) -> list[dict[str, Any]]:
    """What stands in the events of some types."""
    types = {kind.EVENT_TYPE for kind in kinds}
    return [codec.parse(bytes(event.event_data)) for event in events if event.event_type in types]


class Crash(BaseException):
    """The end of the process, as far as it can be had inside of one."""


class Mortal:
    """Folders under which the process dies at one event: just before it is durable, or just after."""

    def __init__(self, folders: RunFolders, at: int, *, after: bool) -> None:
        self._folders = folders
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folders, name)

    async def record(self, tenant_id: str, run_id: str, *data: Payload, context: Any) -> list[Event]:
        events: list[Event] = []
        for each in data:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Crash
            events += await self._folders.record(tenant_id, run_id, each, context=context)
            if self._left == 0:
                raise Crash
        return events


async def stopped_at(pipelines: Pipelines, press: Press, item: str, **options: Any) -> str:
    """A run whose process died while it did an item."""
    run_id = pipelines.new_id()
    press.before = dies_at(item)
    with pytest.raises(Crash):
        await pipelines.run(press.pipeline, run_id=run_id, **options)
    press.before = lambda name: None
    press.calls.clear()
    return run_id


def dies_at(at: str) -> Callable[[str], None]:
    """For `Press.before`: the process dies when it begins this item."""

    def die(item: str) -> None:
        if item == at:
            raise Crash

    return die


async def state_of(pipelines: Pipelines, run_id: str) -> PipelineState:
    """What the run's log says."""
    _, state = await pipelines.look(run_id)
    return state


def artifact(pipelines: Pipelines, run_id: str, name: str) -> Path:
    """Where an artifact lies."""
    return pipelines.folders.folder(run_id) / "artifacts" / name
