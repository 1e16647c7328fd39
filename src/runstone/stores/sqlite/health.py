"""How the work in a file is going, and what is wrong with the file, its folder and its disk.

The file is looked at from outside: to open it would mend some of what is to be found.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from runstone.ports.health import Backlog, DueRuns, LostWorker, Problem, Stuck, Unfired, Vitals
from runstone.stores.sql import statements
from runstone.stores.sqlite.files import LOG_BYTES, is_memory, schema_problems
from runstone.stores.sqlite.rows import from_micros, to_micros

_SQL: Final = statements("sqlite")

LONG_LOG: Final = 4 * LOG_BYTES
LEAST_FREE: Final = 256 * 1024 * 1024
"""With less free space than this, or than the file is large, a backup or a busy hour fills the disk."""

NETWORKED: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs")
"""File systems on which SQLite's locks are not to be relied on."""

_WAL: Final = b"\x02\x02"
"""Bytes 18 and 19 of a file that keeps a write-ahead log."""


def vitals(connection: sqlite3.Connection, now: datetime) -> Vitals:
    at = {"now": to_micros(now)}
    latest = connection.execute(_SQL["latest"]).fetchone()
    return Vitals(
        now=now,
        latest=from_micros(latest[0]) if latest else None,
        lost_workers=tuple(
            LostWorker(worker_id=owner, lease_until=None if until is None else from_micros(until), runs=runs)
            for owner, until, runs in connection.execute(_SQL["lost_workers"], at)
        ),
        due_runs=tuple(
            DueRuns(
                handler=handler,
                version=version,
                count=count,
                since=from_micros(since),
                example=run_id,
                tenant_id=owner,
            )
            for handler, version, count, since, run_id, owner in connection.execute(_SQL["due_runs"], at)
        ),
        due_effects=_backlog(connection.execute(_SQL["due_effects"], at).fetchone()),
        dead_letters=dict(connection.execute(_SQL["effects_by_tenant"], {"status": "DEAD_LETTER"})),
        unknown_effects=dict(connection.execute(_SQL["effects_by_tenant"], {"status": "UNKNOWN"})),
        paused=tuple(
            Stuck(reason=reason, count=count, example=example, tenant_id=owner)
            for reason, count, example, owner in connection.execute(_SQL["paused"])
        ),
        unfired=tuple(
            Unfired(task=task, count=count, since=from_micros(since), example=name, tenant_id=owner)
            for task, count, since, name, owner in connection.execute(_SQL["unfired"], at)
        ),
        tenants=dict(connection.execute(_SQL["runs_by_tenant"])),
    )


def _backlog(row: tuple[int, int, str, str]) -> Backlog:
    count, since, example, owner = row
    if not count:
        return Backlog()
    return Backlog(count=count, since=from_micros(since), example=example, tenant_id=owner)


def schema(connection: sqlite3.Connection) -> list[Problem]:
    """How its tables, indexes and triggers differ: no rebuild makes those again."""
    remedy = "Put it right by hand, as `runstone db migrate --sql --from 0` shows it"
    return [Problem(check="schema", what=what, remedy=remedy) for what in schema_problems(connection)]


def file_problems(path: str) -> list[Problem]:
    """Everything that can be seen without opening the file."""
    if is_memory(path):
        return []
    file = Path(path).absolute()
    return [*journal(file), *log_length(file), *network(file), *permissions(file), *free_space(file)]


def journal(file: Path) -> Iterator[Problem]:
    with file.open("rb") as opened:
        header = opened.read(20)
    if header and header[18:20] != _WAL:
        yield Problem(
            check="journal",
            what=f"{file} keeps no write-ahead log: readers and the writer wait for each other",
            remedy="Stop what else uses the file, then open it with Runstone: `runstone db migrate`",
        )


def log_length(file: Path, longest: int = LONG_LOG) -> Iterator[Problem]:
    log = file.with_name(file.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > longest:
        yield Problem(
            check="wal",
            what=f"{log} has {size:,} bytes: somebody has been reading for long, and it cannot start anew",
            remedy="End long reads, such as a transaction open in a SQLite shell, or restart what reads",
        )


def network(file: Path, mounts: Path = Path("/proc/mounts")) -> Iterator[Problem]:
    kind = _file_system(file, mounts)
    if kind in NETWORKED:
        yield Problem(
            check="file system",
            what=f"{file} is on {kind}, a network file system, where locks may not hold: data can be damaged",
            remedy="Move the file to a local disk, or use PostgreSQL for several machines",
        )


def _file_system(file: Path, mounts: Path) -> str:
    """The type of the file system that the file is on; empty where nobody knows."""
    try:
        lines = [line.split() for line in mounts.read_text("utf-8").splitlines()]
    except OSError:
        return ""
    above = [*file.resolve().parents]
    found = [
        (len(line[1]), line[2])
        for line in lines
        if len(line) > 2 and Path(line[1].replace(r"\040", " ")) in above
    ]
    return max(found, default=(0, ""))[1]


def permissions(file: Path) -> Iterator[Problem]:
    for path in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", "-turn", "-lock"))):
        if not path.exists():
            continue
        if not _may(path, os.R_OK | os.W_OK):
            yield _locked(path, "cannot be read and written by this user")
        if path.stat().st_mode & stat.S_IWOTH:
            yield _locked(path, "can be written by everybody on this machine", "chmod o-w")
    if not _may(file.parent, os.W_OK | os.X_OK):
        yield _locked(file.parent, "does not let this user make files: SQLite needs some beside its own")


def _may(path: Path, wanted: int) -> bool:
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def _locked(path: Path, said: str, change: str = "chown or chmod") -> Problem:
    return Problem(
        check="permissions", what=f"{path} {said}", remedy=f"Change its permissions: {change} {path}"
    )


def free_space(file: Path, least: int = LEAST_FREE) -> Iterator[Problem]:
    free = shutil.disk_usage(file.parent).free
    wanted = max(least, file.stat().st_size)
    if free < wanted:
        yield Problem(
            check="disk",
            what=f"The disk of {file} has {free:,} bytes left; {wanted:,} should be free",
            remedy="Free some space, move the file, or archive old runs: `runstone db retain`",
        )
