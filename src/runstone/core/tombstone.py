"""What is left of a correlation that was archived, and when one may be (§STO-34 to §STO-37).

A tombstone stands where a stream was. It proves what was there, says where that is now, and keeps
what makes a late duplicate known: a signal's source, a run's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from runstone.core import codec
from runstone.core.events import ENDLESS, StreamKind
from runstone.core.state import RunState, ScheduleState, SignalState
from runstone.core.stream import Stream, StreamHead
from runstone.core.transitions import EFFECT, RUN
from runstone.errors import RunArchived, StaleSequence


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `tombstones`: a stream that was removed whole."""

    stream_id: str
    tenant_id: str
    kind: StreamKind
    last_seq: int
    head: str
    correlation_id: str
    source_channel: str | None
    source_id: str | None
    source_hash: str | None
    """Of a signal: where it came from, and what it said."""
    signal_id: str | None
    run_key: str | None
    """Of a run: the signal that it handled, and the name its user gave it."""
    archive: str
    """The folder of the archive, as it was called then."""
    bundle: str
    """The bundle's name in the archive."""
    bundle_sha256: str
    removed_at: datetime
    digest: str = ""
    """SHA-256 over all of it but itself: what was changed in it is found."""

    @property
    def sealed(self) -> Tombstone:
        """The same with the digest that it has to have."""
        blank = msgspec.structs.replace(self, digest="")
        return msgspec.structs.replace(self, digest=sha256(codec.encode(blank)).hexdigest())

    def same(self, other: Tombstone | None) -> bool:
        """Whether the other stands for the same events, wherever they were put and whenever."""
        return other is not None and (self.last_seq, self.head) == (other.last_seq, other.head)

    @property
    def error(self) -> RunArchived:
        """What whoever asks for the stream is told."""
        return RunArchived(self.stream_id, self.where, self.removed_at, self.kind.capitalize())

    @property
    def where(self) -> str:
        """Where the bundle was put."""
        return f"{self.archive}/{self.bundle}"


class Resting(msgspec.Struct, frozen=True, kw_only=True):
    """Until when a correlation must have been left alone to be archived."""

    ended_before: datetime
    received_before: datetime
    """The same for signals that have no run."""

    def limit(self, ends: bool) -> datetime:
        """That of what ends, such as a run or a schedule, or that of signals alone."""
        return self.ended_before if ends else self.received_before


def last_at(streams: Iterable[Stream]) -> datetime:
    """When the last thing happened in a correlation."""
    return max(stream.head.last_at for stream in streams)


def unfinished(streams: Iterable[Stream]) -> str | None:
    """What of a correlation has not ended, if anything.

    What a person may still have to decide has not: a dead letter, an outcome that nobody knows.
    """
    for stream in streams:
        if stream.head.kind in ENDLESS:
            return f"{stream.head.kind.lower()} {stream.head.stream_id} outlives the runs that write to it"
        state = stream.fold()
        if isinstance(state, ScheduleState) and state.schedule and state.schedule.status == "ACTIVE":
            return f"schedule {state.stream_id} is active"
        if not isinstance(state, RunState):
            continue
        if state.run is None or state.run.status not in RUN.terminal:
            return f"run {state.stream_id} has not ended"
        for effect in state.effects.values():
            if effect.status not in EFFECT.terminal:
                return f"effect {effect.id} of run {state.stream_id} is {effect.status}"
    return None


def objection(streams: Sequence[Stream], resting: Resting) -> str | None:
    """Why a correlation must stay; none if it may go."""
    latest = last_at(streams)
    if latest > resting.limit(any(stream.head.kind != "SIGNAL" for stream in streams)):
        return f"something happened in it on {latest:%Y-%m-%d}"
    return unfinished(streams)


def check_whole(tombstones: Iterable[Tombstone], heads: Iterable[StreamHead]) -> None:
    """Refuses tombstones that do not stand for all streams of a correlation as they are now."""
    there = {head.stream_id: (head.last_seq, head.head) for head in heads}
    for stone in tombstones:
        found = there.pop(stone.stream_id, (0, ""))
        if found != (stone.last_seq, stone.head):
            raise StaleSequence(stone.stream_id, stone.last_seq, found[0])
    for stream_id, (last_seq, _) in there.items():
        raise StaleSequence(stream_id, 0, last_seq)


def bury(
    streams: Iterable[Stream], *, archive: str, bundle: str, bundle_sha256: str, now: datetime
) -> tuple[Tombstone, ...]:
    """The tombstones of a correlation's streams."""
    return tuple(_tombstone(stream, archive, bundle, bundle_sha256, now) for stream in streams)


def _tombstone(stream: Stream, archive: str, bundle: str, bundle_sha256: str, now: datetime) -> Tombstone:
    state = stream.fold()
    signal = state.signal if isinstance(state, SignalState) else None
    run = state.run if isinstance(state, RunState) else None
    stone = Tombstone(
        stream_id=stream.head.stream_id,
        tenant_id=stream.head.tenant_id,
        kind=stream.head.kind,
        last_seq=stream.head.last_seq,
        head=stream.head.head,
        correlation_id=stream.events[0].correlation_id,
        source_channel=signal.source_channel if signal else None,
        source_id=signal.source_id if signal else None,
        source_hash=signal.source_hash if signal else None,
        signal_id=run.signal_id if run else None,
        run_key=run.key if run else None,
        archive=archive,
        bundle=bundle,
        bundle_sha256=bundle_sha256,
        removed_at=now,
    )
    return stone.sealed
