"""One stream's `events.ndjson` as its writer has it: locked, mended, and one line longer with each event.

The writer also remembers the keys of all events and keeps their fold, so an append is one write and
one sync, whatever the length of the log. When anything goes wrong, all of that is dropped and read
again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from runstone.core.append import repeated
from runstone.core.chain import seal
from runstone.core.commit import Context, StreamWriter
from runstone.core.contract import AppendResult
from runstone.core.events import Event, EventDraft, StreamKind
from runstone.core.fold import RunFold, SignalFold
from runstone.core.payloads import Payload
from runstone.errors import DuplicateKey, OutcomeUnknown, StoreError
from runstone.ports.folder import translate
from runstone.stores.folder.disk import Disk, translated
from runstone.stores.folder.lines import classify, describe, line_of
from runstone.stores.folder.lock import Lock
from runstone.stores.folder.reader import NAME, ProvenLog

TORN: Final = "events.ndjson.torn"
LOCK: Final = "lock"
UNTOLD: Final = frozenset({NAME, TORN, LOCK})
"""What can be in the folder of a run of which nobody was told: it was cut off before its first event."""

_logger = logging.getLogger("runstone.folder")


class EventFile(ProvenLog):
    """A log that can be written to, by whoever holds its lock."""

    def __init__(self, folder: Path, kind: StreamKind, disk: Disk) -> None:
        self._lock = Lock(folder / LOCK, disk)
        self._descriptor: int | None = None
        self.notes: list[str] = []
        """What was set aside or completed since this object was made."""
        super().__init__(folder, kind, disk)

    def refresh(self, *, folding: bool = False) -> None:
        """Proves what others have added since; the writer knows without looking."""
        if self._descriptor is None:
            super().refresh(folding=folding)

    @property
    def has_content(self) -> bool:
        """Whether there is anything in the file, be it events or not."""
        if self._descriptor is not None:
            return True
        with translated(self.path):
            try:
                return self.path.stat().st_size > 0
            except (FileNotFoundError, NotADirectoryError):
                return False

    @property
    def is_held(self) -> bool:
        return self._lock.is_held

    @property
    def is_open(self) -> bool:
        """Whether a line can be added to it."""
        return self._descriptor is not None

    def lock(self, now: datetime) -> None:
        """Keeps other writers out; makes the folder if there is none."""
        if not self._lock.is_held:
            with translated(self.folder):
                self._disk.make_all(self.folder)
                self._lock.take(now)

    def hold(self, now: datetime) -> None:
        """Takes the lock and brings the file into a state that a line can be added to."""
        if self._descriptor is not None:
            return
        self.lock(now)
        try:
            self._open()
        except BaseException:
            self.let_go()
            raise

    def _open(self) -> None:
        with translated(self.path):
            descriptor = self._disk.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                self._forget()  # what a reader remembers has no keys in it
                self._scan(descriptor, folding=True)
                if (broken := self.broken) is not None:
                    raise broken
                self._mend(descriptor)
                if not self.count:  # nobody has been told of it yet, so its names may not be durable
                    for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
                        self._disk.sync_folder(folder)
            except BaseException:
                self._disk.close(descriptor)
                raise
        self._descriptor = descriptor

    def _mend(self, descriptor: int) -> None:
        """Completes or sets aside what a crash left behind the last line (§PIP-3).

        Whoever wrote the last line may have died before it was synced, so it is synced now: everything
        that is read from here on is relied on.
        """
        match classify(self.rest, self.chain):
            case "WHOLE":
                line, self.rest = self.rest, b""
                self._disk.write(descriptor, b"\n")
                self._prove(iter((line,)), folding=True)
                self._note(f"line {self.count} lacked only its line end, which it has now")
            case "TORN":
                self._set_aside(self.rest)
                self._disk.truncate(descriptor, self.size)
                kind, count = describe(self.rest), len(self.rest)
                self._note(f"line {self.count + 1} was torn ({count} bytes, {kind}): it is in {TORN} now")
                self.rest = b""
        self._disk.sync(descriptor)

    def _set_aside(self, torn: bytes) -> None:
        """Puts bytes where nothing is ever taken away, before they leave the log."""
        aside = self.folder / TORN
        descriptor = self._disk.open(aside, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            kept = torn + b"\n"
            if os.pread(descriptor, len(kept), max(0, size - len(kept))) != kept:  # not by a try before this
                self._disk.write(descriptor, kept)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.sync_folder(self.folder)

    def _note(self, what: str) -> None:
        self.notes.append(f"{self.path}: {what}")
        _logger.warning("%s: %s", self.path, what)

    def let_go(self) -> None:
        """Lets others write; what was remembered is read again if need be."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._lock.leave()

    def forsake(self) -> None:
        """Closes the files as a forked child has to."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._lock.forsake()

    def append(self, draft: EventDraft) -> AppendResult:
        """A blind append (§STO-4). The caller holds the lock."""
        if self.count and draft.tenant_id != self.tenant_id:
            raise DuplicateKey(f"stream {self.stream_id}")
        known = self.keys.get(draft.idempotency_key)
        if known is not None:
            (first,) = self.read(known - 1, 1)
            return repeated(draft, first.run_seq, first.event_type, bytes(first.event_data))
        if draft.id in self.ids:
            raise DuplicateKey(f"event {draft.id}")
        self.put(self.placed(draft))
        return AppendResult(run_seq=self.count, idempotent=False, persisted=True)

    def placed(self, draft: EventDraft) -> Event:
        """The draft as the stream's next event; its time is not before the last one's (§ORD-23)."""
        if self._last is not None and draft.occurred_at < self._last[0].occurred_at:
            draft = msgspec.structs.replace(draft, occurred_at=self._last[0].occurred_at)
        return seal(draft, self.count + 1, self.chain.head)

    def rehearse(self, draft: EventDraft) -> None:
        """Refuses what could not open this stream, before anything is made for it."""
        event = self.placed(draft)
        line_of(event)
        self._empty(draft.tenant_id).apply(event)

    def put(self, event: Event) -> None:
        """Writes the next event: folded first, so that what does not fit is not written."""
        assert event.prev_hash == self.chain.head, "it has its place behind the last event"
        line = line_of(event)
        fold = self.fold() if self.count else self._empty(event.tenant_id)
        try:
            fold.apply(event)
        except BaseException:
            self._fold = None  # it may have taken half of the event in
            raise
        self._write([event], [line], fold)

    def record(self, data: Iterable[Payload], context: Context, cause: str | None = None) -> list[Event]:
        """Gives payloads their envelopes and writes them; if one does not fit, none is written."""
        fold = self.fold()
        run = fold.run if isinstance(fold, RunFold) else None
        writer = StreamWriter(fold, context, self.correlation_id, run.plan_version if run else "")
        try:
            for each in data:
                writer.record(each, cause=cause)
            lines = [line_of(event) for event in writer.events]
        except BaseException:
            self._fold = None
            raise
        self._write(writer.events, lines, fold)
        return writer.events

    def _write(self, events: Sequence[Event], lines: Sequence[bytes], fold: RunFold | SignalFold) -> None:
        """Lines of one call, one sync; the fold has their events in it already."""
        descriptor, size = self._descriptor, self.size
        assert descriptor is not None, "only the holder of the lock writes"
        for event, line in zip(events, lines, strict=True):  # behind the sync it would take thrice as long
            self._add(event, line)
        self._fold = fold
        try:
            try:
                self._disk.write(descriptor, b"\n".join((*lines, b"")))
                self._disk.sync(descriptor)
            except OSError as error:
                self._take_back(descriptor, size, error)
        except StoreError:
            raise
        except BaseException:
            self._drop()
            raise

    def _take_back(self, descriptor: int, size: int, error: OSError) -> None:
        """After a failed write nothing of it may stay, or the next line would stand behind it."""
        try:
            self._disk.truncate(descriptor, size)
            self._disk.sync(descriptor)
        except OSError:
            self._drop()
            raise OutcomeUnknown(
                f"{self.path}: {error}. It is unknown what of it is on the disk: "
                "append it again, or recover the run"
            ) from error
        self._forget()
        self._scan(descriptor, folding=True)
        raise translate(error, self.path) from error

    def _drop(self) -> None:
        """Nothing that is remembered can be trusted."""
        self.let_go()
        self._forget()


def is_untold(folder: Path) -> bool:
    """Whether a folder holds no more than a creation that was cut off before anybody was told of it."""
    log = folder / NAME
    names = {entry.name for entry in folder.iterdir()}
    return names <= UNTOLD and not (log.exists() and log.stat().st_size)
