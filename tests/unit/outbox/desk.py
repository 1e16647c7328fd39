"""What the tests of the dispatcher share: a store, a clock that the test owns, and an outside that obeys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar

import runstone as rs
from runstone.core import commands
from runstone.core.decide import Case
from runstone.core.effect import Effect
from runstone.core.payloads import ErrorInfo
from runstone.outbox.dispatcher import Dispatcher
from runstone.outbox.services import Service, as_executor
from runstone.ports.bell import Bell
from runstone.ports.cases import carry_out
from runstone.testing.conformance.scene import Scene
from runstone.testing.memory import MemoryData, MemoryStore

LEASE = timedelta(seconds=30)


class Notice(rs.EffectSpec, frozen=True, kw_only=True):
    EFFECT_TYPE: ClassVar[str] = "NOTIFY_USER"

    user_id: str


class Outside:
    """Does what the test wants, and notes who asked."""

    def __init__(self) -> None:
        self.calls: list[rs.EffectCall] = []
        self.host: str | None = "host"
        self.do: Callable[[rs.EffectCall], Awaitable[Any]] = self.well

    async def well(self, call: rs.EffectCall) -> Any:
        return "sent"

    async def down(self, call: rs.EffectCall) -> Any:
        error = ErrorInfo(category="EXTERNAL", code="DOWN", message="down", retryable=True)
        return rs.Failed(error, target_down=True)

    async def execute(self, call: rs.EffectCall) -> Any:
        self.calls.append(call)
        return await self.do(call)

    def target(self, spec: rs.EffectSpec) -> str | None:
        return self.host


class Desk:
    """A store, and dispatchers on it."""

    def __init__(self) -> None:
        data = MemoryData()

        async def open_store(clock: Any) -> Any:
            return MemoryStore(data, clock=clock)

        self.scene = Scene(open_store, None)  # type: ignore[arg-type]
        self.store = self.scene.store = MemoryStore(data, clock=self.scene.clock)
        self.clock = self.scene.clock
        self.outside = Outside()
        self.bell = Bell()
        self.dead: list[Dispatcher] = []

    def dispatcher(self, name: str = "d1", outside: Outside | None = None, **given: Any) -> Dispatcher:
        service = Service(spec=Notice, executor=as_executor(outside or self.outside))
        options: dict[str, Any] = {
            "worker_id": name,
            "clock": self.clock,
            "new_id": self.scene.new_id,
            "bell": self.bell,
            "lease": LEASE,
            "jitter": lambda: 1.0,
        }
        return Dispatcher(self.store, {"NOTIFY_USER": service}, **options | given)

    async def effects(self) -> list[Effect]:
        return sorted(await self.store.list_effects(self.scene.tenant_id), key=lambda effect: effect.id)

    async def statuses(self) -> list[str]:
        return [effect.status for effect in await self.effects()]

    async def cancel(self, case: Case) -> None:
        await carry_out(
            self.store,
            self.scene.tenant_id,
            case.run.stream_id,
            commands.CancelRun(exit_reason="ENOUGH"),
            context=self.scene.context(),
        )

    def types(self, case: Case) -> list[str]:
        events = self.store.data.streams[case.run.stream_id].events
        return [event.event_type for event in events if event.event_type.startswith("EFFECT_")]


async def settle(dispatcher: Dispatcher) -> None:
    """Until nothing is on its way that does not wait for the test."""
    for _ in range(60):
        await asyncio.sleep(0)


async def turn(dispatcher: Dispatcher) -> int:
    claimed = await dispatcher.run_once()
    await settle(dispatcher)
    return claimed
