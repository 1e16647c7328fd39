"""One seed, one story: machines, faults, signals, deploys, all drawn from the seed; then the reckoning.

In the first part everything goes wrong that can. Then the faults stop, and whatever waits for somebody is
answered: now every run has to come to its end by itself. At last the invariants are checked, and all events
are hashed in the order of the feed: the same seed gives the same hash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

import msgspec

from runstone.core.chain import event_bytes
from runstone.core.commit import Context
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ControlKind
from runstone.core.schedule import Schedule
from runstone.engine.values import write
from runstone.errors import CommandRefused, RunstoneError, StoreError
from runstone.ingest.schedules import cancel_schedule
from runstone.testing.clock import SeededIds
from runstone.testing.loop import LoopClock, run_virtual, virtual_loop
from tests.simulation.machines import LEASE, Machine
from tests.simulation.scenarios import TASK
from tests.simulation.stage import SERVED, TERMINAL, Stage, Started, Story

CHAOS: Final = 25.0
"""How long things go wrong, in virtual seconds."""

PEACE: Final = 200
"""How many rounds of two seconds the runs then have to end."""

_PARTS: Final = ("worker", "execution", "pen", "outbox", "scheduler")
"""Those that tell of what goes wrong here all the time; only what is an error to them counts."""


class Simulation(Stage):
    """Plays one seed."""

    def run(self) -> Story:
        handler = _Complaints(self.story.findings)
        loggers = [logging.getLogger(f"runstone.{part}") for part in _PARTS]
        before = [logger.propagate for logger in loggers]
        for logger in loggers:
            logger.propagate = False
            logger.addHandler(handler)
        try:
            run_virtual(self._main())
        finally:
            for logger, propagate in zip(loggers, before, strict=True):
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
            self.world.bad = self.random.choice((0.0, 0.1, 0.4))
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

    def _plan(self) -> None:
        wanted = self._scenarios
        if self.faults:
            theme = self.random.sample(wanted, min(len(wanted), self.random.choice((2, 4, 99))))
            wanted = self.random.choices(theme, k=self.random.randint(3, 12))
        self.started = [
            Started(scenario, f"{scenario.handler}-{place}") for place, scenario in enumerate(wanted)
        ]

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
        if kind == "RETRY_STEP":
            self._retry_any(started)
        elif kind == "RESUME" and started.scenario.handler == "parks":
            self._retry_failed(started)
        else:
            started.cancelled |= kind == "CANCEL"
            self._tell(started, kind)

    # Effects

    def _effect(self) -> None:
        found = [
            (s, e)
            for s in self.started
            if s.run_id
            for e in self.state(s).effects.values()
            if self._for_people(e)
        ]
        if not found:
            return
        started, effect = self.random.choice(found)
        bad = started.scenario.effects_may_fail and self.random.random() < 0.5
        self._errand(self._report(started.run_id, self._outcome(effect, bad)))

    # Peace

    async def _peace(self) -> None:
        """No more faults; whatever waits for somebody gets it. Then all has to end by itself."""
        self.weather.calm()
        self.world.bad = 0.0
        for place in range(len(self.machines)):
            self.machines[place].node.thaw()
            if self.machines[place].app.version != self.version:
                self._replace(place, 0.0)
        await self._finish_errands()
        await asyncio.sleep(LEASE.total_seconds())
        for _ in range(PEACE):
            self._count_tasks()
            left = [started for started in self.started if self._unfinished(started)]
            ticking = [schedule for schedule in self._schedules() if schedule.status == "ACTIVE"]
            if not left and not ticking:
                return
            if not left:
                self._end_ticking(ticking)
            for started in left:
                self._help(started)
            await self._finish_errands()
            await asyncio.sleep(2)
        for started in filter(self._unfinished, self.started):
            self.story.findings.append(f"stuck: {started.key} {started.run_id} is {self._describe(started)}")

    def _count_tasks(self) -> None:
        """What schedules started has to end as well."""
        known = {started.run_id for started in self.started}
        for schedule in self._schedules():
            for event in self.data.streams[schedule.id].events:
                if event.event_type == "TASK_FIRED":
                    run_id = msgspec.json.decode(event.event_data)["run_id"]
                    if run_id not in known and run_id in self.data.streams:
                        self.started.append(Started(TASK, f"{schedule.name}: {run_id}", run_id))

    def _schedules(self) -> list[Schedule]:
        return [schedule for stream in self.data.streams.values() for schedule in stream.of(Schedule)]

    def _end_ticking(self, schedules: Sequence[Schedule]) -> None:
        """What would go on for ever is taken back; what is for once has its time."""
        for schedule in schedules:
            if schedule.cron is not None:
                self._errand(self._take_back(schedule.name))

    async def _take_back(self, name: str) -> None:
        context = Context(now=self.clock.now(), new_id=self.ids, actor="op")

        async def take_back(machine: Machine) -> None:
            with suppress(CommandRefused):
                await cancel_schedule(machine.wire, DEFAULT_TENANT, name, "", context=context)

        await self._insist(take_back, self._somebody())

    async def _finish_errands(self) -> None:
        while self._errands:
            await asyncio.gather(*self._errands)

    def _unfinished(self, started: Started) -> bool:
        """Also a run that has ended is not through while its effects are on their way."""
        effects = self.state(started).effects.values()
        return self._status(started) not in TERMINAL or any(
            effect.is_open for effect in effects if effect.effect_type in SERVED
        )

    def _help(self, started: Started) -> None:
        state = self.state(started)
        assert state.run is not None
        for effect in state.effects.values():
            if self._for_people(effect):
                self._errand(self._report(state.stream_id, self._outcome(effect, False)))
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
            f"{self._status(started)}, wake_at {state.wake_at} (now {self.clock.now()}), "
            f"owner {stream.owner}, attempts {stream.attempts}, "
            f"open {list(state.open_steps)}, suspended {state.suspended}, "
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
