"""The pen of one execution: what the handler wants recorded goes down in order, one commit at a time.

Commands gather while a commit is under way and go down together in the next. One that can wait (a
step's start) rides with the next that cannot, or goes by itself after half a second, so that a long
step is visible (§ENG-14). When somebody else wrote to the run meanwhile, the pen reads that, drops
what no longer fits, and decides the rest again.

A commit that lands, as nearly all do, costs neither a task nor a timer of its own: it is decided and
handed over in one turn of the event loop, and its outcome comes back as a callback. Whatever goes
otherwise is mended in a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final

from runstone.core.commands import Command
from runstone.core.commit import Commit, Context, Lease
from runstone.core.decide import Case, CaseWriter, carry_out
from runstone.core.events import Event
from runstone.core.ids import NewId
from runstone.core.state import RunState, SignalState
from runstone.core.stream import Stream
from runstone.engine.fitting import Wanted, fitting
from runstone.engine.patience import Patience
from runstone.engine.refusals import unstorable, without_taken_key
from runstone.errors import (
    CommandRefused,
    DuplicateKey,
    InvalidPayload,
    NotFound,
    OutcomeUnknown,
    StaleSequence,
)
from runstone.ports.cases import RESUBMISSIONS, make_durable
from runstone.ports.clock import Clock
from runstone.ports.store import Committed, Host

VISIBLE_AFTER: Final = 0.5
"""How long a step's start may wait for company, in seconds."""

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
        budget: timedelta,
    ) -> None:
        self._host = host
        self._clock = clock
        self.new_id = new_id
        self._actor = actor
        self._engine_attempt = engine_attempt
        self._absorbed = absorbed
        self._failed = failed
        self._budget = budget.total_seconds()
        self._fences = (case.signal_fence, case.run_fence)
        self._take_case(case)
        self._durable_seq = case.run.last_seq
        self._pending: list[Wanted] = []
        self._next_time: Wanted | None = None
        """Where the next commit stops short, so that a refusal tells whom it means."""
        self._news = False
        self._busy = False
        """Writes, reads or mends, or is about to: what comes meanwhile waits for that."""
        self._taken: Sequence[Wanted] = ()
        self._commit = Commit((), ())
        self._committing = False
        self._under_way: asyncio.Future[Committed] | None = None
        self._mending: asyncio.Task[None] | None = None
        self._dropped = False
        self._broken = False
        """What it holds is not what the log has: nothing is read on top of that."""
        self._alone = Patience(VISIBLE_AFTER, self._start)
        self._overdue = Patience(self._budget, self._lose_patience)
        self._doubtful: list[tuple[frozenset[str], Sequence[Wanted]]] = []
        """Commits that were given up for others, and may land all the same: their events, what for."""

    @property
    def idle(self) -> bool:
        """Nothing is being written, and nothing that cannot wait is left to write."""
        return not self._committing and (not self._busy or not self._pending)

    def note(self, *wanted: Command) -> None:
        """To be written with whatever comes next."""
        self._add(wanted, None)
        self._alone.begin()

    def write(
        self,
        *wanted: Command,
        lease: Lease | None = None,
        instead: Callable[[], Sequence[Wanted]] | None = None,
    ) -> None:
        """To be written now; whoever waits for it is told through `absorbed`.

        `instead` takes the place of the last command if that is not written within the budget.
        """
        self._add(wanted, lease, instead)
        self._start()

    def flush(self) -> None:
        """What was to wait for company goes now."""
        self._start()

    def read_news(self) -> None:
        """Takes in what others wrote to the run, as soon as nothing is under way."""
        self._news = True
        self._start()

    def drop(self) -> None:
        """Nothing more is written; what is under way goes through."""
        self._dropped = True
        self._pending.clear()
        self._alone.cancel()

    async def close(self) -> None:
        """Waits for what is under way, and drops what could wait."""
        while self._busy:
            waiting = self._mending or self._under_way
            await (asyncio.sleep(0) if waiting is None else asyncio.wait([waiting]))
        self.drop()
        self._overdue.cancel()

    def _add(
        self,
        wanted: Sequence[Command],
        lease: Lease | None,
        instead: Callable[[], Sequence[Wanted]] | None = None,
    ) -> None:
        if self._dropped or not wanted:
            return
        now = self._clock.now()
        *others, last = wanted
        self._pending += [Wanted(command, now) for command in others]
        self._pending.append(Wanted(last, now, lease, instead))

    def _take_case(self, case: Case) -> None:
        self._case = CaseWriter(case, self._context())
        self.state = self._case.state
        """The run as it is on the disk, and as the commit that is under way makes it."""

    def _context(self) -> Context:
        return Context(
            now=self._clock.now(),
            new_id=self.new_id,
            actor=self._actor,
            engine_attempt=self._engine_attempt,
        )

    # In turns of the event loop

    def _start(self) -> None:
        """Not at once: what other branches want written in this turn goes down with it."""
        if not self._busy and not self._broken and (self._pending or self._news):
            self._busy = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        if self._news:
            self._mend(self._read_news())
            return
        self._alone.end()
        taken = fitting(self._take(), self.state)
        if not taken:
            self._go_on(())
            return
        self._committing = True
        self._taken = taken
        try:
            self._commit = self._decide(taken)
            self._under_way = asyncio.ensure_future(self._host.commit(self._commit))
        except Exception as error:
            self._mend(self._recover(error))
        else:
            self._overdue.begin()
            self._under_way.add_done_callback(self._answered)

    def _take(self) -> Sequence[Wanted]:
        """All that is to be written, or the part of it that is to go by itself."""
        taken, self._pending = self._pending, []
        if self._next_time is not None:
            places = [place for place, one in enumerate(taken) if one is self._next_time]
            self._next_time = None
            if places:
                taken, self._pending = taken[: places[0]], taken[places[0] :]
        return taken

    def _decide(self, taken: Sequence[Wanted]) -> Commit:
        self._case.begin(self._context())
        carry_out(self._case, [wanted.command for wanted in taken], [wanted.moment for wanted in taken])
        return self._case.commit(next((wanted.lease for wanted in reversed(taken) if wanted.lease), None))

    def _answered(self, answer: asyncio.Future[Committed]) -> None:
        error = OutcomeUnknown() if answer.cancelled() else answer.exception()
        if answer is not self._under_way:  # patience was lost with it: what it says now, the log says too
            return
        self._under_way = None
        self._overdue.end()
        if error is None:
            self._landed()
        else:
            self._mend(self._recover(error))

    def _lose_patience(self) -> None:
        if self._under_way is not None:
            self._under_way = None
            self._mend(self._insist())

    def _landed(self) -> None:
        self._doubtful.clear()
        self._go_on(self._commit.events)

    def _go_on(self, events: Sequence[Event]) -> None:
        """Tells what the log has now, and writes what came up meanwhile."""
        self._durable_seq = self.state.last_seq
        self._committing = False
        try:
            self._absorbed(events)
        except Exception as error:
            self._break_off(error)
            return
        if self._pending or self._news:
            asyncio.get_running_loop().call_soon(self._write)
        else:
            self._busy = False

    def _break_off(self, error: BaseException) -> None:
        """Nothing more is written: what is decided here may rest on what the log does not have."""
        self.drop()
        self._broken = True
        self._busy = self._committing = False
        self._failed(error)

    # In a task

    def _mend(self, mending: Coroutine[Any, Any, None]) -> None:
        self._mending = asyncio.ensure_future(self._mended(mending))

    async def _mended(self, mending: Coroutine[Any, Any, None]) -> None:
        try:
            await mending
        except Exception as error:
            self._break_off(error)
        except asyncio.CancelledError as error:  # the event loop ends: whoever closes the pen need not wait
            self._break_off(error)
            raise
        finally:
            self._mending = None

    async def _recover(self, error: BaseException) -> None:
        """What becomes of commands that could not be decided, or that the store did not take."""
        if isinstance(error, OutcomeUnknown):
            try:
                async with asyncio.timeout(self._budget):
                    await make_durable(self._host, self._commit)
            except TimeoutError:
                await self._insist()
                return
            except (StaleSequence, DuplicateKey) as refusal:
                error = refusal
            else:
                self._landed()
                return
        if isinstance(error, StaleSequence):
            again = self._taken
        elif isinstance(error, DuplicateKey | CommandRefused):
            again, self._next_time = without_taken_key(self._taken, error)
        elif isinstance(error, InvalidPayload):
            again = unstorable(self._taken, error, self._clock.now())
        else:
            raise error
        news = await self._read_again()
        self._pending = [] if self._dropped else [*again, *self._pending]
        self._catch_up(news)

    async def _insist(self) -> None:
        """Beyond the budget: finds out whether it landed, and if not submits it again (§ENG-33, §ENG-34)."""
        for left in reversed(range(RESUBMISSIONS)):
            _log.warning("run %s: a write takes over %s s", self.state.stream_id, self._budget)
            if await self._is_there():
                self._landed()
                return
            if any(wanted.instead for wanted in self._taken):
                await self._give_up()
                return
            if not left:
                break
            try:
                async with asyncio.timeout(self._budget):
                    await make_durable(self._host, self._commit)
            except TimeoutError:
                continue
            except (StaleSequence, DuplicateKey) as refusal:
                await self._recover(refusal)
            else:
                self._landed()
            return
        raise OutcomeUnknown(f"Run {self.state.stream_id}: no write ended within {self._budget} s")

    async def _is_there(self) -> bool:
        """Whether the log has the commit: its last event stands there under its key."""
        last = self._commit.writes[-1].events[-1]
        try:
            async with asyncio.timeout(self._budget):
                found = await self._host.fetch(
                    last.tenant_id, last.stream_id, after_seq=last.run_seq - 1, limit=1
                )
        except TimeoutError:
            return False
        return bool(found) and found[0].idempotency_key == last.idempotency_key and found[0].id == last.id

    async def _give_up(self) -> None:
        """Another commit takes the place of this one, which may still land: the log has one of the two."""
        replaced: list[Wanted] = []
        for wanted in self._taken:
            replaced += [wanted] if wanted.instead is None else wanted.instead()
        self._doubtful.append((frozenset(event.id for event in self._commit.events), replaced))
        news = await self._read_again()
        self._pending = [] if self._dropped else replaced + self._pending
        self._catch_up(news)

    async def _read_news(self) -> None:
        """Folds what others appended to either stream."""
        self._news = False
        signal, run = self._case.signal.fold, self._case.run.fold
        signal_news, run_news = await self._load(signal.last_seq, run.last_seq)
        self._case.take_in(signal_news.events, run_news.events)
        self._catch_up(run_news.events)

    async def _read_again(self) -> Sequence[Event]:
        """The case has what the log has not, so it is folded anew; gives what others have appended."""
        known = self._durable_seq
        signals, runs = await self._load(0, 0)
        signal, run = signals.fold(), runs.fold()
        assert isinstance(signal, SignalState), "a signal stays a signal"
        assert isinstance(run, RunState), "a run stays a run"
        signal_fence, run_fence = self._fences
        case = Case(signal=signal, run=run, signal_fence=signal_fence, run_fence=run_fence)
        self._take_case(case)
        return [event for event in runs.events if event.run_seq > known]

    async def _load(self, signal_seq: int, run_seq: int) -> tuple[Stream, Stream]:
        """The signal first: a run that ends between the two shows its end, and nobody ends it again."""
        signal, run = self._case.signal.fold, self._case.run.fold
        signals = await self._host.load(signal.tenant_id, signal.stream_id, after_seq=signal_seq)
        runs = await self._host.load(run.tenant_id, run.stream_id, after_seq=run_seq)
        if runs is None or signals is None:
            raise NotFound(f"Run {run.stream_id} is gone")
        return signals, runs

    def _catch_up(self, news: Sequence[Event]) -> None:
        """Takes in what others wrote, and what of one's own landed after it had been given up."""
        for made, replaced in self._doubtful:
            if any(event.id in made for event in news):
                done = set(map(id, replaced))
                self._pending = [wanted for wanted in self._pending if id(wanted) not in done]
        self._go_on(news)
