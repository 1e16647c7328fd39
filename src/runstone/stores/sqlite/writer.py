"""The writer: one thread, one connection, everything that is waiting in one transaction.

Callers hand work over and are told when it is durable. Whatever came in while the last batch was
being written makes the next one, so the busier the store, the larger its batches and the fewer
its syncs. In simulation the writer runs inline, in the caller's own thread.

Two measured facts shape it. Two threads that fight over Python's lock both get slower, so there is
little for this one to do in Python: commits come packed, and a batch is a few statements. And a thread
that lets go of the lock at every statement starves beside a loop that is never idle, unless threads
take turns more often than every 5 ms, Python's default.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from runstone.core.commit import Commit
from runstone.errors import StoreClosed
from runstone.ports.clock import Clock
from runstone.ports.store import Committed
from runstone.stores.sqlite.commits import Batch, Outcome, Packed, apply, apply_together
from runstone.stores.sqlite.faults import is_outage, translate
from runstone.stores.sqlite.files import BUSY_SECONDS, NOTICE_SECONDS, Turn
from runstone.stores.sqlite.rows import to_micros
from runstone.stores.sqlite.wal import WriteAheadLog

_T = TypeVar("_T")
_log = logging.getLogger("runstone.sqlite")

BATCH: Final = 1024
"""The most pieces of work in one transaction."""

SWITCH_INTERVAL: Final = 5e-5
"""How long a thread may keep Python's lock, in seconds, once a writer thread runs in the process."""


class Work:
    """One piece of work and the caller who waits for it: a commit, or any other change."""

    __slots__ = ("commit", "future", "job", "outcome")

    def __init__(self, commit: Packed | None, job: Callable[[sqlite3.Connection], Any] | None) -> None:
        self.commit = commit
        self.job = job
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.outcome: Any = None

    def deliver(self) -> None:
        if self.future.done():
            return
        if isinstance(self.outcome, BaseException):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


class Writer:
    """Takes work in, writes it in batches, tells the callers; they may live in different event loops."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        clock: Clock,
        turn: Turn,
        *,
        inline: bool,
    ) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._turn = turn
        self._log = WriteAheadLog(connection, path)
        self._be_patient(NOTICE_SECONDS)
        self._closed = False
        self._guard = threading.Lock()
        self._gathered: dict[asyncio.AbstractEventLoop, list[Work]] = {}
        self._queue: SimpleQueue[list[Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if not inline:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
            self._thread = threading.Thread(target=self._run, name="runstone-sqlite-writer", daemon=True)
            self._thread.start()

    def commit(self, commit: Commit) -> asyncio.Future[Committed]:
        """Makes a commit durable, or says why not."""
        return self._submit(Work(Packed(commit), None))

    async def execute(self, job: Callable[[sqlite3.Connection], _T]) -> _T:
        """Makes any other change durable; the job runs inside the batch's transaction."""
        done: _T = await self._submit(Work(None, job))
        return done

    def _submit(self, work: Work) -> asyncio.Future[Any]:
        """Work that comes in one turn of the event loop is handed over together."""
        if self._thread is None and not self._closed:
            self._write([work])
            work.deliver()
            return work.future
        loop = work.future.get_loop()
        with self._guard:
            if self._closed:  # asked under the guard: another event loop may be closing it just now
                work.future.set_exception(StoreClosed())
                return work.future
            gathered = self._gathered.setdefault(loop, [])
            gathered.append(work)
        if len(gathered) == 1:
            loop.call_soon(self._hand_over, loop)
        return work.future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            gathered = self._gathered.pop(loop, None)
            if gathered:
                self._queue.put(gathered)

    async def close(self) -> None:
        """Finishes what was submitted, then closes the connection."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            for gathered in self._gathered.values():
                self._queue.put(gathered)
            self._gathered.clear()
            self._queue.put(None)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._connection.close()

    def forsake(self) -> None:
        """In a process that was forked off: there is no thread here, and the connection is the parent's."""
        self._closed = True

    # In the writer's thread

    def _run(self) -> None:
        waiting: deque[Work] = deque()
        closing = False
        while waiting or not closing:
            while not closing and not (waiting and self._queue.empty()):
                gathered = self._queue.get()
                closing = gathered is None
                waiting.extend(gathered or ())
            batch = [waiting.popleft() for _ in range(min(len(waiting), BATCH))]
            if batch:
                self._write(batch)
                self._tell(batch)

    def _write(self, batch: Sequence[Work]) -> None:
        """One transaction; an outage is every caller's failure, anything else only its own caller's."""
        committing = False
        try:
            commits = Batch([work.commit for work in batch if work.commit is not None])
            with self._turn():
                self._begin()
                self._apply(batch, commits)
                committing = True
                self._connection.execute("COMMIT")
                self._log.trim()
        except Exception as error:  # whatever it was, the thread goes on and nobody waits for ever
            self._roll_back()
            if len(batch) > 1 and not is_outage(error):
                for work in batch:
                    self._write([work])
            else:
                for work in batch:
                    work.outcome = translate(error, self._path, committing=committing)

    def _begin(self) -> None:
        """Takes SQLite's lock. Whoever keeps us waiting passed no turnstile, so that nothing names it."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise
        _log.warning("%s: another program holds the file; waiting for up to %g s", self._path, BUSY_SECONDS)
        self._be_patient(BUSY_SECONDS - NOTICE_SECONDS)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._be_patient(NOTICE_SECONDS)

    def _be_patient(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # the transaction may be gone already, which is what is wanted
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _apply(self, batch: Sequence[Work], commits: Batch) -> None:
        submitted = [work for work in batch if work.commit is not None]
        if submitted:
            for work, outcome in zip(submitted, self._commit(commits), strict=True):
                work.outcome = outcome
        for work in batch:
            if work.job is not None:
                work.outcome = self._execute(work.job)

    def _commit(self, batch: Batch) -> Sequence[Outcome]:
        """All together; with a bad one among them, which is seldom, once more and each by itself."""
        now = to_micros(self._clock.now())
        try:
            return apply_together(self._connection, batch, now)
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK")
            self._begin()
            return apply(self._connection, batch.commits, now, self._path)

    def _execute(self, job: Callable[[sqlite3.Connection], Any]) -> Any:
        """Runs a job that may be refused without taking the batch with it."""
        self._connection.execute("SAVEPOINT job")
        try:
            result = job(self._connection)
        except Exception as error:
            if is_outage(error):
                raise
            self._connection.execute("ROLLBACK TO job")
            result = translate(error, self._path) if isinstance(error, sqlite3.Error) else error
        self._connection.execute("RELEASE job")
        return result

    def _tell(self, batch: Sequence[Work]) -> None:
        """Wakes each event loop once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Work]] = {}
        for work in batch:
            by_loop.setdefault(work.future.get_loop(), []).append(work)
        for loop, done in by_loop.items():
            with suppress(RuntimeError):  # a closed loop: nobody waits any more
                loop.call_soon_threadsafe(_deliver, done)


def _deliver(done: Sequence[Work]) -> None:
    for work in done:
        work.deliver()
