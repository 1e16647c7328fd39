"""Taking a run up again, whatever a crash or a person did to its files (§PIP-17 to §PIP-19).

If the log can be read, it decides, and the snapshot is made to say the same. If it cannot, the run
ends: the log goes on from its last proven line with the blocker issue `SnapshotInvalid` and the
run's failure. Nothing is thrown away: the log as it was found, and a snapshot that says something
else, stay beside it under the name of their hash.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

from runstone.core import codec
from runstone.core.chain import event_bytes
from runstone.core.commit import Context, StreamWriter
from runstone.core.events import Event
from runstone.core.fold import RunFold, run_fold
from runstone.core.payloads import ErrorInfo, IssueOpened, RunCreated, RunFailed, RunStateChanged
from runstone.core.state import RunState
from runstone.core.transitions import RUN
from runstone.errors import NotFound, SnapshotInvalid
from runstone.ports.folder import Recovery
from runstone.stores.folder import snapshots
from runstone.stores.folder.disk import translated
from runstone.stores.folder.folders import Folders
from runstone.stores.folder.lines import line_of
from runstone.stores.folder.reader import NAME
from runstone.stores.folder.runs import own_signal, settle_signal
from runstone.stores.folder.writer import EventFile, is_untold

ISSUE: Final = "SnapshotInvalid"
FAILED: Final = "FAILED"
UNKNOWN_PLAN: Final = "unknown"

_logger = logging.getLogger("runstone.folder")


def recover(folders: Folders, tenant_id: str, run_id: str, plan_id: str, context: Context) -> Recovery:
    """Takes the run up, or ends it; see `RunFolders.recover`."""
    if not folders.place("RUN", run_id).is_dir():
        raise _not_found(folders, run_id)
    try:
        log = folders.held(run_id)
        if log is None:
            raise _missing(folders, run_id)
        if log.tenant_id != tenant_id:
            raise _not_found(folders, run_id)
        log.fold()
    except SnapshotInvalid as error:
        _logger.error("run %s cannot be taken up: %s", run_id, error)
        log = _end(folders, tenant_id, run_id, plan_id or UNKNOWN_PLAN, context, error)
        return _take_up(folders, log, context, failed=str(error))
    return _take_up(folders, log, context)


def _missing(folders: Folders, run_id: str) -> SnapshotInvalid | NotFound:
    """The folder has no events: they are gone, or nobody was ever told of any."""
    folder = folders.place("RUN", run_id)
    with translated(folder):
        untold = is_untold(folder)
    if untold:
        return _not_found(folders, run_id)
    return SnapshotInvalid(str(folder / NAME), None, "the log is missing or empty")


def _take_up(folders: Folders, log: EventFile, context: Context, *, failed: str | None = None) -> Recovery:
    """Makes the snapshot and the signal say what the log says."""
    fold = log.fold()
    assert isinstance(fold, RunFold), "a run's folder holds a run"
    assert fold.run is not None, "its first event is RUN_CREATED, or nothing would have been folded"
    notes = [*log.notes, *_mend_snapshot(folders, log.folder / snapshots.NAME, fold)]
    folders.stale.pop(log.stream_id, None)
    try:
        settle_signal(folders, log, context)
    except SnapshotInvalid as error:
        notes.append(_noted(f"the run's signal cannot be read: {error}"))
    shown = folders.view(log.tenant_id, log.stream_id)
    assert shown is not None, "it was folded a moment ago"
    return Recovery(
        run_id=log.stream_id,
        tenant_id=log.tenant_id,
        snapshot=shown,
        notes=tuple(notes),
        failed=failed or (ISSUE if fold.run.exit_reason == ISSUE else None),
    )


def _mend_snapshot(folders: Folders, path: Path, fold: RunFold) -> Iterator[str]:
    found = _read(path)
    wrong = snapshots.problem(found, fold)
    if wrong is None:
        return
    if found is not None and not wrong.usual:
        yield _noted(f"{path}: as it was, it is in {_keep(folders, path, found)} now")
    with translated(path):
        folders.disk.replace(path, snapshots.content(fold))
    yield _noted(f"{path}: {wrong.reason}; it was made again from the log")


def _end(
    folders: Folders, tenant_id: str, run_id: str, plan_id: str, context: Context, error: SnapshotInvalid
) -> EventFile:
    """Puts in the log's place what can be read of it and the run's failure behind it (§PIP-19, §PIP-32)."""
    folders.forget(run_id)
    log = EventFile(folders.place("RUN", run_id), "RUN", folders.disk)
    log.lock(folders.clock.now())
    try:
        found = _read(log.path) or b""
        events = _readable(log, error)
        if events and events[0].tenant_id != tenant_id:
            raise _not_found(folders, run_id)
        writer = _writer(folders, tenant_id, run_id, plan_id, events, context)
        _record_failure(writer, error)
        prefix = b"".join(event_bytes(event) + b"\n" for event in events)
        assert found.startswith(prefix), "lines that were proven are canonical"
        if found:
            kept = _keep(folders, log.path, found)
            log.notes.append(_noted(f"{log.path}: as it was, it is in {kept} now"))
        added = b"".join(line_of(event) + b"\n" for event in writer.events)
        with translated(log.path):
            folders.disk.replace(log.path, prefix + added)
        log.hold(folders.clock.now())
    except BaseException:
        log.let_go()
        raise
    return folders.remember(log)


def _readable(log: EventFile, error: SnapshotInvalid) -> list[Event]:
    """The events before the line that is wrong."""
    log.refresh()
    good = log.count if error.line is None else min(log.count, error.line - 1)
    return list(islice(log.events(), good))


def _writer(
    folders: Folders, tenant_id: str, run_id: str, plan_id: str, events: Sequence[Event], context: Context
) -> StreamWriter[RunFold]:
    """What goes on behind these events; without any, behind a RUN_CREATED that takes their place."""
    fold = run_fold(RunState(stream_id=run_id, tenant_id=tenant_id))
    for event in events:
        fold.apply(event)
    if events and fold.run is not None:
        return StreamWriter(fold, context, events[0].correlation_id, fold.run.plan_version)
    signal = own_signal(folders, tenant_id, run_id, codec.NULL, context)
    assert signal.signal is not None, "it was received"
    writer = StreamWriter(fold, context, signal.signal.correlation_id)
    created = RunCreated(signal_id=signal.stream_id, run_type="HUMAN_TRIGGERED", plan_id=plan_id)
    writer.record(created, cause=signal.payload_event)
    return writer


def _record_failure(writer: StreamWriter[RunFold], error: SnapshotInvalid) -> None:
    """The blocker issue, and unless the run had ended before, its end."""
    fold = writer.fold
    issue = f"{ISSUE}-{fold.last_seq + 1}"
    writer.record(IssueOpened(issue=issue, code=ISSUE, severity="BLOCKER", message=str(error)))
    assert fold.pipeline is not None, "an issue is part of it"
    if fold.run is None or fold.run.status in RUN.terminal:
        return
    if fold.pipeline.run_state != FAILED:
        writer.record(RunStateChanged(from_state=fold.pipeline.run_state, to_state=FAILED))
    writer.record(
        RunFailed(
            exit_reason=ISSUE, error=ErrorInfo(category="INFRASTRUCTURE", code=ISSUE, message=str(error))
        )
    )


def _keep(folders: Folders, path: Path, content: bytes) -> str:
    """Puts what was found beside its place, under a name that the same content always gets."""
    aside = path.with_name(f"{path.name}.{sha256(content).hexdigest()[:12]}.invalid")
    with translated(aside):
        folders.disk.replace(aside, content)
    return aside.name


def _noted(what: str) -> str:
    """For whoever took the run up, and for the log of the process."""
    _logger.warning("%s", what)
    return what


def _read(path: Path) -> bytes | None:
    with translated(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _not_found(folders: Folders, run_id: str) -> NotFound:
    return NotFound(f"There is no run {run_id} in {folders.root}")
