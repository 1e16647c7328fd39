"""The writer: everything that is waiting goes down in one statement, on one of a few connections.

Callers hand commits over and are told when they are durable. A stream is in one batch at a time, so
batches in flight never wait for each other; while the server writes one, the next is encoded. A lone
commit goes at once and costs one round trip: a single statement is a transaction by itself, and ends
by itself, even if nobody is there any more to hear of it.

That is why a lost connection is answered by submitting the same bytes again. The new statement waits
for the locks of the old one, if that still runs, and then either finds its work undone or finds it
done, event for event. To look without a lock would prove nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final

from runstone.core.commit import Commit
from runstone.errors import CommitRefused, OutcomeUnknown, StoreClosed
from runstone.ports.store import Committed
from runstone.ports.troubles import Troubles
from runstone.stores.postgres import commits
from runstone.stores.postgres.connections import Connection, Link
from runstone.stores.postgres.faults import DRIVER, Kind, classify, leaves_open, pause, translate
from runstone.stores.postgres.rows import EVENTS

IN_FLIGHT: Final = 2
"""How many batches are on their way at once: one is written while the other is encoded."""

BATCH: Final = 512
"""The most commits in one statement."""

BYTES: Final = 8 * 1024 * 1024
"""About how many bytes a batch may have; a commit that is larger goes alone."""

TOGETHER: Final = 8
"""So few commits go in one batch, even if a second connection is free."""

COMPANY_SECONDS: Final = 0.05
"""How long fewer commits than are under way wait for those, to go together when they are done. Two small
statements cost the server more than one; and what is under way for longer may wait for somebody itself."""

ATTEMPT_SECONDS: Final = 10.0
"""How long one submission may take before its connection is given up."""

_log = logging.getLogger("runstone.postgres")

_DONE: Final = Committed()
_REPEATED: Final = Committed(repeated=True)


class Work:
    """A commit and the caller who waits for it."""

    __slots__ = ("alone_until", "commit", "future", "size", "streams", "unsure")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.streams = [write.stream_id for write in commit.writes]
        self.size = commits.size(commit)
        self.unsure = False
        """Whether it was submitted and the answer was lost."""
        self.alone_until: float | None = None
        """When patience ends with one that may wait for somebody's transaction: it holds up no others."""
        self.future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()

    def done(self, committed: Committed = _DONE) -> None:
        if not self.future.done():
            self.future.set_result(committed)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Writer:
    """Takes commits in, writes them in batches, tells the callers."""

    def __init__(
        self,
        open_connection: Callable[[], Awaitable[Connection]],
        where: str,
        now: Callable[[], datetime],
        *,
        patience: float,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._where = where
        self._now = now
        self._patience = patience
        self._links = [Link(open_connection, commits.SHAPES) for _ in range(in_flight)]
        self._free = list(self._links)
        self._waiting: deque[Work] = deque()
        self._busy: set[str] = set()
        self._writing: set[asyncio.Task[None]] = set()
        self._called = False
        self._under_way = 0
        """How many commits the server is working on."""
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._told = Troubles(_log)
        self._closed = False
        self.batches = 0
        """How many statements were submitted: for tests and curious people."""

    def commit(self, commit: Commit) -> asyncio.Future[Committed]:
        """Makes a commit durable, or says why not. Those of one turn of the event loop go together."""
        work = Work(commit)
        if self._closed:
            work.fail(StoreClosed())
        elif not commit.writes:
            work.done(_REPEATED)
        elif not commits.one_tenant(commit):
            work.fail(CommitRefused("A commit belongs to one tenant"))
        else:
            self._waiting.append(work)
            self._call()
        return work.future

    def _call(self) -> None:
        if not self._called and self._free and self._waiting:
            self._called = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._called = False
        while self._free and self._waiting and not self._waits_for_company():
            batch = self._take(self._share())
            if not batch:
                return
            self._under_way += len(batch)
            self._since = asyncio.get_running_loop().time()
            task = asyncio.ensure_future(self._write(self._free.pop(), batch))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def _waits_for_company(self) -> bool:
        if len(self._waiting) >= self._under_way:
            return False
        loop = asyncio.get_running_loop()
        left = self._since + COMPANY_SECONDS - loop.time()
        if left > 0 and self._timer is None:
            self._timer = loop.call_later(left, self._wait_no_more)
        return left > 0

    def _wait_no_more(self) -> None:
        self._timer = None
        self._call()

    def _share(self) -> int:
        """Everything, or what is fair to the other free connections."""
        waiting = len(self._waiting)
        return min(BATCH, max(TOGETHER, -(-waiting // len(self._free))))

    def _take(self, most: int) -> list[Work]:
        """The next batch, in the order of coming; a stream's commits stay in their order."""
        taken: list[Work] = []
        kept: list[Work] = []
        blocked: set[str] = set()
        size = 0
        while self._waiting and len(taken) < most:
            work = self._waiting[0]
            if taken and size + work.size > BYTES:
                break
            self._waiting.popleft()
            alone = work.alone_until is not None
            busy = any(stream in self._busy or stream in blocked for stream in work.streams)
            if busy or (alone and taken):
                kept.append(work)
                blocked.update(work.streams)
            else:
                taken.append(work)
                self._busy.update(work.streams)
                size += work.size
                if alone:
                    break
        self._waiting.extendleft(reversed(kept))
        return taken

    async def _write(self, link: Link, batch: list[Work]) -> None:
        put_back = False
        try:
            await self._settle(link, batch)
        except DRIVER as error:
            put_back = True
            self._put_back([work for work in batch if not work.future.done()], error)
        except Exception as error:  # whatever it was, nobody waits for ever
            for work in batch:
                work.fail(self._unknown(error) if work.unsure else error)
        finally:
            for work in batch:
                self._busy.difference_update(work.streams)
                if not put_back and not work.future.done():
                    work.future.cancel()
            self._under_way -= len(batch)
            self._free.append(link)
            self._call()

    def _put_back(self, batch: Sequence[Work], error: Exception) -> None:
        """One of these waits for a transaction that stays open: which, shows when they go one by one."""
        now = asyncio.get_running_loop().time()
        if len(batch) > 1:
            self._waiting.extendleft(reversed(batch))
        for work in batch:
            if work.alone_until is None:
                work.alone_until = now + self._patience
            elif now >= work.alone_until:
                refused = translate(error, self._where)
                work.fail(self._unknown(refused) if work.unsure else refused)
        if len(batch) == 1 and not batch[0].future.done():
            self._waiting.append(batch[0])

    async def _settle(self, link: Link, batch: Sequence[Work], *, doubted: bool = False) -> None:
        """Writes a batch. What the server's rules refuse is searched by halves, and fails alone."""
        try:
            encoded = commits.Batch([work.commit for work in batch], self._now())
            lost = await self._submit(link, batch, encoded.statement, encoded.arguments)
        except (*DRIVER, ValueError) as error:
            kind = classify(error) if isinstance(error, DRIVER) else Kind.REFUSED
            if kind is Kind.BLOCKED:
                raise
            if kind is not Kind.REFUSED:
                raise translate(error, self._where) from error
            if len(batch) > 1:
                half = len(batch) // 2
                await self._settle(link, batch[:half])
                await self._settle(link, batch[half:])
            elif isinstance(error, ValueError):
                batch[0].fail(CommitRefused(f"This cannot be stored: {error}"))
            elif not doubted:
                # The key may have been taken by this very commit, submitted elsewhere and now durable.
                await self._settle(link, batch, doubted=True)
            else:
                batch[0].fail(translate(error, self._where))
        else:
            await self._tell(link, batch, lost)

    async def _tell(self, link: Link, batch: Sequence[Work], lost: Sequence[Sequence[Any]]) -> None:
        heads: dict[int, dict[str, Sequence[Any]]] = {}
        for place, stream_id, *head in lost:
            heads.setdefault(place, {})[stream_id] = head
        for place, work in enumerate(batch):
            if place not in heads:
                work.done()
        there = [
            batch[place].commit
            for place, found in heads.items()
            if commits.may_have_landed(batch[place].commit, found)
        ]
        events = await self._stretches(link, batch, there)
        for place, found in heads.items():
            work = batch[place]
            if commits.landed(work.commit, events):
                work.done(_DONE if work.unsure else _REPEATED)
            else:
                work.fail(commits.refusal(work.commit, found))

    async def _stretches(self, link: Link, batch: Sequence[Work], there: list[Commit]) -> dict[Any, Any]:
        if not there:
            return {}
        rows = await self._submit(link, batch, commits.STRETCHES, commits.stretches(there))
        events = map(EVENTS.unpack, rows)
        return {(event.stream_id, event.run_seq): event for event in events}

    async def _submit(
        self, link: Link, batch: Sequence[Work], statement: str, arguments: Sequence[Any]
    ) -> Any:
        """Submits until there is an answer, the same bytes each time, or until patience is at an end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        attempt = 0
        while True:
            attempt += 1
            sent = False
            try:
                connection = await link.connection()
                sent = True
                self.batches += 1
                return await connection.fetch(statement, *arguments, timeout=ATTEMPT_SECONDS)
            except DRIVER as error:
                kind = classify(error)
                if kind in (Kind.REFUSED, Kind.BLOCKED, Kind.FATAL):
                    raise
                if kind is Kind.OUTAGE:
                    link.drop()
                if sent and leaves_open(error):
                    for work in batch:
                        work.unsure = True
                refused = translate(error, self._where)
                if loop.time() >= deadline:
                    raise refused from error
                if kind is Kind.OUTAGE:
                    self._told.warn(f"cannot write, tries again for up to {self._patience:g} s: {refused}")
            await asyncio.sleep(pause(attempt, kind))

    def _unknown(self, error: Exception) -> OutcomeUnknown:
        """What a caller is told whose commit was submitted once, whatever went wrong afterwards."""
        if isinstance(error, OutcomeUnknown):
            return error
        return OutcomeUnknown(
            f"{self._where}: {error}. It is unknown whether this was written: submit the same again"
        )

    async def close(self) -> None:
        """Finishes what was submitted, then closes the connections."""
        self._closed = True
        while self._writing or self._waiting:
            self._call()
            if self._writing:
                await asyncio.wait(self._writing)
            else:
                await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links:
            await link.close()

    def forsake(self) -> None:
        """In a process that was forked off: the connections are the parent's."""
        self._closed = True
