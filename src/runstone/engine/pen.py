"""The pen of one execution: what the handler wants recorded goes down in order, one commit at a time.

Commands gather while a commit is under way and go down together in the next. One that can wait (a
step's start) rides with the next that cannot, or goes by itself after half a second, so that a long
step is visible (§ENG-14). When somebody else wrote to the run meanwhile, the pen reads that, drops
what no longer fits, and decides the rest again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Context, Lease
from runstone.core.decide import Case, Decision, decide
from runstone.core.events import Event
from runstone.core.fold import fold_run, fold_signal
from runstone.core.ids import NewId
from runstone.core.payloads import ErrorInfo
from runstone.core.state import RunState
from runstone.engine.fitting import Wanted, fitting
from runstone.errors import (
    CommandRefused,
    DuplicateKey,
    NotFound,
    OutcomeUnknown,
    RunstoneError,
    StaleSequence,
)
from runstone.ports.cases import RESUBMISSIONS, submit
from runstone.ports.clock import Clock
from runstone.ports.store import Host

VISIBLE_AFTER: Final = 0.5
"""How long a step's start may wait for company, in seconds."""

WRITE_BUDGET: Final = timedelta(seconds=3)
"""How long a write may take before the pen asks whether it landed."""

_log = logging.getLogger("runstone.pen")


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
        budget: timedelta = WRITE_BUDGET,
    ) -> None:
        self.case = case
        self._host = host
        self._clock = clock
        self.new_id = new_id
        self._actor = actor
        self._engine_attempt = engine_attempt
        self._absorbed = absorbed
        self._failed = failed
        self._budget = budget.total_seconds()
        self._pending: list[Wanted] = []
        self._writing: asyncio.Task[None] | None = None
        self._committing = False
        self._dropped = False
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
        self._add(wanted, None)
        if self._later is None and self._writing is None:
            self._later = asyncio.get_running_loop().call_later(VISIBLE_AFTER, self._start)

    def write(self, *wanted: Command, lease: Lease | None = None) -> None:
        """To be written now; whoever waits for it is told through `absorbed`."""
        self._add(wanted, lease)
        self._start()

    def flush(self) -> None:
        """What was to wait for company goes now."""
        self._start()

    async def read_news(self) -> None:
        """Takes in what others wrote to the run."""
        async with self._turn:
            await self._catch_up()

    def drop(self) -> None:
        """Nothing more is written; what is under way goes through."""
        self._dropped = True
        self._pending.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    async def close(self) -> None:
        """Waits for what is under way, and drops what could wait."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self.drop()

    def _add(self, wanted: Sequence[Command], lease: Lease | None) -> None:
        if self._dropped or not wanted:
            return
        now = self._clock.now()
        *others, last = wanted
        self._pending += [Wanted(command, now) for command in others]
        self._pending.append(Wanted(last, now, lease))

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
        taken, self._pending = fitting(self._pending, self.state), []
        if not taken:
            self._committing = False
            self._absorbed(())
            return
        self._committing = True
        try:
            decision = self._decide(taken)
            await self._submit(decision)
        except StaleSequence:
            await self._catch_up()
            self._pending = [] if self._dropped else taken + self._pending
            return
        except (DuplicateKey, CommandRefused) as refusal:
            self._pending = _without_effect(taken, self.state, refusal) + self._pending
            return
        self.case = decision.case
        self._committing = False
        self._absorbed(decision.commit.events)

    def _decide(self, taken: Sequence[Wanted]) -> Decision:
        return decide(
            self.case,
            *(wanted.command for wanted in taken),
            context=self._context(),
            lease=next((wanted.lease for wanted in reversed(taken) if wanted.lease), None),
            times=[wanted.moment for wanted in taken],
        )

    async def _submit(self, decision: Decision) -> None:
        """Commits within the budget; beyond it finds out whether the commit landed (§ENG-33, §ENG-34)."""
        for _ in range(RESUBMISSIONS):
            try:
                async with asyncio.timeout(self._budget):
                    await submit(self._host, decision)
            except TimeoutError:
                _log.warning("run %s: a write takes over %s s", self.state.stream_id, self._budget)
                if await self._landed(decision):
                    return
            else:
                return
        raise OutcomeUnknown(f"Run {self.state.stream_id}: no write ended within {self._budget} s")

    async def _landed(self, decision: Decision) -> bool:
        """Whether the log has this commit: its last event stands there under its key."""
        last = decision.commit.writes[-1].events[-1]
        try:
            async with asyncio.timeout(self._budget):
                found = await self._host.fetch(
                    last.tenant_id, last.stream_id, after_seq=last.run_seq - 1, limit=1
                )
        except TimeoutError:
            return False
        return bool(found) and found[0].idempotency_key == last.idempotency_key and found[0].id == last.id

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
        # The signal first: a run that ends between the two reads shows its end, and nobody ends it again.
        signal = await self._host.load(
            case.signal.tenant_id, case.signal.stream_id, after_seq=case.signal.last_seq
        )
        run = await self._host.load(case.run.tenant_id, case.run.stream_id, after_seq=case.run.last_seq)
        if run is None or signal is None:
            raise NotFound(f"Run {case.run.stream_id} is gone")
        self.case = msgspec.structs.replace(
            case, run=fold_run(case.run, run.events), signal=fold_signal(case.signal, signal.events)
        )
        self._absorbed(run.events)


def _without_effect(wanted: Sequence[Wanted], state: RunState, refusal: RunstoneError) -> list[Wanted]:
    """The same, but for the effect whose key stands for another one: the step that asks fails (§IDM-27)."""
    named = {
        one.command.effect_key: one.command.step_key
        for one in wanted
        if isinstance(one.command, commands.RequestEffect) and one.command.effect_key is not None
    }
    if not named:
        raise refusal
    taken = next((key for key in named if key in state.effect_keys), next(iter(named)))
    step_key = named[taken]
    error = ErrorInfo(category="VALIDATION", code="EFFECT_KEY_TAKEN", message=str(refusal))
    kept: list[Wanted] = []
    for one in wanted:
        if getattr(one.command, "step_key", None) != step_key or isinstance(one.command, commands.StartStep):
            kept.append(one)
        elif isinstance(one.command, commands.CompleteStep):
            failed = commands.FailStep(step_key=step_key, error=error)
            kept.append(msgspec.structs.replace(one, command=failed))
    return kept
