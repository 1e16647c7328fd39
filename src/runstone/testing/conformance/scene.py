"""Where a test of the suites takes place: a store, a clock, ids, a tenant, and the usual first moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec
import pytest
import pytest_asyncio
from msgspec import Raw

from runstone.core import codec, commands
from runstone.core.commands import Command
from runstone.core.commit import Commit, Context, Lease
from runstone.core.contract import AppendResult
from runstone.core.decide import Case, Decision, decide
from runstone.core.events import Event, EventDraft
from runstone.core.run import code_rank
from runstone.core.verify import Finding, verify_events, verify_stream
from runstone.ports.clock import Clock
from runstone.ports.store import Claim, Store
from runstone.testing.clock import SeededIds, VirtualClock

OpenStore: TypeAlias = Callable[[Clock], Awaitable[Any]]
"""Opens the store under test, always on the same data: at first on none."""

HANDLER: Final = "handler"
LEASE: Final = timedelta(seconds=30)
RANK: Final = code_rank("1.0")

_seeds = count()


class Scene:
    """A store with a clock that the test owns, seen by one tenant.

    `store` is typed with every part. A suite only asks for those that it is about.
    """

    def __init__(self, open_store: OpenStore, store: Store, clock: VirtualClock | None = None) -> None:
        self.open_store = open_store
        self.store = store
        self.clock = clock or VirtualClock()
        self.new_id = SeededIds(next(_seeds), self.clock)
        self.tenant_id = self.new_id()
        self.acknowledged: list[Commit] = []
        """Commits whose submission returned: what must never be lost."""

    async def reopen(self) -> None:
        """Closes the store and opens what is there again, as after a restart."""
        await self.store.close()
        self.store = await self.open_store(self.clock)

    @asynccontextmanager
    async def fleet(self, size: int) -> AsyncIterator[list[Scene]]:
        """So many stores on the same data, this one among them, as so many processes would have them open."""
        scenes = [self]
        try:
            for _ in range(size - 1):
                scenes.append(Scene(self.open_store, await self.open_store(self.clock), self.clock))
            yield scenes
        finally:
            for scene in scenes[1:]:
                await scene.store.close()

    def for_tenant(self, tenant_id: str) -> Scene:
        """The same store, seen by another."""
        other = Scene(self.open_store, self.store, self.clock)
        other.new_id = self.new_id
        other.tenant_id = tenant_id
        return other

    # Deciding and committing

    def context(self) -> Context:
        return Context(now=self.clock.now(), new_id=self.new_id, actor="suite")

    def new_case(self) -> Case:
        return Case.new(self.tenant_id, self.new_id(), self.new_id())

    def decide(self, case: Case, *wanted: Command, lease: Lease | None = None) -> Decision:
        return decide(case, *wanted, context=self.context(), lease=lease)

    async def carry(self, case: Case, *wanted: Command, lease: Lease | None = None) -> Case:
        """Decides and commits; the case as it is then."""
        decision = self.decide(case, *wanted, lease=lease)
        await self.store.commit(decision.commit)
        self.acknowledged.append(decision.commit)
        return decision.case

    async def carry_all(self, history: Iterable[Decision]) -> list[Decision]:
        """Commits a history, one decision after the other."""
        done: list[Decision] = []
        for decision in history:
            await self.store.commit(decision.commit)
            self.acknowledged.append(decision.commit)
            done.append(decision)
        return done

    async def queued(self, **of_run: Any) -> Case:
        """A signal and its run, ready to be claimed."""
        return await self.carry(self.new_case(), self.receive(), self.create(**of_run))

    async def running(self, **of_run: Any) -> Case:
        """A run that has started."""
        return await self.carry(self.new_case(), self.receive(), self.create(**of_run), commands.StartRun())

    def receive(self, source_id: str | None = None, source_channel: str = "channel") -> Command:
        return commands.ReceiveSignal(
            signal_type="WEBHOOK",
            source_channel=source_channel,
            source_id=source_id or self.new_id(),
            source_hash="0" * 64,
            normalized_payload=Raw(b'{"event" : 1e2}'),
            received_at=self.clock.now(),
        )

    def create(self, **of_run: Any) -> Command:
        return commands.CreateRun(**{"plan_id": HANDLER, "orchestrator_version": "1.0"} | of_run)

    def control(self, kind: Any = "PAUSE", target: str | None = None) -> commands.Control:
        return commands.Control(control_signal_id=self.new_id(), kind=kind, sender="suite", target=target)

    def set_variable(self, value: int = 1) -> Command:
        return commands.SetVariable(name="v", value=codec.canonical(value))

    # Claims

    async def claim(self, worker_id: str = "w1", *, limit: int = 100, **asked: Any) -> Sequence[Claim]:
        wanted: dict[str, Any] = {"handlers": [HANDLER], "code_rank": RANK, "lease": LEASE} | asked
        return await self.store.claim(worker_id, limit=limit, **wanted)

    async def claimed(self, case: Case, worker_id: str = "w1") -> Case:
        """The case, owned by this worker."""
        taken = {claim.run_id: claim for claim in await self.claim(worker_id)}
        return msgspec.structs.replace(case, run_fence=taken[case.run.stream_id].fence)

    # Appending

    async def append_all(self, history: Iterable[Decision]) -> list[AppendResult]:
        """The events of a history, appended one by one."""
        return [
            await self.store.append(draft(event)) for decision in history for event in decision.commit.events
        ]

    async def everything(self, stream_id: str) -> list[Event]:
        """A whole stream, page by page."""
        events: list[Event] = []
        while page := await self.store.fetch(self.tenant_id, stream_id, after_seq=len(events), limit=100):
            events += page
        return events

    # Proofs

    async def audit(self, *stream_ids: str) -> None:
        """Proves the streams by themselves, and their rows and snapshots where the store has these."""
        for stream_id in stream_ids:
            findings = await self.findings(stream_id)
            assert not findings, "\n".join(map(str, findings))
            shown = await self.store.snapshot(self.tenant_id, stream_id)
            assert codec.encode(shown) == codec.encode(await self.store.project(self.tenant_id, stream_id))

    async def findings(self, stream_id: str) -> list[Finding]:
        """What an audit of the stream, and of its rows where the store has them, objects to."""
        if hasattr(self.store, "examine"):
            examined = await self.store.examine(self.tenant_id, stream_id)
            assert examined is not None, f"stream {stream_id} is not there"
            return verify_stream(*examined)
        stream = await self.store.load(self.tenant_id, stream_id)
        assert stream is not None, f"stream {stream_id} is not there"
        return verify_events(stream)


def draft(event: Event) -> EventDraft:
    """An event without its place, as somebody would append it."""
    fields = {name: getattr(event, name) for name in EventDraft.__struct_fields__}
    return EventDraft(**fields)


async def meanwhile(writing: Coroutine[Any, Any, object], read: Callable[[], Awaitable[object]]) -> None:
    """Reads again and again while somebody writes, and once more when that is done."""
    writer = asyncio.ensure_future(writing)
    try:
        while not writer.done():
            await read()
            await asyncio.sleep(0)  # a store that never waits would keep the writer from its turn
        await writer
        await read()
    finally:
        writer.cancel()
        await asyncio.wait([writer])


@asynccontextmanager
async def open_scene(open_store: OpenStore) -> AsyncIterator[Scene]:
    """A scene on a store that is opened for it and closed behind it."""
    clock = VirtualClock()
    scene = Scene(open_store, await open_store(clock), clock)
    try:
        yield scene
    finally:
        await scene.store.close()


@pytest.mark.asyncio
class Suite:
    """What all suites share. A subclass has the fixture `open_store`."""

    @pytest_asyncio.fixture
    async def scene(self, open_store: OpenStore) -> AsyncIterator[Scene]:
        async with open_scene(open_store) as scene:
            yield scene
