"""The usual run in a folder, and what has to be true of it whatever happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from runstone.core import codec, payloads
from runstone.core.chain import GENESIS, event_hash
from runstone.core.commit import Context
from runstone.core.events import Event
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import Payload
from runstone.core.pipeline import FolderSnapshot
from runstone.ports.folder import Recovery
from runstone.stores.folder import FolderStore
from runstone.testing.clock import SeededIds, VirtualClock
from tests.integration.stores.folder.falling import MemoryDisk

TENANT: Final = DEFAULT_TENANT
RUN: Final = "018df7a1-0000-7000-8000-00000000f01d"
PLAN: Final = "docs"

EVENTS: Final[tuple[Payload, ...]] = (
    payloads.RunStateChanged(to_state="CREATED"),
    payloads.RunStateChanged(from_state="CREATED", to_state="INGESTED"),
    payloads.WorkItemStarted(item="ingest", worker="w"),
    payloads.ArtifactWritten(name="facts", path="facts.json", sha256="1" * 64, writer_worker="w"),
    payloads.WorkItemCompleted(item="ingest", outputs=("facts",)),
    payloads.SectionStateChanged(section="intro", state="DRAFTED"),
    payloads.IssueOpened(issue="i-1", code="DeadLink", message="nowhere “é”"),
    payloads.IssueOpened(issue="i-0", code="DeadLink"),
    payloads.IssueResolved(issue="i-1", resolution="mended"),
    payloads.RunStateChanged(from_state="INGESTED", to_state="DONE"),
    payloads.RunHandlerReturned(result=codec.NULL),
    payloads.RunCompleted(),
)
"""What the usual run records once it was created; it ends with that."""


class Writer:
    """Writes runs with a clock and ids of its own; remembers what it was told is durable."""

    def __init__(self, store: FolderStore, seed: int = 1) -> None:
        self.store = store
        self.clock = VirtualClock()
        self.new_id = SeededIds(seed, self.clock)
        self.acknowledged: list[Event] = []

    def context(self) -> Context:
        self.clock.advance(1)
        return Context(now=self.clock.now(), new_id=self.new_id, actor="test")

    async def create(self, run_id: str = RUN) -> None:
        await self.store.create(TENANT, run_id, plan_id=PLAN, context=self.context())

    async def record(self, *data: Payload, run_id: str = RUN) -> None:
        for each in data:
            self.acknowledged += await self.store.record(TENANT, run_id, each, context=self.context())

    async def recover(self, run_id: str = RUN) -> Recovery:
        return await self.store.recover(TENANT, run_id, plan_id=PLAN, context=self.context())


async def usual(root: Path, *, events: Sequence[Payload] = EVENTS, run_id: str = RUN) -> list[Event]:
    """The usual run in a folder, closed; its events."""
    async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as store:
        writer = Writer(store)
        await writer.create(run_id)
        await writer.record(*events, run_id=run_id)
        return list(await store.fetch(TENANT, run_id))


async def recovered(root: Path, run_id: str = RUN) -> Recovery:
    async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as store:
        return await Writer(store, seed=99).recover(run_id)


async def prove(root: Path, run_id: str = RUN) -> tuple[list[Event], FolderSnapshot]:
    """The chain is whole, the snapshot is byte for byte the fold of the log, and both can be gone on with."""
    async with await FolderStore.open(root, inline=True, disk=MemoryDisk()) as store:
        events = list(await store.fetch(TENANT, run_id))
        assert [event.run_seq for event in events] == [*range(1, len(events) + 1)]
        assert [event.prev_hash for event in events] == [GENESIS, *map(event_hash, events)][:-1]
        replayed = await store.replay(TENANT, run_id)
        assert snapshot_file(root, run_id).read_bytes() == replayed
        view = await store.view(TENANT, run_id)
        assert view is not None
        assert codec.encode(view) == replayed
        return events, view


def log_file(root: Path, run_id: str = RUN) -> Path:
    return root / "runs" / run_id / "events.ndjson"


def snapshot_file(root: Path, run_id: str = RUN) -> Path:
    return root / "runs" / run_id / "snapshot.json"


def torn_file(root: Path, run_id: str = RUN) -> Path:
    return root / "runs" / run_id / "events.ndjson.torn"
