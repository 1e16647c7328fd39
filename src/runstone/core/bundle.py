"""A bundle: all streams of one correlation in one NDJSON file that proves itself (§STO-43 to §STO-46).

The first line is a manifest; every other line is an event, the very bytes its hash covers. There
is no time of export in it, nor anything of the store it came from, so the same history always
gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from runstone.core import codec
from runstone.core.chain import event_bytes
from runstone.core.commit import Commit, StreamWrite, causal_order
from runstone.core.contract import CONTRACT_VERSION
from runstone.core.events import Event, StreamKind
from runstone.core.rows import all_rows, queue_entry
from runstone.core.run import QueueEntry
from runstone.core.state import RunState
from runstone.core.stream import Stream, StreamHead
from runstone.core.transitions import RUN
from runstone.core.verify import Finding, verify_causes, verify_events
from runstone.errors import BundleInvalid

FORMAT: Final = "runstone-bundle"
FORMAT_VERSION: Final = 1
_BEGINNING: Final = b'{"contract_version":'
_CUT_OFF: Final = "The bundle seems to be cut off {}: fetch or export it once more"


class BundledStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream in a bundle."""

    id: str
    kind: StreamKind
    last_seq: int
    head: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a bundle."""

    format: str
    format_version: int
    contract_version: str
    tenant_id: str
    correlation_id: str
    streams: tuple[BundledStream, ...]
    events: int
    sha256: str


def pack(streams: Sequence[Stream]) -> bytes:
    """The bundle of a correlation's streams, in the order in which they were opened."""
    if not streams or not streams[0].events:
        raise BundleInvalid("There is nothing to put into a bundle")
    first = streams[0].events[0]
    lines = b"".join(event_bytes(event) + b"\n" for stream in streams for event in stream.events)
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        contract_version=CONTRACT_VERSION,
        tenant_id=first.tenant_id,
        correlation_id=first.correlation_id,
        streams=tuple(
            BundledStream(
                id=stream.head.stream_id,
                kind=stream.head.kind,
                last_seq=stream.head.last_seq,
                head=stream.head.head,
            )
            for stream in streams
        ),
        events=sum(len(stream.events) for stream in streams),
        sha256="",
    )
    sealed = msgspec.structs.replace(manifest, sha256=_digest(manifest, lines))
    return codec.encode(sealed) + b"\n" + lines


def unpack(content: bytes) -> tuple[Stream, ...]:
    """The streams of a bundle, every hash, head, sequence and cause checked."""
    first, ended, lines = content.partition(b"\n")
    if not ended and first.startswith(_BEGINNING):
        raise BundleInvalid(_CUT_OFF.format("in line 1"))
    manifest = _manifest(first)
    if _digest(manifest, lines) != manifest.sha256 or codec.encode(manifest) != first:
        raise BundleInvalid(_damage(manifest, lines))
    events = [_event(line, place) for place, line in enumerate(lines.split(b"\n")[:-1], 2)]
    streams = _streams(manifest, events)
    for stream in streams:
        _refuse(verify_events(stream))
    _refuse(verify_causes(streams))
    return streams


def _damage(manifest: Manifest, lines: bytes) -> str:
    """What a person can see of it: most often, a copy or a download that did not come to its end."""
    *whole, rest = lines.split(b"\n")
    last = len(whole) + 1
    if len(whole) < manifest.events:
        counted = f"with {len(whole)} of its {manifest.events} events"
        return _CUT_OFF.format(f"in line {last + 1}, {counted}" if rest else f"behind line {last}, {counted}")
    if 0 < len(whole) == manifest.events and not _is_json(whole[-1]):
        return _CUT_OFF.format(f"in line {last}")
    return "The bundle is not as it was written: its hash does not fit its content"


def _is_json(line: bytes) -> bool:
    try:
        _read_any(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _digest(manifest: Manifest, lines: bytes) -> str:
    """Over everything but itself."""
    blank = msgspec.structs.replace(manifest, sha256="")
    return sha256(codec.encode(blank) + b"\n" + lines).hexdigest()


def unfinished_runs(streams: Iterable[Stream]) -> list[str]:
    """The runs in a bundle that would go on where it is imported."""
    states = (stream.fold() for stream in streams)
    return [state.run.id for state in states if isinstance(state, RunState) and state.run and _goes_on(state)]


def _goes_on(state: RunState) -> bool:
    """A run that has not ended, or one that has with effects still to be sent."""
    assert state.run is not None
    return state.run.status not in RUN.terminal or bool(state.open_effects)


def import_commit(streams: Iterable[Stream]) -> Commit:
    """The commit that makes these streams, as they are, in a store that has none of them."""
    held = tuple(streams)
    return Commit(tuple(map(_import_write, held)), causal_order(stream.events for stream in held))


def _import_write(stream: Stream) -> StreamWrite:
    head, state = stream.head, stream.fold()
    queue = queue_entry(state) if isinstance(state, RunState) else None
    return StreamWrite(
        stream_id=head.stream_id,
        tenant_id=head.tenant_id,
        kind=head.kind,
        expected_seq=0,
        fence=0,
        events=stream.events,
        last_seq=head.last_seq,
        head=head.head,
        last_at=head.last_at,
        rows=tuple(row for row in all_rows(state) if not isinstance(row, QueueEntry)),
        queue=queue,
        queue_changed=queue is not None,
    )


def _refuse(findings: list[Finding]) -> None:
    if findings:
        raise BundleInvalid(f"The bundle does not add up: {findings[0]}")


read_manifest: Final = codec.reader(Manifest)
_read_event: Final = codec.reader(Event)
_read_any: Final = codec.reader(msgspec.Raw)


def _manifest(line: bytes) -> Manifest:
    try:
        manifest = read_manifest(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleInvalid(f"This is no Runstone bundle: its first line is no manifest ({error})") from error
    if manifest.format != FORMAT:
        raise BundleInvalid(f"This is no Runstone bundle: its format is {manifest.format!r}")
    if manifest.format_version > FORMAT_VERSION:
        raise BundleInvalid(
            f"The bundle has format version {manifest.format_version}, this Runstone reads up to "
            f"{FORMAT_VERSION}: upgrade it"
        )
    return manifest


def _event(line: bytes, place: int) -> Event:
    try:
        event = _read_event(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleInvalid(f"Line {place} of the bundle is no event: {error}") from error
    if event_bytes(event) != line:
        raise BundleInvalid(f"Line {place} of the bundle is not in its canonical form")
    return event


def _streams(manifest: Manifest, events: list[Event]) -> tuple[Stream, ...]:
    if len(events) != manifest.events:
        raise BundleInvalid(f"The bundle has {len(events)} events, its manifest says {manifest.events}")
    streams: list[Stream] = []
    taken = 0
    for bundled in manifest.streams:
        own = tuple(events[taken : taken + bundled.last_seq])
        taken += bundled.last_seq
        if not own:
            raise BundleInvalid(f"The bundle has no events of stream {bundled.id}")
        head = StreamHead(
            stream_id=bundled.id,
            tenant_id=manifest.tenant_id,
            kind=bundled.kind,
            last_seq=bundled.last_seq,
            head=bundled.head,
            last_at=own[-1].occurred_at,
            fence=0,
        )
        streams.append(Stream(head=head, events=own))
    if taken != len(events):
        raise BundleInvalid("The bundle has events of streams that its manifest does not name")
    return tuple(streams)
