"""The folder store: runs as files, with no database (§PIP-1 to §PIP-10).

Calls go, one after the other, to a thread of the store's own, so that no slow sync holds up the event
loop; what is written to a log that is open is done at once where syncs are quick; inline, everything is done
where it is asked for. After each, somebody sees to it that snapshots follow their logs.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

from msgspec import Raw

from runstone.core.codec import NULL
from runstone.core.commit import Commit, Context
from runstone.core.contract import FETCH_LIMIT, AppendResult
from runstone.core.events import Event, EventDraft
from runstone.core.payloads import Payload
from runstone.core.pipeline import FolderSnapshot, PipelineState
from runstone.core.rows import Row
from runstone.core.run import Run
from runstone.core.snapshot import RunSnapshot
from runstone.core.stream import Stream, StreamHead
from runstone.core.tombstone import Tombstone
from runstone.core.transitions import RunStatus
from runstone.errors import StoreClosed
from runstone.ports.clock import Clock, SystemClock
from runstone.ports.folder import Recovery, translate
from runstone.ports.store import Committed
from runstone.stores.folder import imports, queries, runs
from runstone.stores.folder.disk import Disk
from runstone.stores.folder.folders import Folders
from runstone.stores.folder.recovery import recover
from runstone.stores.folder.thread import StoreThread

_T = TypeVar("_T")


class FolderStore:
    """Runs in a folder. Open it with `FolderStore.open`, close it with `close`."""

    contract_version = "2.0.0"

    def __init__(self, root: Path, clock: Clock, disk: Disk, *, inline: bool) -> None:
        self.root = root
        self._folders = Folders(root, clock, disk)
        self._thread = None if inline else StoreThread(self._folders.follow)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        _open.add(self)

    @classmethod
    async def open(
        cls,
        root: str | Path,
        *,
        clock: Clock | None = None,
        inline: bool = False,
        disk: Disk | None = None,
    ) -> FolderStore:
        """Opens a folder; it is made when the first run is. `inline` does all work in the caller's thread."""
        store = cls(Path(root), clock or SystemClock(), disk or Disk(), inline=inline)
        await store._do(store._prepare)
        return store

    def _prepare(self) -> None:
        self._folders.check()
        imports.finish(self._folders)

    async def __aenter__(self) -> FolderStore:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        await self._call(self._folders.close)
        if self._thread is not None:
            self._thread.end()

    def forsake(self) -> None:
        """Is no longer open, and touches nothing: what it had belongs to the process that forked."""
        self._closed = True
        self._folders.forsake()

    def _do(self, work: Callable[..., _T], *arguments: Any) -> Awaitable[_T]:
        """Does one thing after the other."""
        if self._closed:
            raise StoreClosed
        return self._call(work, *arguments)

    def _call(self, work: Callable[..., _T], *arguments: Any) -> Awaitable[_T]:
        if self._thread is None:
            return self._inline(work, *arguments)
        return self._thread.call(self._translated, work, *arguments)

    async def _write(self, stream_id: str, work: Callable[..., _T], *arguments: Any) -> _T:
        """The same for what ends with the sync of a log."""
        if self._thread is None or self._closed:
            return await self._do(work, *arguments)
        ready = functools.partial(self._folders.is_open, stream_id)
        done: _T = await self._thread.call_quickly(ready, self._translated, work, *arguments)
        return done

    async def _inline(self, work: Callable[..., _T], *arguments: Any) -> _T:
        await asyncio.sleep(0)
        try:
            return self._translated(work, *arguments)
        finally:
            self._follow()

    def _translated(self, work: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return work(*arguments)
        except OSError as error:
            raise translate(error, self.root) from error

    def _follow(self) -> None:
        """Inline, a timer of the event loop does what the thread does otherwise."""
        if self._folders.stale and self._timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            left = self._folders.follow(loop.time())
            self._timer = None if left is None else loop.call_later(left, self._follow_on)

    def _follow_on(self) -> None:
        self._timer = None
        self._follow()

    # EventLog

    async def append(self, draft: EventDraft) -> AppendResult:
        return await self._write(draft.stream_id, self._folders.append, draft)

    async def fetch(
        self, tenant_id: str, stream_id: str, *, after_seq: int = 0, limit: int = FETCH_LIMIT
    ) -> Sequence[Event]:
        return await self._do(self._folders.fetch, tenant_id, stream_id, after_seq, limit)

    async def snapshot(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return await self._do(self._folders.snapshot, tenant_id, run_id)

    async def project(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return await self._do(self._folders.project, tenant_id, run_id)

    # RunFolders

    def folder(self, run_id: str) -> Path:
        return self._folders.place("RUN", run_id)

    async def create(
        self,
        tenant_id: str,
        run_id: str,
        *,
        plan_id: str,
        plan_version: str = "",
        key: str | None = None,
        metadata: Raw = NULL,
        context: Context,
    ) -> Run:
        if key is not None:
            await self._do(queries.refuse_key, self._folders, tenant_id, key, run_id)
        return await self._do(
            runs.create, self._folders, tenant_id, run_id, plan_id, plan_version, key, metadata, context
        )

    async def record(self, tenant_id: str, run_id: str, *data: Payload, context: Context) -> Sequence[Event]:
        return await self._write(run_id, runs.record, self._folders, tenant_id, run_id, data, context)

    async def run(self, tenant_id: str, run_id: str) -> Run | None:
        return await self._do(self._folders.run, tenant_id, run_id)

    async def pipeline(self, tenant_id: str, run_id: str) -> PipelineState | None:
        return await self._do(self._folders.pipeline, tenant_id, run_id)

    async def view(self, tenant_id: str, run_id: str) -> FolderSnapshot | None:
        return await self._do(self._folders.view, tenant_id, run_id)

    async def recover(self, tenant_id: str, run_id: str, *, plan_id: str = "", context: Context) -> Recovery:
        return await self._do(recover, self._folders, tenant_id, run_id, plan_id, context)

    async def replay(self, tenant_id: str, run_id: str) -> bytes:
        return await self._do(self._folders.replay, tenant_id, run_id)

    async def run_ids(self) -> Sequence[str]:
        return await self._do(self._folders.ids, "RUN")

    # Of `Host` and `Queries`, what bundles, proofs and lists need

    async def load(self, tenant_id: str, stream_id: str, *, after_seq: int = 0) -> Stream | None:
        return await self._do(queries.load, self._folders, tenant_id, stream_id, after_seq)

    async def commit(self, commit: Commit) -> Committed:
        """Takes whole streams in that are not here yet, all or none, as an import has them (§STO-45).

        A folder cannot take any other commit: `CommandRefused`.
        """
        await self._do(imports.commit, self._folders, commit)
        return Committed()

    async def get_run(self, tenant_id: str, run_id: str) -> Run | None:
        return await self.run(tenant_id, run_id)

    async def find_run(self, tenant_id: str, key: str) -> Run | None:
        return await self._do(queries.find_run, self._folders, tenant_id, key)

    async def list_runs(
        self,
        tenant_id: str,
        *,
        status: RunStatus | None = None,
        handler: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Run]:
        return await self._do(queries.list_runs, self._folders, tenant_id, status, handler, after, limit)

    async def examine(self, tenant_id: str, stream_id: str) -> tuple[Stream, Sequence[Row]] | None:
        return await self._do(queries.examine, self._folders, tenant_id, stream_id)

    async def correlation(self, tenant_id: str, correlation_id: str) -> Sequence[Stream]:
        return await self._do(queries.correlation, self._folders, tenant_id, correlation_id)

    async def heads(self, tenant_id: str, correlation_id: str) -> Sequence[StreamHead]:
        return await self._do(queries.heads, self._folders, tenant_id, correlation_id)

    async def correlations(self, tenant_id: str | None = None) -> AsyncIterator[tuple[str, str]]:
        for found in await self._do(queries.correlations, self._folders, tenant_id):
            yield found

    async def count_events(self, tenant_id: str | None = None) -> int:
        return await self._do(queries.count_events, self._folders, tenant_id)

    async def count_runs(self, tenant_id: str | None = None) -> dict[str, int]:
        return await self._do(queries.count_runs, self._folders, tenant_id)

    async def self_check(self) -> Sequence[str]:
        return await self._do(queries.self_check, self._folders)

    # Nothing is archived: to remove a run is to remove its folder.

    async def find_tombstone(
        self,
        tenant_id: str,
        *,
        stream_id: str | None = None,
        source: tuple[str, str] | None = None,
        run_key: str | None = None,
    ) -> Tombstone | None:
        return None

    async def tombstones(self, tenant_id: str, correlation_id: str) -> Sequence[Tombstone]:
        return []

    async def graveyard(self, tenant_id: str | None = None) -> AsyncIterator[Tombstone]:
        for stone in await self.tombstones("", ""):
            yield stone


_open: Final[WeakSet[FolderStore]] = WeakSet()


def _forsake() -> None:
    """A forked child shares its parent's locks: it must not write under them, nor outlive them."""
    for store in list(_open):
        store.forsake()


os.register_at_fork(after_in_child=_forsake)
