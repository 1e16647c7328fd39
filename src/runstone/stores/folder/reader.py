"""One stream's `events.ndjson` as anybody may read it: every line proven by the hash in its successor.

It remembers where lines end and the hash of the last, so that a page is read from its place and what
was added since is all that has to be proven. The fold of the events is kept as well, once it was
asked for. Whatever does not fit is dropped and read again.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from runstone.core.events import Event, StreamKind
from runstone.core.fold import RunFold, SignalFold, run_fold, signal_fold
from runstone.core.state import RunState, SignalState
from runstone.core.stream import StreamHead
from runstone.errors import RunstoneError, SnapshotInvalid, UnreadableEvent
from runstone.stores.folder.disk import Disk, translated
from runstone.stores.folder.lines import Chain, NotChained, NotInPlace, classify, is_strict, vouches

NAME: Final = "events.ndjson"

_CHUNK: Final = 1 << 20


class ProvenLog:
    """The log of one stream, in a folder named after it."""

    def __init__(self, folder: Path, kind: StreamKind, disk: Disk) -> None:
        self.folder = folder
        self.kind: StreamKind = kind
        self.stream_id = folder.name
        self.path = folder / NAME
        self._disk = disk
        self._forget()

    def _forget(self) -> None:
        self.chain = Chain(self.stream_id)
        self.keys: dict[str, int] = {}
        self.ids: set[str] = set()
        """Keys and ids of the events: known to the writer, of no use to readers."""
        self.correlation_id = ""
        self.rest = b""
        """What follows the last proven line."""
        self._complaint: tuple[int, str] | None = None
        self._ends = array("Q")
        self._inode = 0
        self._fold: RunFold | SignalFold | None = None
        self._last: tuple[Event, bytes] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is ours to write to."""
        return False

    @property
    def count(self) -> int:
        """How many events are proven."""
        return self.chain.count

    @property
    def tenant_id(self) -> str:
        return self.chain.tenant_id

    @property
    def size(self) -> int:
        """How many bytes are proven."""
        return self._ends[-1] if self._ends else 0

    def refresh(self, *, folding: bool = False) -> None:
        """Proves what others have added since."""
        with translated(self.path):
            try:
                descriptor = self._disk.open(self.path, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                self._forget()
                return
            try:
                self._scan(descriptor, folding=folding)
            finally:
                self._disk.close(descriptor)

    def _scan(self, descriptor: int, *, folding: bool) -> None:
        """Takes in what the file has more than it had; what is written meanwhile is for the next time."""
        status = os.fstat(descriptor)
        if status.st_ino != self._inode or status.st_size < self.size or self._complaint:
            self._forget()
            self._inode = status.st_ino
        self._prove(_lines(descriptor, self.size, status.st_size), folding)
        self.rest = b"".join(_chunks(descriptor, self.size, status.st_size))
        if classify(self.rest, self.chain) == "BAD":
            self._complain(descriptor)
        elif self._last is not None and not is_strict(self._last[1]):  # no successor proves its bytes
            self._blame_last(descriptor, "the line is not in its canonical form")

    def _complain(self, descriptor: int) -> None:
        """Says which line is wrong: of two that do not fit, the one that its successor does not vouch for."""
        line, *more = self.rest.split(b"\n", 2)
        try:
            self.chain.check(line)
        except NotChained as error:
            if self.count and (not any(more) or vouches(more[0], line)):
                self._blame_last(descriptor, f"it was changed, for its hash is {self.chain.head} now")
            else:
                self._complaint = self.count + 1, str(error)
        except NotInPlace as error:
            self._complaint = self.count + 1, str(error)
        else:
            raise AssertionError("a line that is in its place was taken")

    def _blame_last(self, descriptor: int, reason: str) -> None:
        """The last line that was taken is the wrong one."""
        place, end, inode = self.count, self.size, self._inode
        self._forget()
        self._inode = inode
        self._prove(islice(_lines(descriptor, 0, end), place - 1), folding=False)
        self._complaint = place, reason

    def _prove(self, lines: Iterator[bytes], folding: bool) -> None:
        """Takes lines in as far as they are events in their place."""
        ends, keys, ids, size = self._ends, self.keys, self.ids, self.size
        fold, writing, event = self._fold, self.is_held, None
        for event, line in self.chain.follow(lines):
            size += len(line) + 1
            ends.append(size)
            if writing:
                keys[event.idempotency_key] = event.run_seq
                ids.add(event.id)
            if folding:
                if fold is None and event.run_seq == 1:
                    fold = self._fold = self._empty(event.tenant_id)
                try:
                    if fold is not None:
                        fold.apply(event)
                except RunstoneError:  # whoever needs the fold learns the reason by folding again
                    fold, self._fold, folding = None, None, False
        if event is not None:
            self._last = event, line
            self.correlation_id = event.correlation_id

    def _add(self, event: Event, line: bytes) -> None:
        """Takes the next line in, which we have just written."""
        self._ends.append(self.size + len(line) + 1)
        self.chain.add(event, line)
        self.keys[event.idempotency_key] = event.run_seq
        self.ids.add(event.id)
        self._last = event, line
        self.correlation_id = event.correlation_id

    @property
    def broken(self) -> SnapshotInvalid | None:
        """Why nothing behind the last proven line can be read, if there is something."""
        return SnapshotInvalid(str(self.path), *self._complaint) if self._complaint else None

    def read(self, after_seq: int = 0, limit: int | None = None) -> list[Event]:
        """Events from the file; raises where the next one cannot be read. Behind that there is nothing."""
        if after_seq == self.count and (broken := self.broken) is not None:
            raise broken
        first, last = after_seq, self.count if limit is None else min(self.count, after_seq + limit)
        return list(islice(self.events(first), max(0, last - first)))

    def events(self, after_seq: int = 0) -> Iterator[Event]:
        """Proven events, one by one, each compared again with the hash in its successor."""
        if after_seq >= self.count:
            return
        start = self._ends[after_seq - 1] if after_seq else 0
        chain = Chain.at(self.chain, after_seq)
        with translated(self.path):
            descriptor = self._disk.open(self.path, os.O_RDONLY)
            try:
                for line in islice(_lines(descriptor, start, self.size), self.count - after_seq):
                    yield chain.take(line)
            except NotInPlace as error:
                raise SnapshotInvalid(str(self.path), chain.count + 1, str(error)) from error
            finally:
                self._disk.close(descriptor)

    @property
    def head(self) -> StreamHead | None:
        if self._last is None:
            return None
        return StreamHead(
            stream_id=self.stream_id,
            tenant_id=self.tenant_id,
            kind=self.kind,
            last_seq=self.count,
            head=self.chain.head,
            last_at=self._last[0].occurred_at,
            fence=0,
        )

    # Folding

    def _empty(self, tenant_id: str) -> RunFold | SignalFold:
        if self.kind == "RUN":
            return run_fold(RunState(stream_id=self.stream_id, tenant_id=tenant_id))
        return signal_fold(SignalState(stream_id=self.stream_id, tenant_id=tenant_id))

    def fold(self) -> RunFold | SignalFold:
        """The state of the stream, still open for more; do not freeze it."""
        if (broken := self.broken) is not None:
            raise broken
        if self._fold is None or self._fold.last_seq != self.count:
            self._fold = self.fold_anew()
        return self._fold

    def fold_anew(self) -> RunFold | SignalFold:
        """The same, from nothing but the file; names the line that does not fold."""
        fold = self._empty(self.tenant_id)
        for event in self.events():
            try:
                fold.apply(event)
            except UnreadableEvent:
                raise
            except RunstoneError as error:
                raise SnapshotInvalid(str(self.path), event.run_seq, str(error)) from error
        return fold


def _lines(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Whole lines between two places, without their ends."""
    rest = b""
    for chunk in _chunks(descriptor, start, end):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        yield from lines


def _chunks(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    while chunk := os.pread(descriptor, min(_CHUNK, end - start), start):
        start += len(chunk)
        yield chunk
