"""The audit: what a stream says of itself, proven or refuted (§STO-41, §STO-42).

Nothing here trusts what it checks. The chain is hashed again, the log folded again, counters
counted again; causes are walked over all streams of a correlation. A finding names the place and
both values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from runstone.core import codec
from runstone.core.chain import GENESIS, event_hash
from runstone.core.events import LASTING, Event
from runstone.core.rows import TABLES, Row, all_rows, row_id
from runstone.core.run import Run
from runstone.core.schedule import CHANNEL
from runstone.core.state import StreamState
from runstone.core.step import Step
from runstone.core.stream import Stream

_SHOWN: Final = 200


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it has to be."""

    stream_id: str
    check: str
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.check} at {self.place} of stream {self.stream_id}\n"
            f"  expected {_short(self.expected)}\n"
            f"  found    {_short(self.found)}"
        )


def verify_stream(stream: Stream, rows: Iterable[Row]) -> list[Finding]:
    """Everything that can be proven of one stream and its rows."""
    findings, state = _audit(stream)
    if state is not None:
        stored = list(rows)
        findings += _check_rows(stream, all_rows(state), stored)
        findings += _check_counters(stream, stored)
    return findings


def verify_events(stream: Stream) -> list[Finding]:
    """What can be proven of a stream by itself."""
    findings, _ = _audit(stream)
    return findings


def _audit(stream: Stream) -> tuple[list[Finding], StreamState | None]:
    findings = [*_check_sequence(stream), *_check_chain(stream), *_check_envelopes(stream)]
    try:
        return findings, stream.fold()
    except Exception as error:  # a log that was tampered with may break anything
        findings.append(_finding(stream, "fold", "the log", "events that fold", str(error)))
        return findings, None


def verify_causes(streams: Sequence[Stream]) -> list[Finding]:
    """Whether every cause in a correlation exists and none leads back to itself (§ORD-20, §ORD-21).

    That of what outlives runs lies with the run that asked, wherever that may be by now (§ORD-39); that of
    a task whose time has come lies with its schedule (§ORD-40).
    """
    causes = {event.id: event.causation_id for stream in streams for event in stream.events}
    for stream in streams:
        for event in _caused_elsewhere(stream):
            if event.causation_id not in causes:
                causes[event.id] = None
    findings: list[Finding] = []
    rooted: set[str] = set()
    for stream in streams:
        for event in stream.events:
            problem = _walk(event.id, causes, rooted)
            if problem is not None:
                place = f"run_seq {event.run_seq}"
                findings.append(_finding(stream, "causation", place, "causes that lead to a root", problem))
    return findings


def _caused_elsewhere(stream: Stream) -> Sequence[Event]:
    """Events whose cause may lie in another correlation."""
    if stream.head.kind in LASTING:
        return stream.events
    return [event for event in stream.events[:1] if _is_scheduled(event)]


def _is_scheduled(event: Event) -> bool:
    """Whether an event is the signal that a schedule has sent."""
    if event.event_type != "SIGNAL_RECEIVED":
        return False
    try:
        return _read_source(event.event_data).source_channel == CHANNEL
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # it does not fold: that is a finding already


class _Source(msgspec.Struct):
    source_channel: str


_read_source: Final = codec.reader(_Source)


def _walk(event_id: str, causes: dict[str, str | None], rooted: set[str]) -> str | None:
    """Follows causes up to a root or to where somebody went before."""
    path: list[str] = []
    seen: set[str] = set()
    current: str | None = event_id
    while current is not None and current not in rooted:
        if current not in causes:
            return f"no event {current}"
        if current in seen:
            return f"a cycle through {current}"
        seen.add(current)
        path.append(current)
        current = causes[current]
    rooted.update(path)
    return None


