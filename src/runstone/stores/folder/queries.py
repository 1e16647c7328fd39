"""What people and programs ask of the folders, answered by reading them: no index is kept.

A question about one stream reads that stream; one about all of them reads the first line of each
log, and whole logs only where it has to. That is meant for as many runs as a person keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

import msgspec

from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import causal_order
from runstone.core.events import Event, StreamKind
from runstone.core.fold import RunFold
from runstone.core.payloads import RunCreated
from runstone.core.rows import Row, all_rows
from runstone.core.run import Run
from runstone.core.stream import Stream, StreamHead
from runstone.core.transitions import RunStatus
from runstone.errors import DuplicateKey, RunstoneError
from runstone.stores.folder import snapshots
from runstone.stores.folder.disk import translated
from runstone.stores.folder.folders import PLACES, Folders
from runstone.stores.folder.lines import classify, describe
from runstone.stores.folder.reader import NAME
from runstone.stores.folder.writer import EventFile

_decode: Final = msgspec.json.Decoder(Event).decode


def openings(folders: Folders, tenant_id: str | None, kind: StreamKind | None = None) -> Iterator[Event]:
    """The first event of every stream; a log whose first line cannot be read has none."""
    for each in PLACES:
        for stream_id in folders.ids(each) if kind in (None, each) else ():
            event = _opening(folders, each, stream_id)
            if event is not None and tenant_id in (None, event.tenant_id):
                yield event


def _opening(folders: Folders, kind: StreamKind, stream_id: str) -> Event | None:
    path = folders.place(kind, stream_id) / NAME
    with translated(path):
        try:
            with path.open("rb") as file:
                return _decode(file.readline())
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return None


def find_run(folders: Folders, tenant_id: str, key: str) -> Run | None:
    for event in openings(folders, tenant_id, "RUN"):
        data = CATALOGUE.decode(event)
        if isinstance(data, RunCreated) and data.key == key:
            return folders.run(tenant_id, event.stream_id)
    return None


def refuse_key(folders: Folders, tenant_id: str, key: str, run_id: str) -> None:
    """A user's own name for a run is unique in its tenant."""
    other = find_run(folders, tenant_id, key)
    if other is not None and other.id != run_id:
        raise DuplicateKey(f"run key {key} (run {other.id})")


def list_runs(
    folders: Folders,
    tenant_id: str,
    status: RunStatus | None,
    handler: str | None,
    after: str | None,
    limit: int,
) -> list[Run]:
    """The newest first; runs whose log is broken are not among them, `self_check` names those."""
    found: list[Run] = []
    for run_id in reversed(folders.ids("RUN")):
        if len(found) == limit:
            break
        run = _readable_run(folders, tenant_id, run_id) if after is None or run_id < after else None
        if run is not None and status in (None, run.status) and handler in (None, run.plan_id):
            found.append(run)
    return found


def _readable_run(folders: Folders, tenant_id: str, run_id: str) -> Run | None:
    try:
        return folders.run(tenant_id, run_id)
    except RunstoneError:
        return None


def load(folders: Folders, tenant_id: str, stream_id: str, after_seq: int = 0) -> Stream | None:
    log = folders.of_tenant(tenant_id, stream_id)
    head = _head(log)
    if log is None or head is None:
        return None
    return Stream(head=head, events=tuple(log.read(after_seq)))


def _head(log: EventFile | None) -> StreamHead | None:
    if log is None:
        return None
    if (broken := log.broken) is not None:
        raise broken
    return log.head


def examine(folders: Folders, tenant_id: str, stream_id: str) -> tuple[Stream, tuple[Row, ...]] | None:
    """A stream and its rows; as nothing but the log is stored, these are what it adds up to."""
    stream = load(folders, tenant_id, stream_id)
    return (stream, all_rows(stream.fold())) if stream else None


def correlation(folders: Folders, tenant_id: str, correlation_id: str) -> list[Stream]:
    """In the order in which they were opened: causes first, then as the clock says."""
    first = [e for e in openings(folders, tenant_id) if e.correlation_id == correlation_id]
    first.sort(key=attrgetter("occurred_at", "id"))
    found = [load(folders, tenant_id, event.stream_id) for event in first]
    streams = {stream.head.stream_id: stream for stream in found if stream is not None}
    order = causal_order(stream.events for stream in streams.values())
    return [streams[stream_id] for stream_id in dict.fromkeys(event.stream_id for event in order)]


def heads(folders: Folders, tenant_id: str, correlation_id: str) -> list[StreamHead]:
    first = [e for e in openings(folders, tenant_id) if e.correlation_id == correlation_id]
    logs = (folders.of_tenant(tenant_id, event.stream_id) for event in first)
    return [head for log in logs if log is not None and (head := log.head) is not None]


def correlations(folders: Folders, tenant_id: str | None) -> list[tuple[str, str]]:
    found = ((event.tenant_id, event.correlation_id) for event in openings(folders, tenant_id))
    return sorted(dict.fromkeys(found))


def count_events(folders: Folders, tenant_id: str | None) -> int:
    logs = (folders.find(event.stream_id) for event in openings(folders, tenant_id))
    return sum(log.count for log in logs if log is not None)


def count_runs(folders: Folders, tenant_id: str | None) -> dict[str, int]:
    openers = openings(folders, tenant_id, "RUN")
    runs = (_readable_run(folders, event.tenant_id, event.stream_id) for event in openers)
    return Counter(run.status for run in runs if run is not None)


def self_check(folders: Folders) -> list[str]:
    """What is wrong with any folder; a line that is being written is not, nor a snapshot that follows."""
    return [problem for kind in PLACES for each in folders.ids(kind) for problem in _check(folders, each)]


def _check(folders: Folders, stream_id: str) -> Iterator[str]:
    log = folders.find(stream_id, folding=True)
    if log is None:
        return
    if (broken := log.broken) is not None:
        yield str(broken)
        return
    if classify(log.rest, log.chain) == "TORN":
        yield f"{log.path}: behind line {log.count} there is {describe(log.rest)}, to be set aside"
    if log.kind == "RUN":
        yield from _check_snapshot(log)


def _check_snapshot(log: EventFile) -> Iterator[str]:
    try:
        fold = log.fold() if log.count else None
    except RunstoneError as error:
        yield str(error)
        return
    path = log.folder / snapshots.NAME
    if not isinstance(fold, RunFold):
        yield f"{log.folder}: there is no log"
        return
    problem = snapshots.problem(path.read_bytes() if path.exists() else None, fold)
    if problem is not None and not problem.usual:
        yield f"{path}: {problem.reason}"
