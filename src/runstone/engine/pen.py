"""The pen of one execution: what the handler wants recorded goes down in order, one commit at a time.

Commands gather while a commit is under way and go down together in the next. One that can wait (a
step's start) rides with the next that cannot, or goes by itself after half a second, so that a long
step is visible (§ENG-33). When somebody else wrote to the run meanwhile, the pen reads that, drops
what no longer fits, and decides the rest again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Context, Lease
from runstone.core.decide import Case, decide
from runstone.core.events import Event
from runstone.core.fold import fold_run, fold_signal
from runstone.core.ids import NewId
from runstone.core.state import RunState
from runstone.errors import NotFound, StaleSequence
from runstone.ports.cases import submit
from runstone.ports.clock import Clock
from runstone.ports.store import Host

VISIBLE_AFTER: Final = 0.5
"""How long a step's start may wait for company, in seconds."""


class Pen:
    """Writes for one execution, under the fence of its claim."""

    def __init__(
        self,
        host: Host,
        case: Case,
        *,
        clock: Clock,
        new_id: NewId,
        actor: str,
        engine_attempt: int,
        absorbed: Callable[[Sequence[Event]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.case = case
        self._host = host
        self._clock = clock
        self.new_id = new_id
        self._actor = actor
        self._engine_attempt = engine_attempt
        self._absorbed = absorbed
        self._failed = failed
        self._pending: list[tuple[Command, datetime]] = []
        self._lease: Lease | None = None
        self._writing: asyncio.Task[None] | None = None
        self._committing = False
        self._turn = asyncio.Lock()
        self._later: asyncio.TimerHandle | None = None

    @property
    def state(self) -> RunState:
        """The run as it is on the disk."""
        return self.case.run

    @property
    def idle(self) -> bool:
        """Nothing is being written, and nothing that cannot wait is left to write."""
        return not self._committing and (self._writing is None or not self._pending)

    def note(self, *wanted: Command) -> None:
        """To be written with whatever comes next."""
        self._add(wanted)
        if self._later is None and self._writing is None:
            self._later = asyncio.get_running_loop().call_later(VISIBLE_AFTER, self._start)

    def write(self, *wanted: Command, lease: Lease | None = None) -> None:
        """To be written now; whoever waits for it is told through `absorbed`."""
        self._add(wanted)
        self._lease = lease or self._lease
        self._start()

    async def read_news(self) -> None:
        """Takes in what others wrote to the run."""
        async with self._turn:
            await self._catch_up()

    def drop(self) -> None:
        """Nothing more is written; what is under way goes through."""
        self._pending.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    async def close(self) -> None:
        """The same, and waits for what is under way."""
        self.drop()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def _add(self, wanted: Sequence[Command]) -> None:
        now = self._clock.now()
        self._pending += [(command, now) for command in wanted]

    def _start(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._writing is None and self._pending:
            self._writing = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            while self._pending:
                async with self._turn:
                    await self._write_once()
        except Exception as error:
            self._failed(error)
        finally:
            self._writing = None
            self._committing = False

    async def _write_once(self) -> None:
        taken, self._pending = self._pending, []
        lease, self._lease = self._lease, None
        self._committing = True
        decision = decide(
            self.case,
            *(command for command, _ in taken),
            context=self._context(),
            lease=lease,
            times=[moment for _, moment in taken],
        )
        try:
            await submit(self._host, decision)
        except StaleSequence:
            await self._catch_up()
            self._pending = [kept for kept in taken if fits(kept[0], self.state)] + self._pending
            return
        self.case = decision.case
        self._committing = False
        self._absorbed(decision.commit.events)

    def _context(self) -> Context:
        return Context(
            now=self._clock.now(),
            new_id=self.new_id,
            actor=self._actor,
            engine_attempt=self._engine_attempt,
        )

    async def _catch_up(self) -> None:
        """Folds what others appended to either stream; the fence stays that of this execution's claim."""
        case = self.case
        run = await self._host.load(case.run.tenant_id, case.run.stream_id, after_seq=case.run.last_seq)
        signal = await self._host.load(
            case.signal.tenant_id, case.signal.stream_id, after_seq=case.signal.last_seq
        )
        if run is None or signal is None:
            raise NotFound(f"Run {case.run.stream_id} is gone")
        self.case = msgspec.structs.replace(
            case, run=fold_run(case.run, run.events), signal=fold_signal(case.signal, signal.events)
        )
        self._absorbed(run.events)


def fits(command: Command, state: RunState) -> bool:
    """Whether a command still makes sense after somebody else wrote to the run."""
    if isinstance(command, commands.SuspendRun):
        return False
    key = getattr(command, "step_key", None)
    if key is None:
        return True
    if key in state.open_steps:
        return not isinstance(command, commands.StartStep)
    if state.run is not None and state.run.status != "RUNNING":
        return False
    return key not in state.latest_steps or key in state.due_attempts
