"""What the simulation is made of: machines that crash and freeze, and the wire to their common store.

Every machine has a store object of its own on the same data. On the way there a call takes time, may get
lost before it is applied, and its answer may get lost after. A `Ledger` notes what the store accepted,
by itself, so that the store's own checks can be checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, TypeVar

import runstone as rs
from runstone.core.commit import Commit, StreamWrite
from runstone.errors import OutcomeUnknown, StoreBusy
from runstone.outbox.builtin import inner_services
from runstone.ports.clock import Clock
from runstone.ports.store import Claim, Committed, DueSchedule, EffectClaim
from runstone.runtime import Runtime
from runstone.testing.clock import SeededIds
from runstone.testing.loop import LoopClock, Node
from runstone.testing.memory import MemoryData, MemoryStore

T = TypeVar("T")

LEASE: Final = timedelta(seconds=6)
_OUTCOMES: Final = ("EFFECT_EXECUTING", "EFFECT_COMPLETED", "EFFECT_FAILED", "EFFECT_OUTCOME_UNKNOWN")


class Gone(Exception):
    """The machine died before it answered."""


@dataclass
class Weather:
    """How bad things are."""

    random: Random
    slow: float = 0.0
    """The longest that a call takes each way, in seconds."""
    busy: float = 0.0
    """How many calls fail before they are applied."""
    lost: float = 0.0
    """How many answers get lost."""

    def calm(self) -> None:
        self.slow = self.busy = self.lost = 0.0


@dataclass
class Ledger:
    """Who owns which run, as the accepted claims and commits say; what was written against that."""

    owners: dict[str, tuple[str, int]] = field(default_factory=dict)
    effects: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Who claimed which effect last, and the fence of that claim."""
    violations: list[str] = field(default_factory=list)

    def claimed(self, worker_id: str, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.owners[claim.run_id] = (worker_id, claim.fence)

    def released(self, worker_id: str, fences: Mapping[str, int]) -> None:
        for run_id, (owner, fence) in list(self.owners.items()):
            if owner == worker_id and fences.get(run_id, fence) == fence + 1:
                self.owners[run_id] = ("", fence + 1)

    def effects_claimed(self, worker_id: str, claims: Sequence[EffectClaim]) -> None:
        for claim in claims:
            _, fence = self.effects.get(claim.effect.id, ("", 0))
            if claim.fence <= fence:
                self.violations.append(f"effect {claim.effect.id} was claimed at {claim.fence} after {fence}")
            self.effects[claim.effect.id] = (worker_id, claim.fence)

    def _outcomes(self, write: StreamWrite) -> None:
        """Whoever moves an effect has the newest claim of it (§OUT-13)."""
        for event in write.events:
            if event.event_type in _OUTCOMES and event.actor.startswith("dispatcher:"):
                owner, _ = self.effects.get(event.aggregate_id, ("", 0))
                if event.actor != f"dispatcher:{owner}":
                    self.violations.append(
                        f"{event.actor} wrote {event.event_type} of {event.aggregate_id}, which {owner} has"
                    )

    def committed(self, commit: Commit) -> None:
        for write in commit.writes:
            if write.kind != "RUN":
                continue
            self._outcomes(write)
            owner, fence = self.owners.get(write.stream_id, ("", 0))
            actors = {event.actor for event in write.events if event.actor.startswith("worker:")}
            if owner and actors - {f"worker:{owner}"}:
                self.violations.append(f"{actors} wrote to run {write.stream_id} of {owner}")
            if write.fence != fence:
                self.violations.append(
                    f"run {write.stream_id} was written at fence {write.fence}, not {fence}"
                )
            if write.raise_fence:
                self.owners[write.stream_id] = ("", fence + 1)
            if write.lease is not None:
                self.owners[write.stream_id] = (write.lease.owner or "", fence)


class Wire(MemoryStore):
    """The store, as one machine sees it."""

    def __init__(self, data: MemoryData, clock: Clock, weather: Weather, ledger: Ledger) -> None:
        super().__init__(data, clock=clock)
        self._weather = weather
        self._ledger = ledger

    async def _turn(self) -> datetime:
        weather = self._weather
        if weather.slow:
            await asyncio.sleep(weather.random.random() ** 4 * weather.slow)
        if weather.random.random() < weather.busy:
            raise StoreBusy("As planned: not applied")
        return await super()._turn()

    async def _answer(self) -> None:
        weather = self._weather
        if weather.slow:
            await asyncio.sleep(weather.random.random() ** 4 * weather.slow)
        if weather.random.random() < weather.lost:
            raise OutcomeUnknown("As planned: applied, and the answer is lost")

    async def commit(self, commit: Commit) -> Committed:
        result = await super().commit(commit)
        if not result.repeated:
            self._ledger.committed(commit)
        await self._answer()
        return result

    async def due_schedules(self, **more: Any) -> Sequence[DueSchedule]:
        found = await super().due_schedules(**more)
        await self._answer()
        return found

    async def claim(self, worker_id: str, **more: Any) -> Sequence[Claim]:
        claims = await super().claim(worker_id, **more)
        self._ledger.claimed(worker_id, claims)
        await self._answer()
        return claims

    async def heartbeat(self, worker_id: str, *, lease: timedelta) -> dict[str, int]:
        news = await super().heartbeat(worker_id, lease=lease)
        await self._answer()
        return news

    async def release(self, worker_id: str, run_ids: Sequence[str] | None = None) -> int:
        count = await super().release(worker_id, run_ids)
        fences = {stream_id: stream.head.fence for stream_id, stream in self.data.streams.items()}
        self._ledger.released(worker_id, fences)
        await self._answer()
        return count

    async def claim_effects(self, worker_id: str, **more: Any) -> Sequence[EffectClaim]:
        claims = await super().claim_effects(worker_id, **more)
        self._ledger.effects_claimed(worker_id, claims)
        await self._answer()
        return claims

    async def extend_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, lease: timedelta
    ) -> Sequence[EffectClaim]:
        claims = await super().extend_effects(worker_id, effect_ids, lease=lease)
        await self._answer()
        return claims

    async def release_effects(
        self, worker_id: str, effect_ids: Sequence[str], *, until: datetime | None = None
    ) -> int:
        count = await super().release_effects(worker_id, effect_ids, until=until)
        await self._answer()
        return count

    async def release_stray_effects(self, worker_id: str, *, keeping: Sequence[str], since: datetime) -> int:
        count = await super().release_stray_effects(worker_id, keeping=keeping, since=since)
        await self._answer()
        return count