def _check_sequence(stream: Stream) -> Iterator[Finding]:
    for place, event in enumerate(stream.events, 1):
        if event.run_seq != place:
            yield _finding(stream, "sequence", f"event {event.id}", f"run_seq {place}", str(event.run_seq))
            return
    if len(stream.events) != stream.head.last_seq:
        expected = f"{stream.head.last_seq} events, as the head says"
        yield _finding(stream, "sequence", "the end", expected, str(len(stream.events)))


def _check_chain(stream: Stream) -> Iterator[Finding]:
    expected = GENESIS
    for event in stream.events:
        if event.prev_hash != expected:
            yield _finding(stream, "hash chain", f"run_seq {event.run_seq}", expected, event.prev_hash)
        expected = event_hash(event)
    if stream.head.head != expected:
        yield _finding(stream, "hash chain", "the head", expected, stream.head.head)


def _check_envelopes(stream: Stream) -> Iterator[Finding]:
    """What each event has to share with its stream, and must not share with another event."""
    head = stream.head
    ids = Counter(event.id for event in stream.events)
    keys = Counter(event.idempotency_key for event in stream.events)
    latest = None
    for event in stream.events:
        place = f"run_seq {event.run_seq}"
        if (event.stream_id, event.tenant_id) != (head.stream_id, head.tenant_id):
            found = f"{event.stream_id} of {event.tenant_id}"
            yield _finding(stream, "stream", place, f"{head.stream_id} of {head.tenant_id}", found)
        if ids[event.id] > 1:
            yield _finding(stream, "event id", place, "an id of its own", event.id)
        if keys[event.idempotency_key] > 1:
            yield _finding(stream, "event key", place, "a key of its own", event.idempotency_key)
        if latest is not None and event.occurred_at < latest:
            yield _finding(stream, "time", place, f"not before {latest}", str(event.occurred_at))
        latest = event.occurred_at
    if latest is not None and head.last_at != latest:
        yield _finding(stream, "time", "the head", str(latest), str(head.last_at))


def _check_rows(stream: Stream, expected: Iterable[Row], stored: Iterable[Row]) -> Iterator[Finding]:
    """Rows equal the fold, byte for byte in canonical JSON."""
    wanted = {_identity(row): row for row in expected}
    there = {_identity(row): row for row in stored}
    for identity in sorted(wanted.keys() | there.keys()):
        place = f"{identity[0]} {identity[1]}"
        should, row = wanted.get(identity), there.get(identity)
        if row is None:
            yield _finding(stream, "rows", place, "a row", "none")
        elif should is None:
            yield _finding(stream, "rows", place, "no row", "one")
        elif codec.encode(should) != codec.encode(row):
            yield from _row_differences(stream, place, should, row)


def _row_differences(stream: Stream, place: str, expected: Row, found: Row) -> Iterator[Finding]:
    for name in expected.__struct_fields__:
        should, value = codec.encode(getattr(expected, name)), codec.encode(getattr(found, name))
        if should != value:
            yield _finding(
                stream,
                "rows",
                f"{place}, column {name}",
                should.decode(errors="replace"),
                value.decode(errors="replace"),
            )


def _check_counters(stream: Stream, stored: Sequence[Row]) -> Iterator[Finding]:
    """Counters, counted from the step rows and not from the fold."""
    steps = [row for row in stored if isinstance(row, Step)]
    ended = sum(step.status != "RUNNING" for step in steps)
    failed = sum(step.status == "FAILED" for step in steps)
    for run in stored:
        if isinstance(run, Run) and (run.total_steps, run.failed_steps) != (ended, failed):
            yield _finding(
                stream,
                "counters",
                f"runs {run.id}",
                f"total_steps {ended}, failed_steps {failed}",
                f"total_steps {run.total_steps}, failed_steps {run.failed_steps}",
            )


def _identity(row: Row) -> tuple[str, str]:
    return TABLES[type(row)], row_id(row)


def _finding(stream: Stream, check: str, place: str, expected: str, found: str) -> Finding:
    return Finding(stream_id=stream.head.stream_id, check=check, place=place, expected=expected, found=found)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
