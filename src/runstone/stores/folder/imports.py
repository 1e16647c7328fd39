"""Streams that come whole from another store: all of them, or none (§STO-45, §PIP-47).

Several folders cannot be renamed at once. So they are first put together in a folder of their own,
and the rename that gives this its name is the moment of the commit: whoever comes next, after a
crash as well, moves what is in it to its places.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runstone.core.commit import Commit, StreamWrite
from runstone.core.fold import fold_run, run_fold
from runstone.core.run import Run
from runstone.core.state import RunState
from runstone.errors import CommandRefused, DuplicateKey, StaleSequence, StoreBusy, StoreUnusable
from runstone.stores.folder import queries, snapshots
from runstone.stores.folder.disk import Disk, translated
from runstone.stores.folder.folders import PLACES, Folders, place_of
from runstone.stores.folder.lines import line_of
from runstone.stores.folder.lock import Lock
from runstone.stores.folder.reader import NAME
from runstone.stores.folder.writer import is_untold

ARRIVING: Final = "arriving"
"""Below the root: what was received whole, and is on its way to its places."""

_DRAFT: Final = ".arriving.new"
_LOCK: Final = ".arriving.lock"


def commit(folders: Folders, wanted: Commit) -> None:
    """Writes streams that are new here. Anything else that a commit can do needs a store with a host."""
    for write in wanted.writes:
        place_of(write.kind)
        if write.expected_seq or write.lease is not None:
            raise CommandRefused(
                "A folder has no commits over several streams, only whole streams that come new: "
                "use a SQLite file or PostgreSQL for that"
            )
    with _turn(folders):
        finish_arrival(folders)
        for write in wanted.writes:
            _refuse_known(folders, write)
        draft = folders.root / _DRAFT
        shutil.rmtree(draft, ignore_errors=True)
        _put_together(folders.disk, draft, wanted.writes)
        folders.disk.rename(draft, folders.root / ARRIVING)
        folders.disk.sync_folder(folders.root)
        finish_arrival(folders)


@contextmanager
def _turn(folders: Folders) -> Iterator[None]:
    """One import at a time."""
    lock = Lock(folders.root / _LOCK, folders.disk)
    with translated(folders.root):
        folders.disk.make_all(folders.root)
        lock.take(folders.clock.now())
        try:
            yield
        finally:
            lock.leave()


def _refuse_known(folders: Folders, write: StreamWrite) -> None:
    log = folders.find(write.stream_id)
    if log is not None and log.count:
        raise StaleSequence(write.stream_id, 0, log.count)
    if log is not None and not is_untold(log.folder):
        raise DuplicateKey(f"the folder {log.folder}")
    for row in write.rows:
        if isinstance(row, Run) and row.key is not None:
            queries.refuse_key(folders, row.tenant_id, row.key, row.id)


def _put_together(disk: Disk, draft: Path, writes: Sequence[StreamWrite]) -> None:
    disk.make(draft)
    for kind in PLACES.values():
        disk.make(draft / kind)
    for write in writes:
        folder = draft / place_of(write.kind) / write.stream_id
        disk.make(folder)
        disk.create(folder / NAME, b"".join(line_of(event) + b"\n" for event in write.events))
        if write.kind == "RUN":
            disk.create(folder / snapshots.NAME, _snapshot(write))
        disk.sync_folder(folder)
    for kind in PLACES.values():
        disk.sync_folder(draft / kind)
    disk.sync_folder(draft)


def _snapshot(write: StreamWrite) -> bytes:
    empty = RunState(stream_id=write.stream_id, tenant_id=write.tenant_id)
    return snapshots.content(run_fold(fold_run(empty, write.events)))


def finish(folders: Folders) -> None:
    """Goes on with an import that a crash cut off, unless somebody is at it."""
    if not (folders.root / ARRIVING).is_dir():
        return
    try:
        with _turn(folders):
            finish_arrival(folders)
    except StoreBusy:
        return


def finish_arrival(folders: Folders) -> None:
    """Moves what has arrived to its places; signals before the runs that they set off."""
    arriving = folders.root / ARRIVING
    if not arriving.is_dir():
        return
    for kind in reversed(PLACES.values()):
        waiting = sorted((arriving / kind).iterdir()) if (arriving / kind).is_dir() else []
        if waiting:
            folders.disk.make_all(folders.root / kind)
        for folder in waiting:
            _move(folders, folder, folders.root / kind / folder.name)
        if waiting:
            folders.disk.sync_folder(folders.root / kind)
            folders.disk.sync_folder(arriving / kind)
    shutil.rmtree(arriving)
    folders.disk.sync_folder(folders.root)


def _move(folders: Folders, folder: Path, target: Path) -> None:
    folders.forget(folder.name)
    if not target.is_dir():
        folders.disk.rename(folder, target)
    elif is_untold(target):
        shutil.rmtree(target)
        folders.disk.rename(folder, target)
    elif not (target / NAME).read_bytes().startswith((folder / NAME).read_bytes()):
        raise StoreUnusable(
            f"{folder} was imported, and meanwhile somebody else made {target}: move one of the two away"
        )
