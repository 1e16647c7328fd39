"""Who acts in a story: the machines, and the clients that want something of the runs on them.

A client insists, as one does that wants to be sure: a machine that dies, a store that is busy, an answer that
got lost make it ask again, with the same key or the same id, wherever somebody answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from runstone.core.commands import (
    BeginEffect,
    Command,
    CompleteEffect,
    FailEffect,
    LoseEffect,
    ReconcileEffect,
)
from runstone.core.commit import Context
from runstone.core.effect import Effect
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ControlKind, ErrorInfo
from runstone.core.state import RunState
from runstone.engine.values import write
from runstone.errors import ControlRefused, OutcomeUnknown, RunstoneError, StoreUnusable
from runstone.ports.cases import carry_out
from runstone.testing.clock import SeededIds
from runstone.testing.loop import LoopClock
from runstone.testing.memory import MemoryData
from tests.simulation.corpus import build
from tests.simulation.machines import Gone, Ledger, Machine, Weather, Wire
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.world import World

SERVED: Final = ("POST", "SCHEDULE_TASK", "SOR_UPDATE")
"""What the machines' own dispatchers do."""
TERMINAL: Final = ("COMPLETED", "FAILED", "CANCELLED")


@dataclass
class Started:
    """A run that somebody asked for."""

    scenario: Scenario
    key: str
    run_id: str = ""
    cancelled: bool = False


@dataclass
class Story:
    """What a seed came to."""

    seed: int
    trace: str = ""
    findings: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    events: int = 0


class Stage:
    """Everything of one seed, and what clients do with it."""

    clock: LoopClock
    ids: SeededIds
    client: Machine
    machines: list[Machine]

    def __init__(self, seed: int, *, faults: bool = True, scenarios: Sequence[Scenario] = SCENARIOS) -> None:
        self.story = Story(seed)
        self.random = Random(seed)
        self.faults = faults
        self.data = MemoryData()
        self.ledger = Ledger()
        self.weather = Weather(Random(seed + 1))
        self.world = World(Random(seed + 2))
        self.apps = {version: build(version, self.world) for version in ("1", "2")}
        self.started: list[Started] = []
        self.acknowledged: list[tuple[str, ControlKind, str]] = []
        """Control signals that the gateway said it took: run, kind, id."""
        self.version = "1"
        self._boots = 0
        self._closed = False
        self._errands: set[asyncio.Task[None]] = set()
        self._scenarios = scenarios

    # Machines

    def _boot(self, *, worker: bool = True) -> Machine:
        self._boots += 1
        wire = Wire(self.data, self.clock, self.weather, self.ledger)
        app = copy(self.apps[self.version])
        return Machine(
            f"m{self._boots}", app, wire, self.clock, Random(self.random.getrandbits(64)), worker=worker
        )

    def _somebody(self) -> Machine:
        return self.random.choice([*self.machines, self.client])

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # Runs

    async def _insist(self, work: Callable[[Machine], Coroutine[Any, Any, Any]], machine: Machine) -> Any:
        """As a client does that wants to be sure: again until somebody answers."""
        for _ in range(200):
            try:
                return await machine.do(work(machine))
            except (Gone, StoreUnusable, OutcomeUnknown):
                machine = self.client
                await asyncio.sleep(0.3)
        raise AssertionError("nobody answers")

    async def _start(self, started: Started, machine: Machine) -> None:
        run_id = await self._insist(lambda machine: self._ask_for(started, machine), machine)
        if started.run_id not in ("", run_id):
            self.story.findings.append(f"{started.key} is two runs: {started.run_id} and {run_id}")
        started.run_id = run_id

    async def _ask_for(self, started: Started, machine: Machine) -> str:
        scenario = started.scenario
        if scenario.signal is not None:
            signal = scenario.signal(started.key)
            handle = await machine.app.send(signal, channel="hook", source_id=started.key)
            return handle.id
        handler = machine.app.handlers[scenario.handler]
        return (await machine.app.start(handler, started.key, key=started.key)).id

    def state(self, started: Started) -> RunState:
        state = self.data.streams[started.run_id].state()
        assert isinstance(state, RunState)
        return state

    def _open(self) -> list[Started]:
        return [s for s in self.started if s.run_id and self._status(s) not in TERMINAL]

    def _status(self, started: Started) -> str:
        run = self.state(started).run
        assert run is not None
        return run.status

    # Control signals

    def _retry_failed(self, started: Started) -> bool:
        """Only a step that parks its run: any other failure is for its handler to see."""
        parked = sorted(key for key in self.state(started).unseen_failures if key.startswith("broken"))
        if not parked:
            return False
        self._tell(started, "RETRY_STEP", target=parked[0])
        return True

    def _retry_any(self, started: Started) -> None:
        """Whatever failed: that a handler has seen it is for the engine to know (§ENG-29)."""
        state = self.state(started)
        failed = [
            key
            for key, step_id in state.latest_steps.items()
            if state.steps[step_id].status == "FAILED" and not key.startswith("charge")  # it may, but once
        ]
        if failed:
            self._tell(started, "RETRY_STEP", target=self.random.choice(failed))

    def _tell(self, started: Started, kind: ControlKind, **more: Any) -> None:
        self._errand(self._told(started, kind, self.ids(), **more))

    async def _told(self, started: Started, kind: ControlKind, signal_id: str, **more: Any) -> None:
        async def tell(machine: Machine) -> None:
            await machine.runtime.gateway.control(
                DEFAULT_TENANT, started.run_id, kind, sender="op", control_signal_id=signal_id, **more
            )

        try:
            await self._insist(tell, self._somebody())
        except ControlRefused:
            return
        self.acknowledged.append((started.run_id, kind, signal_id))

    # Effects

    def _for_people(self, effect: Effect) -> bool:
        """Dispatchers take care of what they can; what is left needs somebody."""
        return effect.is_open and (effect.effect_type not in SERVED or effect.status == "UNKNOWN")

    def _outcome(self, effect: Effect, bad: bool) -> tuple[Command, ...]:
        effect_id = effect.id
        if effect.status == "UNKNOWN":
            sent = effect.effect_type != "POST" or effect.idempotency_key in self.world.requests
            return (ReconcileEffect(effect_id=effect_id, sent=sent),)
        if not bad:
            return (CompleteEffect(effect_id=effect_id, executor="x", result=write({"ok": True})),)
        if self.random.random() < 0.3:
            return BeginEffect(effect_id=effect_id, executor="x"), LoseEffect(
                effect_id=effect_id, executor="x"
            )
        error = ErrorInfo(
            category="EXTERNAL", code="DOWN", message="down", retryable=self.random.random() < 0.5
        )
        return (FailEffect(effect_id=effect_id, executor="x", error=error, next_retry_at=self.clock.now()),)

    async def _report(self, run_id: str, commands: tuple[Command, ...]) -> None:
        """What a dispatcher does; that somebody else was faster is no news."""
        context = Context(now=self.clock.now(), new_id=self.ids, actor="dispatcher")

        async def report(machine: Machine) -> None:
            try:
                await carry_out(machine.wire, DEFAULT_TENANT, run_id, *commands, context=context)
            except (StoreUnusable, OutcomeUnknown):
                raise
            except RunstoneError:
                return
            machine.runtime.bell.ring(run_id)

        await self._insist(report, self._somebody())
