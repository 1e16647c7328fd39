"""The port of runs that live in a folder: what a pipeline stands on (§PIP-1 to §PIP-10).

It is an `EventLog` whose runs have a folder each, with their log, their `snapshot.json` and whatever
else they make. One process at a time writes to a run; `stores/folder` is the adapter.

Beside `append` it has `record`, for the writer of a run: it gives payloads their envelopes. Every
event is durable, in order, before the call returns. Several of one call cost one sync, and are all
refused if one is; a crash may leave the first of them: `recover` says where the run stands.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Raw

from runstone.core.codec import NULL
from runstone.core.commit import Context
from runstone.core.events import Event
from runstone.core.payloads import Payload
from runstone.core.pipeline import FolderSnapshot, PipelineState
from runstone.core.run import Run
from runstone.errors import StoreError, StoreFull, StoreReadOnly, StoreUnusable
from runstone.ports.store import EventLog


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when a run was taken up again, and how it stands now."""

    run_id: str
    tenant_id: str
    snapshot: FolderSnapshot
    """What `snapshot.json` holds now, byte for byte the fold of the log."""
    notes: tuple[str, ...] = ()
    """What was set aside, completed or made again, for people; empty: all was as it should be."""
    failed: str | None = None
    """Why the run could not be taken up and has ended FAILED with the blocker issue `SnapshotInvalid`."""


class RunFolders(EventLog, Protocol):
    """Runs that live in folders."""

    root: Path
    """The folder that `runs/` is in."""

    def folder(self, run_id: str) -> Path:
        """Where the run's files are: `<root>/runs/<run_id>`. Artifacts' paths are relative to it."""
        ...

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
        """Opens a run: a signal of its own, RUN_CREATED, RUN_STARTED; it is RUNNING then.

        Asked for again with the same id, it goes on where a crash cut it off, or returns the run as
        it is. `StoreBusy` when another process writes to it.
        """
        ...

    async def record(self, tenant_id: str, run_id: str, *data: Payload, context: Context) -> Sequence[Event]:
        """Adds the payloads at the end of the run's stream, as events of `context` (§STO-17).

        Each is caused by the run's event before it. What the run's state does not allow raises what the
        fold says (`StateTransitionError`, `CommandRefused`), and none is written. An event that ends the run
        (RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED) ends its signal too.

        `snapshot.json` follows at once when `run_state` changed or the run ended, otherwise within a second
        or two, and when the store is closed. It is never ahead of the log.
        """
        ...

    async def run(self, tenant_id: str, run_id: str) -> Run | None:
        """The run's own row: status, handler, exit reason."""
        ...

    async def pipeline(self, tenant_id: str, run_id: str) -> PipelineState | None:
        """The fold of the run's pipeline events, as of now; none if there is no such run."""
        ...

    async def view(self, tenant_id: str, run_id: str) -> FolderSnapshot | None:
        """The same as `snapshot.json` shows it, folded and not read from that file."""
        ...

    async def recover(self, tenant_id: str, run_id: str, *, plan_id: str = "", context: Context) -> Recovery:
        """Takes a run up again, whatever state a crash left its files in (§PIP-17 to §PIP-19).

        A torn last line is set aside, the snapshot checked by its schema and against the log and made
        again if need be. If the log is missing or broken in its middle, the run ends FAILED with the
        blocker issue `SnapshotInvalid`; `plan_id` is for a log that does not say what ran. `NotFound` when
        there never was such a run, `StoreBusy` when another process writes to it. Safe to repeat.
        """
        ...

    async def replay(self, tenant_id: str, run_id: str) -> bytes:
        """What `snapshot.json` has to be, to the byte, folded from nothing but the log; writes nothing."""
        ...

    async def run_ids(self) -> Sequence[str]:
        """Every run that has a folder, the oldest first (ids sort by time), whatever state it is in."""
        ...


def translate(error: OSError, path: Path) -> StoreError:
    """What the system says of a file of a run, as an error of the store (§STO-3)."""
    said = f"{path}: {error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"{said}. Free some space; nothing that was acknowledged is lost")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreReadOnly(f"{said}. Check the permissions of the folder and of what is in it")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnusable(f"{said}. Raise the limit of open files (`ulimit -n`)")
    return StoreUnusable(said)