class Machine:
    """A process with an app on it."""

    def __init__(
        self,
        name: str,
        app: rs.App,
        wire: Wire,
        clock: LoopClock,
        random: Random,
        *,
        worker: bool = True,
    ) -> None:
        self.name = name
        self.app = app
        self.wire = wire
        self.node = Node(name)
        self.runtime = Runtime(
            wire,
            app.handlers,
            version=app.version,
            clock=clock,
            ids=SeededIds(random.getrandbits(64), clock),
            worker=worker,
            concurrency=16,
            lease=LEASE,
            poll=0.8,
            threads=False,
            jitter=random.random,
            worker_id=name,
            services=[*inner_services(), *app.services] if worker else (),
            calls=8,
        )
        app.attach(self.runtime)
        self._died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.node.call(self.runtime.start)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something in this process; `Gone` if it dies meanwhile."""
        task = self.node.spawn(work)
        either: set[asyncio.Future[Any]] = {task, self._died}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()

    def crash(self) -> None:
        self.node.kill()
        if not self._died.done():
            self._died.set_result(None)

    async def stop(self, deadline: timedelta) -> None:
        """Leaves in good order."""
        await self.do(self.runtime.stop(deadline))
        self.crash()

    async def bury(self) -> None:
        await self.wire.close()
        await self.node.bury()
