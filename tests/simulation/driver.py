"""One seed, one story: machines, faults, signals, deploys, all drawn from the seed; then peace, and the reckoning.

In the first part everything goes wrong that can. Then the faults stop, and whatever waits for somebody is
answered: now every run has to come to its end by itself. At last the invariants are checked, and all events
are hashed in the order of the feed: the same seed gives the same hash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from random import Random
from typing import Any, Final

from runstone.core.chain import event_bytes
from runstone.core.commands import BeginEffect, Command, CompleteEffect, FailEffect, LoseEffect, ReconcileEffect
from runstone.core.commit import Context
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ControlKind, ErrorInfo
from runstone.core.state import RunState
from runstone.engine.values import write
from runstone.errors import ControlRefused, OutcomeUnknown, RunstoneError, StoreError, StoreUnusable
from runstone.ports.cases import carry_out
from runstone.testing.clock import SeededIds
from runstone.testing.loop import LoopClock, run_virtual, virtual_loop
from runstone.testing.memory import MemoryData
from tests.simulation.corpus import SCENARIOS, Scenario, World, build
from tests.simulation.machines import LEASE, Gone, Ledger, Machine, Weather, Wire

CHAOS: Final = 25.0
"""How long things go wrong, in virtual seconds."""

PEACE: Final = 200
"""How many rounds of two seconds the runs then have to end."""

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


class Simulation:
    """Everything of one seed."""

    def __init__(
        self, seed: int, *, faults: bool = True, scenarios: Sequence[Scenario] = SCENARIOS
    ) -> None:
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

    def run(self) -> Story:
        handler = _Complaints(self.story.findings)
        logger = logging.getLogger("runstone.worker")
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            run_virtual(self._main())
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate
        return self.story

    async def _main(self) -> None:
        loop = virtual_loop()
        loop.set_exception_handler(self._unhandled)
        self.clock = LoopClock(loop)
        self.ids = SeededIds(self.random.getrandbits(64), self.clock)
        self.graveyard: list[Machine] = []
        self.machines = [self._boot() for _ in range(self.random.randint(1, 8) if self.faults else 2)]
        self.client = self._boot(worker=False)
        try:
            await self._play()
        except Exception as error:
            self.story.findings.append(f"broke off: {error!r}")
        self._close_books()
        await self._clear_up()

    async def _play(self) -> None:
        self._plan()
        if self.faults:
            self.weather.slow = self.random.choice((0.0, 0.02, 0.2))
            self.weather.busy = self.random.choice((0.0, 0.0, 0.02, 0.1))
            self.weather.lost = self.random.choice((0.0, 0.02, 0.1))
            await self._chaos()
        else:
            for started in self.started:
                await self._start(started, self.client)
        await self._peace()

    async def _clear_up(self) -> None:
        """Nothing that happens from here on counts."""
        self._closed = True
        for errand in self._errands:
            errand.cancel()
        for machine in (*self.machines, self.client):
            machine.crash()
            self.graveyard.append(machine)
        for machine in self.graveyard:
            await machine.bury()

    def _close_books(self) -> None:
        digest = sha256()
        for item in self.data.log:
            digest.update(event_bytes(item.event))
        self.story.trace = digest.hexdigest()
        self.story.events = len(self.data.log)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._closed:
            self.story.findings.append(f"unhandled: {context.get('message')}: {context.get('exception')!r}")

    # Machines

    def _boot(self, *, worker: bool = True) -> Machine:
        self._boots += 1
        wire = Wire(self.data, self.clock, self.weather, self.ledger)
        app = copy(self.apps[self.version])
        return Machine(f"m{self._boots}", app, wire, self.clock, Random(self.random.getrandbits(64)), worker=worker)

    def _plan(self) -> None:
        wanted = self._scenarios
        if self.faults:
            theme = self.random.sample(wanted, min(len(wanted), self.random.choice((2, 4, 99))))
            wanted = self.random.choices(theme, k=self.random.randint(3, 12))
        self.started = [Started(scenario, f"{scenario.handler}-{place}") for place, scenario in enumerate(wanted)]

    # Chaos

    async def _chaos(self) -> None:
        moves = self._moves()
        ends = virtual_loop().time() + CHAOS
        unstarted = list(self.started)
        while virtual_loop().time() < ends:
            await asyncio.sleep(self.random.expovariate(2.0))
            if unstarted and self.random.random() < 0.5:
                self._errand(self._start(unstarted.pop(), self._somebody()))
            else:
                move = self.random.choice(moves)
                self.story.actions.append(f"{virtual_loop().time():.3f} {move.__name__}")
                move()
        for started in unstarted:
            self._errand(self._start(started, self.client))

    def _moves(self) -> list[Callable[[], None]]:
        """What happens in this seed, and how often; not every seed has everything."""
        kinds: list[Callable[[], None]] = [
            self._crash,
            self._freeze,
            self._leave,
            self._jump,
            self._deploy,
            self._repeat_start,
            self._contradict,
        ]
        chosen = self.random.sample(kinds, self.random.randint(1, len(kinds)))
        return [*chosen, self._answer, self._answer, self._effect, self._effect, self._control, self._approve]

    def _somebody(self) -> Machine:
        return self.random.choice([*self.machines, self.client])

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _crash(self) -> None:
        place = self.random.randrange(len(self.machines))
        self._replace(place, self.random.choice((0.0, 0.5, 3.0)))

    def _replace(self, place: int, after: float) -> None:
        machine = self.machines[place]
        machine.crash()
        self.graveyard.append(machine)
        self.machines[place] = self._boot()
        if after:
            self.machines[place].node.freeze()
            self._errand(self._thaw(self.machines[place], after))

    def _freeze(self) -> None:
        machine = self.random.choice(self.machines)
        machine.node.freeze()
        self._errand(self._thaw(machine, self.random.choice((1.0, 5.0, 9.0, 15.0))))

    async def _thaw(self, machine: Machine, after: float) -> None:
        await asyncio.sleep(after)
        machine.node.thaw()

    def _leave(self) -> None:
        place = self.random.randrange(len(self.machines))
        machine = self.machines[place]
        if machine.node.state == "alive":
            self.machines[place] = self._boot()
            self.graveyard.append(machine)
            self._errand(self._stop(machine, self.random.choice((0.0, 0.3, 2.0))))

    async def _stop(self, machine: Machine, deadline: float) -> None:
        await machine.stop(timedelta(seconds=deadline))

    def _jump(self) -> None:
        self.clock.jump(timedelta(seconds=self.random.choice((-20, -3, -0.5, 0.5, 3, 20))))

    def _deploy(self) -> None:
        """New code on one machine; the others follow as they are replaced."""
        self.version = "2"
        place = self.random.randrange(len(self.machines))
        self._replace(place, 0.0)

    # What clients do

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

    def _repeat_start(self) -> None:
        known = [started for started in self.started if started.run_id]
        if known:
            self._errand(self._start(self.random.choice(known), self._somebody()))

    def _contradict(self) -> None:
        """The same key with another value: refused, and nothing happens."""
        known = [started for started in self.started if started.run_id and started.scenario.signal is None]
        if known:
            self._errand(self._contradicted(self.random.choice(known), self._somebody()))

    async def _contradicted(self, started: Started, machine: Machine) -> None:
        async def contradict(machine: Machine) -> str | None:
            handler = machine.app.handlers[started.scenario.handler]
            try:
                return (await machine.app.start(handler, "something else", key=started.key)).id
            except RunstoneError as error:
                if isinstance(error, StoreError):
                    raise
                return None

        if await self._insist(contradict, machine) is not None:
            self.story.findings.append(f"{started.key} was taken again with other content")

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

    def _answer(self) -> None:
        """An answer, whether or not somebody waits for it yet."""
        waiting = [s for s in self._open() if s.scenario.answers]
        if waiting:
            started = self.random.choice(waiting)
            name = self.random.choice(sorted(started.scenario.answers))
            self._tell(started, "ANSWER", target=name, data=write(started.scenario.answers[name]))

    def _approve(self) -> None:
        waiting = [s for s in self._open() if s.scenario.handler == "needs_approval"]
        if waiting:
            self._tell(self.random.choice(waiting), "APPROVE")

    def _control(self) -> None:
        running = self._open()
        if not running:
            return
        started = self.random.choice(running)
        kinds: tuple[ControlKind, ...] = ("PAUSE", "PAUSE", "RESUME", "RESUME", "RETRY_STEP", "CANCEL")
        kind = self.random.choice(kinds)
        if kind == "RETRY_STEP" or (kind == "RESUME" and started.scenario.handler == "parks"):
            self._retry_failed(started)
        else:
            started.cancelled |= kind == "CANCEL"
            self._tell(started, kind)

    def _retry_failed(self, started: Started) -> bool:
        """Only a step that stopped its run: what a handler has seen fail stays as it was."""
        state = self.state(started)
        parked = [
            state.steps[step_id].step_key
            for key, step_id in state.latest_steps.items()
            if state.steps[step_id].status == "FAILED"
            and key.startswith("broken")
            and key not in state.due_attempts
        ]
        if not parked or self._status(started) != "PAUSED":
            return False
        self._tell(started, "RETRY_STEP", target=parked[0])
        return True

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

    def _effect(self) -> None:
        found = [(s, e) for s in self.started if s.run_id for e in self.state(s).effects.values() if e.is_open]
        if not found:
            return
        started, effect = self.random.choice(found)
        bad = started.scenario.effects_may_fail and self.random.random() < 0.5
        self._errand(self._report(started.run_id, self._outcome(effect.id, effect.status, bad)))

    def _outcome(self, effect_id: str, status: str, bad: bool) -> tuple[Command, ...]:
        if status == "UNKNOWN":
            return (ReconcileEffect(effect_id=effect_id, sent=True),)
        if not bad:
            return (CompleteEffect(effect_id=effect_id, executor="x", result=write({"ok": True})),)
        if self.random.random() < 0.3:
            return BeginEffect(effect_id=effect_id, executor="x"), LoseEffect(effect_id=effect_id, executor="x")
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

    # Peace

    async def _peace(self) -> None:
        """No more faults; whatever waits for somebody gets it. Then all has to end by itself."""
        self.weather.calm()
        for place in range(len(self.machines)):
            self.machines[place].node.thaw()
            if self.machines[place].app.version != self.version:
                self._replace(place, 0.0)
        await self._finish_errands()
        await asyncio.sleep(LEASE.total_seconds())
        for _ in range(PEACE):
            left = self._open()
            if not left:
                return
            for started in left:
                self._help(started)
            await self._finish_errands()
            await asyncio.sleep(2)
        for started in self._open():
            self.story.findings.append(f"stuck: {started.key} {started.run_id} is {self._describe(started)}")

    async def _finish_errands(self) -> None:
        while self._errands:
            await asyncio.gather(*self._errands)

    def _help(self, started: Started) -> None:
        state = self.state(started)
        assert state.run is not None
        for effect in state.effects.values():
            if effect.is_open:
                self._errand(self._report(state.stream_id, self._outcome(effect.id, effect.status, False)))
        if state.run.status == "PENDING" and state.approval_required:
            self._tell(started, "APPROVE")
        elif state.run.status == "PAUSED":
            if not self._retry_failed(started):
                self._tell(started, "RESUME")
        elif state.suspended:
            for step_id in state.open_steps.values():
                name = state.steps[step_id].wait_name
                if name is not None and name in started.scenario.answers:
                    self._tell(started, "ANSWER", target=name, data=write(started.scenario.answers[name]))

    def _describe(self, started: Started) -> str:
        state = self.state(started)
        stream = self.data.streams[started.run_id]
        return (
            f"{self._status(started)}, wake_at {state.wake_at} (now {self.clock.now()}), owner {stream.owner}, "
            f"open {list(state.open_steps)}, suspended {state.suspended}, attempts {stream.attempts}, "
            f"last {stream.events[-1].event_type}"
        )


class _Complaints(logging.Handler):
    """An engine that could not write what it decided is a finding, unless the store was down."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        errors = [value for value in record.args or () if isinstance(value, BaseException)]
        if not all(isinstance(error, StoreError) for error in errors):
            self._findings.append(f"complaint: {record.getMessage()} {errors!r}")
