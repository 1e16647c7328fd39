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
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from msgspec import Raw

from runstone.core.decide import Case
from runstone.core.ids import NewId
from runstone.core.run import code_rank
from runstone.engine.context import Run
from runstone.engine.execution import Ending, Execution
from runstone.engine.functions import Handler
from runstone.engine.values import write
from runstone.errors import RunstoneError
from runstone.ports.bell import Bell
from runstone.ports.cases import load_case
from runstone.ports.clock import Clock
from runstone.ports.store import Claim, Host

LEASE: Final = timedelta(seconds=30)
POLL: Final = 0.25
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
        ended: Callable[[str], None] = lambda run_id: None,
        jitter: Callable[[], float] = random.random,
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
        self._jitter = jitter
        self._tasks: set[asyncio.Task[None]] = set()
        self._executions: dict[str, Execution] = {}
        self._news: set[str] = set()
        self._wake = asyncio.Event()
        self._stopping = False

    @property
    def free(self) -> int:
        """How many more runs it can take."""
        return 0 if self._stopping else self._concurrency - len(self._tasks)

    async def run(self) -> None:
        """Works until it is stopped."""
        unlisten = self._bell.listen(self._rung)
        heartbeat = asyncio.ensure_future(self._beat())
        try:
            while not self._stopping:
                self._wake.clear()
                claimed = await self._claim()
                if claimed == 0 or self.free == 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._poll * (0.5 + self._jitter()))
        finally:
            unlisten()
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

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
        self._wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=deadline.total_seconds())
        await self.abandon()
        with suppress(RunstoneError):
            await self._host.release(self.id)

    async def abandon(self) -> None:
        """Drops everything at once, as a crash would, but for the handlers' own cleaning up."""
        self._stopping = True
        self._wake.set()
        for execution in list(self._executions.values()):
            execution.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # Claiming

    def _rung(self, run_id: str) -> None:
        if run_id in self._executions:
            self._read_news(run_id)
        self._wake.set()

    async def _claim(self) -> int:
        limit = min(self.free, CLAIM_AT_ONCE)
        if limit <= 0:
            return 0
        try:
            claims = await self._host.claim(
                self.id,
                handlers=list(self._handlers),
                code_rank=code_rank(self._version),
                limit=limit,
                lease=self._lease,
            )
        except RunstoneError as error:
            _log.warning("cannot claim runs: %s", error)
            return 0
        for claim in claims:
            self._spawn(claim, None)
        return len(claims)

    def _spawn(self, claim: Claim, case: Case | None) -> None:
        task = asyncio.ensure_future(self._execute(claim, case))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._wake.set())

    # Executing

    async def _execute(self, claim: Claim, case: Case | None) -> None:
        previous = self._executions.get(claim.run_id)
        if previous is not None:
            previous.abandon()
        try:
            case = case or await load_case(self._host, claim.tenant_id, claim.run_id)
            if case is None:
                return
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
            )
            self._executions[claim.run_id] = execution
            try:
                ending = await execution.run()
            finally:
                if self._executions.get(claim.run_id) is execution:
                    del self._executions[claim.run_id]
            self._report(claim, execution, ending)
        except RunstoneError as error:
            _log.error("run %s: %s", claim.run_id, error)

    def _report(self, claim: Claim, execution: Execution, ending: Ending) -> None:
        if ending == "failed":
            _log.error("run %s could not be written: %s", claim.run_id, execution.error)
        elif ending != "lost":
            self._ended(claim.run_id)

    async def _handle(self, execution: Execution) -> Raw:
        """Calls the handler with the value it was started with."""
        state = execution.state
        assert state.run is not None
        handler = self._handlers[state.run.plan_id]
        run = Run(execution, clock=self._clock, threads=self._threads, emit=self._emit)
        arguments = handler.read_input(execution.pen.case)
        return write(await handler.function(run, *arguments))

    # Keeping the lease

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            try:
                news = await self._host.heartbeat(self.id, lease=self._lease)
            except RunstoneError as error:
                _log.warning("cannot extend the lease: %s", error)
                continue
            for run_id, execution in list(self._executions.items()):
                if run_id not in news:
                    execution.abandon()
                elif news[run_id] > execution.state.last_seq:
                    self._read_news(run_id)

    def _read_news(self, run_id: str) -> None:
        execution = self._executions[run_id]
        task = asyncio.ensure_future(execution.read_news())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
