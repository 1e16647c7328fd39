"""The folders below a root, and what is done to them: all of it blocking, and by one at a time.

`runs/<run_id>/` has a run's log, snapshot and lock, `signals/<signal_id>/` the log of the signal that
set it off. A stream is locked when it is first written to, and stays so until it is let go.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from pathlib import Path
from typing import Final

from runstone.core.append import stream_kind
from runstone.core.contract import AppendResult
from runstone.core.events import Event, EventDraft, StreamKind
from runstone.core.fold import RunFold
from runstone.core.ids import UUID_PATTERN, check_id
from runstone.core.pipeline import FolderSnapshot, PipelineState, folder_snapshot
from runstone.core.run import Run
from runstone.core.snapshot import RunSnapshot, run_snapshot
from runstone.errors import CommitRefused, DuplicateKey, NotFound, SnapshotInvalid, StoreError, StoreUnusable
from runstone.ports.clock import Clock
from runstone.stores.folder import snapshots
from runstone.stores.folder.disk import Disk, translated
from runstone.stores.folder.reader import NAME
from runstone.stores.folder.writer import EventFile, is_untold

OPEN_AT_MOST: Final = 128
"""How many streams are remembered; the one that was not used for longest is let go."""

LAG: Final = 1.0
"""How many seconds a snapshot may be behind its log while nothing moves the run (§PIP-45)."""

MOVES: Final = frozenset(
    {"RUN_STATE_CHANGED", "RESUME_REWIND", "RUN_COMPLETED", "RUN_FAILED", "RUN_CANCELLED"}
)
"""Events that the snapshot has to show before their writer goes on."""

PLACES: Final[dict[StreamKind, str]] = {"RUN": "runs", "SIGNAL": "signals"}


def place_of(kind: StreamKind) -> str:
    """The folder of a kind of stream."""
    if kind not in PLACES:
        raise CommitRefused(
            f"A folder of runs has no place for what outlives them, such as this {kind.lower()}: "
            "a SQLite file and a PostgreSQL database have"
        )
    return PLACES[kind]


_ID: Final = re.compile(UUID_PATTERN)
_logger = logging.getLogger("runstone.folder")


class Folders:
    """All streams of a folder store."""

    def __init__(self, root: Path, clock: Clock, disk: Disk) -> None:
        self.root = root
        self.clock = clock
        self.disk = disk
        self._logs: OrderedDict[str, EventFile] = OrderedDict()
        self.stale: dict[str, EventFile] = {}
        """Runs whose snapshot is behind their log."""
        self._due: float | None = None
        """When these are to be written, by the clock of whoever calls `follow`."""

    def check(self) -> None:
        """Refuses a root that cannot be one."""
        if self.root.exists() and not self.root.is_dir():
            raise StoreUnusable(f"{self.root} is a file: a folder store needs a folder")

    # Finding streams

    def place(self, kind: StreamKind, stream_id: str) -> Path:
        return self.root / place_of(kind) / stream_id

    def ids(self, kind: StreamKind) -> list[str]:
        """Streams of a kind that have a folder, in the order of their ids."""
        with translated(self.root):
            try:
                names = [entry.name for entry in (self.root / PLACES[kind]).iterdir() if entry.is_dir()]
            except FileNotFoundError:
                return []
        return sorted(name for name in names if _ID.match(name))

    def find(self, stream_id: str, *, folding: bool = False) -> EventFile | None:
        """A stream that is there, as it is now."""
        log = self._known(stream_id)
        if log is None:
            return None
        log.refresh(folding=folding)
        return log

    def _known(self, stream_id: str) -> EventFile | None:
        log = self._logs.get(stream_id)
        if log is not None:
            self._logs.move_to_end(stream_id)
            return log
        if not _ID.match(stream_id):
            return None
        for kind in PLACES:
            folder = self.place(kind, stream_id)
            if folder.is_dir():
                return self.remember(EventFile(folder, kind, self.disk))
        return None

    def remember(self, log: EventFile) -> EventFile:
        self._logs[log.stream_id] = log
        while len(self._logs) > OPEN_AT_MOST:
            _, oldest = self._logs.popitem(last=False)
            self._let_go(oldest)
        return log

    def forget(self, stream_id: str) -> None:
        """Lets a stream go: its files may be about to be replaced."""
        log = self._logs.pop(stream_id, None)
        if log is not None:
            self.stale.pop(stream_id, None)
            log.let_go()

    def of_tenant(self, tenant_id: str, stream_id: str, *, folding: bool = False) -> EventFile | None:
        log = self.find(stream_id, folding=folding)
        if log is None or (log.count and log.tenant_id != tenant_id):
            return None
        return log

    def run_fold(self, tenant_id: str, run_id: str) -> RunFold | None:
        """The state of a run; none if there is no such run."""
        log = self.of_tenant(tenant_id, run_id, folding=True)
        if log is None or log.kind != "RUN" or (not log.count and log.broken is None):
            return None
        fold = log.fold()
        assert isinstance(fold, RunFold), "a run's folder holds a run"
        return fold

    # Reading

    def fetch(self, tenant_id: str, stream_id: str, after_seq: int, limit: int) -> list[Event]:
        log = self.of_tenant(tenant_id, stream_id)
        return log.read(after_seq, limit) if log is not None else []

    def snapshot(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return _shown(self.run_fold(tenant_id, run_id))

    def project(self, tenant_id: str, run_id: str) -> RunSnapshot | None:
        return _shown(self.folded_anew(tenant_id, run_id))

    def folded_anew(self, tenant_id: str, run_id: str) -> RunFold | None:
        """The same state, from nothing but the file."""
        if not _ID.match(run_id):
            return None
        fresh = EventFile(self.place("RUN", run_id), "RUN", self.disk)
        fresh.refresh(folding=True)
        if fresh.tenant_id != tenant_id and (fresh.count or fresh.broken is None):
            return None
        fold = fresh.fold()
        assert isinstance(fold, RunFold), "a run's folder holds a run"
        return fold

    def replay(self, tenant_id: str, run_id: str) -> bytes:
        fold = self.folded_anew(tenant_id, run_id)
        if fold is None:
            raise NotFound(f"There is no run {run_id} in {self.root}")
        return snapshots.content(fold)

    def run(self, tenant_id: str, run_id: str) -> Run | None:
        fold = self.run_fold(tenant_id, run_id)
        return fold.run if fold else None

    def pipeline(self, tenant_id: str, run_id: str) -> PipelineState | None:
        fold = self.run_fold(tenant_id, run_id)
        if fold is None:
            return None
        return fold.pipeline.view() if fold.pipeline else PipelineState()

    def view(self, tenant_id: str, run_id: str) -> FolderSnapshot | None:
        fold = self.run_fold(tenant_id, run_id)
        if fold is None:
            return None
        state = fold.pipeline.view() if fold.pipeline else None
        return folder_snapshot(run_id, fold.last_seq, fold.seal_head(), state)

    # Writing

    def append(self, draft: EventDraft) -> AppendResult:
        log = self.held(draft.stream_id) or self._opened(draft)
        if draft.idempotency_key not in log.keys:
            self._refuse_known(draft.id)
        result = log.append(draft)
        if result.persisted:
            self.written(log, draft.event_type)
        return result

    def is_open(self, stream_id: str) -> bool:
        """Whether nothing has to be read or locked before it is written to."""
        log = self._logs.get(stream_id)
        return log is not None and log.is_open

    def held(self, stream_id: str) -> EventFile | None:
        """A stream that has events, locked by us."""
        log = self._known(stream_id)
        if log is None or not log.has_content:
            return None
        if not log.is_open:
            log.hold(self.clock.now())
        return log if log.count else None

    def _opened(self, draft: EventDraft) -> EventFile:
        """A new stream for its first event; what could not be the first leaves no folder behind."""
        check_id(draft.stream_id)
        kind = stream_kind(draft)
        log = self._known(draft.stream_id) or EventFile(self.place(kind, draft.stream_id), kind, self.disk)
        log.rehearse(draft)
        refuse_remains(log.folder)
        log.hold(self.clock.now())
        return self.remember(log)

    def _refuse_known(self, event_id: str) -> None:
        """An event id is unique over all streams (§EVT-1): compared with those that are open here.

        To compare it with all others would be to read every log there is; a UUIDv7 does not meet itself.
        """
        for other in self._logs.values():
            if event_id in other.ids:
                raise DuplicateKey(f"event {event_id}")

    def written(self, log: EventFile, *event_types: str) -> None:
        """Sees to it that the snapshot follows: at once if the run moved, else soon (§PIP-45)."""
        if log.kind != "RUN":
            return
        self.stale[log.stream_id] = log
        if not MOVES.isdisjoint(event_types):
            self.write_snapshot(log)

    def write(self, event: Event) -> EventFile:
        """Writes an event that has its place already."""
        kind: StreamKind = "SIGNAL" if event.run_id is None else "RUN"
        log = self._known(event.stream_id) or self.remember(
            EventFile(self.place(kind, event.stream_id), kind, self.disk)
        )
        log.hold(self.clock.now())
        log.put(event)
        self.written(log, event.event_type)
        return log

    def required(self, tenant_id: str, run_id: str) -> EventFile:
        """A run that is there, locked by us."""
        log = self.held(run_id)
        if log is None or log.kind != "RUN" or log.tenant_id != tenant_id:
            raise NotFound(f"There is no run {run_id} in {self.root}")
        return log

    # Snapshots

    def write_snapshot(self, log: EventFile) -> None:
        """Replaces the snapshot by what the log adds up to now.

        The events are durable and acknowledged whatever becomes of it: it is tried again later.
        """
        fold = log.fold()
        assert isinstance(fold, RunFold), "only a run has a snapshot"
        try:
            with translated(log.folder):
                self.disk.replace(log.folder / snapshots.NAME, snapshots.content(fold))
        except StoreError as error:
            _logger.warning("the snapshot of run %s is not up to date: %s", log.stream_id, error)
        else:
            self.stale.pop(log.stream_id, None)
            if not self.stale:
                self._due = None

    def follow(self, now: float) -> float | None:
        """Writes the snapshots that are due; in how many seconds there is more to write, if there is.

        Appends cost one sync each that way, and a snapshot is at most `LAG` seconds behind.
        """
        if not self.stale:
            return None
        if self._due is None:
            self._due = now + LAG
        if now >= self._due:
            self._due = now + LAG if self._write_stale() else None
        return self._due and max(0.0, self._due - now)

    def _write_stale(self) -> bool:
        """Whether one of those that are ours could not be written."""
        ours = [log for log in self.stale.values() if log.is_held]
        for log in ours:
            self.write_snapshot(log)
        return any(log.stream_id in self.stale for log in ours)

    def _let_go(self, log: EventFile) -> None:
        if log.stream_id in self.stale and log.is_held:
            self.write_snapshot(log)
        self.stale.pop(log.stream_id, None)
        log.let_go()

    def close(self) -> None:
        while self._logs:
            _, log = self._logs.popitem()
            self._let_go(log)

    def forsake(self) -> None:
        for log in self._logs.values():
            log.forsake()
        self._logs.clear()
        self.stale.clear()


def refuse_remains(folder: Path) -> None:
    """A run that has lost its log is not begun anew: that would hide the loss."""
    if folder.is_dir() and not is_untold(folder):
        raise SnapshotInvalid(
            str(folder / NAME), None, "there is a folder and no log in it: recover the run, or move it away"
        )


def _shown(fold: RunFold | None) -> RunSnapshot | None:
    if fold is None or fold.run is None:
        return None
    return run_snapshot(fold.run, fold.steps.values(), fold.last_seq)
