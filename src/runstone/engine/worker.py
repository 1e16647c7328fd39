"""The worker: claims due runs, executes them, keeps its lease, and leaves in good order.

    claim ─► load ─► execute ─► (ended | suspended | paused | lost)

Attempts are counted by the claim, before anything runs. The heartbeat extends one lease for all runs
and brings back which of them have news. To drain is to claim no more, wait for what can finish, and
give the rest back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Raw

from runstone.core import codec
from runstone.core.commands import PauseRun, StartRun
from runstone.core.commit import Context, Lease
from runstone.core.decide import Case
from runstone.core.effect_specs import ScheduleTask
from runstone.core.ids import NewId
from runstone.core.run import Run as RunRow
from runstone.core.run import code_rank
from runstone.engine.budget import WriteBudget
from runstone.engine.cache import ResultCache
from runstone.engine.context import Run
from runstone.engine.execution import ATTEMPTS_BEFORE_QUARANTINE, Ending, Execution
from runstone.engine.functions import Handler
from runstone.errors import RunstoneError, StoreError
from runstone.ports.bell import Bell
from runstone.ports.cases import carry_out, load_case
from runstone.ports.clock import Clock
from runstone.ports.store import Claim, Host
from runstone.ports.troubles import Troubles

LEASE: Final = timedelta(seconds=30)
POLL: Final = 0.25
CLEANING_UP: Final = 5.0
"""How long handlers may clean up when their worker leaves, in seconds."""
CLAIM_AT_ONCE: Final = 64

_log = logging.getLogger("runstone.worker")


class Worker:
    """Executes the runs of some handlers."""

    def __init__(
        self,
        host: Host,
        handlers: Mapping[str, Handler[Any, Any]],
        *,
        worker_id: str,
        clock: Clock,
        new_id: NewId,
        bell: Bell,
        version: str = "",
        concurrency: int = 256,
        lease: timedelta = LEASE,
        poll: float = POLL,
        threads: Executor | None = None,
        emit: Callable[[str, Any], None] = lambda run_id, value: None,
        ended: Callable[[RunRow], None] = lambda run: None,
        jitter: Callable[[], float] = random.random,
        requested: Callable[[], None] = lambda: None,
        check_task: Callable[[ScheduleTask], None] = lambda task: None,
        budget: WriteBudget | None = None,
        cache: ResultCache | None = None,
    ) -> None:
        self.id = worker_id
        self._host = host
        self._handlers = handlers
        self._clock = clock
        self._new_id = new_id
        self._bell = bell
        self._version = version
        self._concurrency = concurrency
        self._lease = lease
        self._poll = poll
        self._threads = threads
        self._emit = emit
        self._ended = ended
        self._requested = requested
        self._check_task = check_task
        self._jitter = jitter
        self._budget = budget
        self._cache = cache or ResultCache(clock)
        self._tasks: set[asyncio.Task[RunRow | None]] = set()
        self._leaving = asyncio.Event()
        self._left = asyncio.Event()
        self._idle = asyncio.Event()
        """Neither a claim nor a heartbeat is on its way."""
        self._idle.set()
        self._executions: dict[str, Execution] = {}
        self._held: Counter[str] = Counter()
        """Runs that this worker is loading, executing or giving back."""
        self._loading: set[str] = set()
        self._rung_early: set[str] = set()
        """Runs that had news while they were being loaded."""
        self._strays: set[str] = set()
        self._troubles: Counter[str] = Counter()
        self._reserved = 0
        self._told = Troubles(_log)
        self._leased_until: datetime | None = None
        self._lapses = 0
        """How often its lease has ended."""
        self._wake = asyncio.Event()
        self._stopping = False

    @property
    def free(self) -> int:
        """How many more runs it can take."""
        return 0 if self._stopping else self._concurrency - len(self._held) - self._reserved

    def holds(self, run_id: str) -> bool:
        """Whether the run is in its memory."""
        return run_id in self._held

    @contextmanager
    def reserve(self) -> Iterator[bool]:
        """A place for a run that is about to be created in this worker's name, if there is one.

        There is none before the worker's lease is in the store: others would take the run at once.
        """
        place = self.free > 0 and self._leased_until is not None
        self._reserved += place
        try:
            yield place
        finally:
            self._reserved -= place

    async def run(self) -> None:
        """Works until it is stopped."""
        self._idle.clear()
        unlisten = self._bell.listen(self._rung)
        heartbeat = asyncio.ensure_future(self._beat())
        heartbeat.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stopping:
                self._wake.clear()
                if heartbeat.done():  # whoever cannot keep its lease claims nothing
                    heartbeat.result()
                claimed = await self._claim()
                if claimed == 0 or self.free == 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._poll * (0.5 + self._jitter()))
            await self._left.wait()  # what still runs while the worker drains keeps its lease
        finally:
            unlisten()
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
            self._idle.set()

    def adopt(self, case: Case) -> None:
        """Executes a run that was created in this worker's name: claimed by the commit that made it."""
        assert case.run.run is not None
        claim = Claim(
            run_id=case.run.stream_id,
            tenant_id=case.run.tenant_id,
            handler=case.run.run.plan_id,
            fence=case.run_fence,
            attempts=1,
        )
        self._spawn(claim, case)

    async def drain(self, deadline: timedelta = timedelta(seconds=30)) -> None:
        """Claims no more, lets runs finish until the deadline, gives back the rest."""
        self._stopping = True
        self._leaving.set()
        self._wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=deadline.total_seconds())
        await self.abandon()
        with suppress(TimeoutError):  # a claim that lands after the release would bring a dead worker's runs
            await asyncio.wait_for(self._idle.wait(), self._lease.total_seconds())
        with suppress(RunstoneError):
            await self._host.release(self.id)

    async def abandon(self) -> None:
        """Drops everything at once, as a crash would, but for the handlers' own cleaning up."""
        self._stopping = True
        self._wake.set()
        self._leaving.set()
        for execution in list(self._executions.values()):
            execution.abandon()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=CLEANING_UP)
            if left:
                _log.warning("%d runs do not let themselves be cancelled: they are left behind", len(left))
        self._left.set()

    # Claiming

    def _rung(self, run_id: str) -> None:
        if run_id in self._loading:
            self._rung_early.add(run_id)
        elif run_id in self._executions:
            self._read_news(run_id)
        self._wake.set()

    async def _claim(self) -> int:
        limit = min(self.free, CLAIM_AT_ONCE)
        if limit <= 0:
            return 0
        now = self._clock.now()
        try:
            claims = await self._host.claim(
                self.id,
                handlers=list(self._handlers),
                code_rank=code_rank(self._version),
                limit=limit,
                lease=self._lease,
            )
        except RunstoneError as error:
            self._told.warn(f"cannot claim runs: {error}")
            return 0
        self._leased(now)
        if self._stopping:  # they are given back with whatever else it has
            return 0
        for claim in claims:
            self._spawn(claim, None)
        return len(claims)

    def _spawn(self, claim: Claim, case: Case | None) -> None:
        self._held[claim.run_id] += 1
        task = asyncio.ensure_future(self._execute(claim, case))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._let_go(claim.run_id, task))

    def _let_go(self, run_id: str, task: asyncio.Task[RunRow | None]) -> None:
        """Its place is free before anybody hears of its end: who starts the next run then finds one."""
        self._tasks.discard(task)
        self._held[run_id] -= 1
        if self._held[run_id] <= 0:
            del self._held[run_id]
        self._wake.set()
        if not task.cancelled() and (ended := task.result()) is not None:
            self._ended(ended)

    # Executing

    async def _execute(self, claim: Claim, case: Case | None) -> RunRow | None:
        """The run as it is when it leaves this worker's memory; none if that is for others to tell."""
        previous = self._executions.get(claim.run_id)
        if previous is not None:
            previous.abandon()
        try:
            case = case or await self._load(claim)
            if case is None or self._leaving.is_set():
                return None
            execution = Execution(
                self._handle,
                case,
                claim,
                self._host,
                worker_id=self.id,
                clock=self._clock,
                new_id=self._new_id,
                jitter=self._jitter,
                code_version=self._version,
                budget=self._budget,
            )
            self._executions[claim.run_id] = execution
            if claim.run_id in self._rung_early:
                self._rung_early.discard(claim.run_id)
                self._read_news(claim.run_id)
            try:
                ending = await execution.run()
            finally:
                if self._executions.get(claim.run_id) is execution:
                    del self._executions[claim.run_id]
            return await self._report(claim, execution, ending)
        except Exception as error:
            await self._give_back(claim, error)
            return None

    async def _load(self, claim: Claim) -> Case | None:
        self._loading.add(claim.run_id)
        self._rung_early.discard(claim.run_id)
        lapses = self._lapses
        try:
            case = await load_case(self._host, claim.tenant_id, claim.run_id)
        finally:
            self._loading.discard(claim.run_id)
        if lapses != self._lapses or self._expired:  # another worker's by now, maybe (§STO-24)
            _log.warning("run %s is given up: the lease ended while it was being loaded", claim.run_id)
            return None
        if case is not None and case.run_fence != claim.fence:
            _log.warning("run %s is given up: it was claimed again while it was being loaded", claim.run_id)
            return None
        return case

    async def _report(self, claim: Claim, execution: Execution, ending: Ending) -> RunRow | None:
        if ending == "failed":
            await self._give_back(claim, execution.error)
            return None
        self._troubles.pop(claim.run_id, None)
        if ending == "paused" and execution.keeps_lease:
            await self._host.release(self.id, [claim.run_id])
        return None if ending == "lost" else execution.state.run

    async def _give_back(self, claim: Claim, error: BaseException | None) -> None:
        """What cannot be read or written here is left to whoever claims it, after a while and no sooner."""
        _log.error("run %s stops here: %s", claim.run_id, error, exc_info=error)
        self._troubles[claim.run_id] += 1
        shortest = min(self._poll, POLL)  # whoever need not look often has no reason to wait longer
        rest = min(self._lease.total_seconds(), shortest * 2 ** self._troubles[claim.run_id])
        with suppress(TimeoutError):
            await asyncio.wait_for(self._leaving.wait(), rest)
        with suppress(RunstoneError):
            if self._troubles[claim.run_id] > ATTEMPTS_BEFORE_QUARANTINE and not isinstance(
                error, StoreError
            ):
                await self._quarantine(claim, error)
            else:
                await self._host.release(self.id, [claim.run_id])

    async def _quarantine(self, claim: Claim, error: BaseException | None) -> None:
        """It is not the store that keeps failing it: somebody has to look at it (§ENG-49)."""
        case = await load_case(self._host, claim.tenant_id, claim.run_id)
        waits = case is not None and case.run.run is not None and case.run.run.status != "RUNNING"
        start = (StartRun(orchestrator_version=self._version),) if waits else ()
        details = codec.canonical({"attempts": self._troubles.pop(claim.run_id), "error": str(error)})
        await carry_out(
            self._host,
            claim.tenant_id,
            claim.run_id,
            *start,
            PauseRun(reason="QUARANTINED", details=details),
            context=Context(now=self._clock.now(), new_id=self._new_id, actor=f"worker:{self.id}"),
            lease=Lease(owner=None),
            fence=claim.fence,
        )

    async def _handle(self, execution: Execution) -> Raw:
        """Calls the handler with the value it was started with."""
        state = execution.state
        assert state.run is not None
        handler = self._handlers[state.run.plan_id]
        run = Run(
            execution,
            clock=self._clock,
            threads=self._threads,
            emit=self._emit,
            cache=self._cache,
            requested=self._requested,
            check_carry=handler.check_carry,
            check_task=self._check_task,
        )
        arguments = handler.read_input(execution.case)
        return handler.signature.result.written(await handler.function(run, *arguments))

    # Keeping the lease

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            executions = dict(self._executions)
            now = self._clock.now()
            try:
                async with asyncio.timeout(self._lease.total_seconds() / 3):
                    news = await self._host.heartbeat(self.id, lease=self._lease)
            except (RunstoneError, TimeoutError) as error:
                _log.warning("cannot extend the lease: %s", str(error) or "the store takes too long")
                self._stop_if_expired()
                continue
            self._leased(now)
            for run_id, execution in executions.items():
                if run_id not in news:
                    execution.abandon()
                elif news[run_id] > execution.state.last_seq:
                    self._read_news(run_id)
            await self._release_strays(news)

    def _leased(self, now: datetime) -> None:
        """It has a lease from now on; what it was loading under one that had ended may be another's."""
        self._lapses += self._expired
        self._leased_until = now + self._lease

    def _stop_if_expired(self) -> None:
        """Whoever could not renew its lease in time has lost its runs, and stops (§STO-24)."""
        if self._expired:
            self._leased_until = None
            self._lapses += 1
            for execution in self._executions.values():
                execution.abandon()

    @property
    def _expired(self) -> bool:
        return self._leased_until is not None and self._clock.now() >= self._leased_until

    async def _release_strays(self, news: Mapping[str, int]) -> None:
        """Runs that it owns and does not work on, at two heartbeats in a row, are given back."""
        idle = {run_id for run_id in news if run_id not in self._held}
        strays, self._strays = self._strays & idle, idle
        if strays:
            with suppress(RunstoneError):
                await self._host.release(self.id, sorted(strays))

    def _read_news(self, run_id: str) -> None:
        execution = self._executions.get(run_id)
        if execution is not None:
            execution.read_news()
