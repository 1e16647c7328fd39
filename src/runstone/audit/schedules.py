"""Proves that schedules and what came of them say the same: each firing has its run, each run its firing."""

from __future__ import annotations

from typing import Final

import msgspec

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.schedule import CHANNEL, firing_place
from runstone.core.stream import Stream
from runstone.core.verify import Finding
from runstone.ports.store import Store


class _Fired(msgspec.Struct, frozen=True):
    signal_id: str
    run_id: str


class _Created(msgspec.Struct, frozen=True):
    signal_id: str


class _Received(msgspec.Struct, frozen=True):
    source_channel: str
    source_id: str


_read_fired: Final = codec.reader(_Fired)
_read_created: Final = codec.reader(_Created)
_read_received: Final = codec.reader(_Received)


async def verify_firings(store: Store, stream: Stream) -> list[Finding]:
    """Whether what came of each firing names it in turn, where that is in the store still."""
    return [
        finding
        for event in stream.events
        if event.event_type == "TASK_FIRED"
        for finding in await _verify_firing(store, event, _read_fired(event.event_data))
    ]


async def _verify_firing(store: Store, event: Event, fired: _Fired) -> list[Finding]:
    findings: list[Finding] = []
    for signal in await store.fetch(event.tenant_id, fired.signal_id, limit=1):
        if signal.causation_id != event.id:
            wanted = f"signal {fired.signal_id} to be caused by it"
            findings.append(_finding(event, wanted, f"that {signal.causation_id} caused it"))
    for run in await store.fetch(event.tenant_id, fired.run_id, limit=1):
        named = _read_created(run.event_data).signal_id
        if named != fired.signal_id:
            wanted = f"run {fired.run_id} to be that of signal {fired.signal_id}"
            findings.append(_finding(event, wanted, f"that it is that of {named}"))
    return findings


async def verify_scheduled(store: Store, stream: Stream) -> list[Finding]:
    """Whether the firing that a signal names, where it is in the store, names that signal.

    It may have come from another store, with a schedule of the same name: the one here does not know it.
    """
    first = stream.events[0]
    received = _read_received(first.event_data)
    place = firing_place(received.source_id) if received.source_channel == CHANNEL else None
    if place is None:
        return []
    schedule_id, seq = place
    findings = []
    for event in await store.fetch(first.tenant_id, schedule_id, after_seq=seq - 1, limit=1):
        if event.id == first.causation_id:
            named = _read_fired(event.event_data).signal_id
            if named != first.stream_id:
                wanted = f"run_seq {seq} of schedule {schedule_id} to have sent it"
                findings.append(_finding(first, wanted, f"that it sent {named}"))
    return findings


def _finding(event: Event, expected: str, found: str) -> Finding:
    return Finding(
        stream_id=event.stream_id,
        check="schedule",
        place=f"run_seq {event.run_seq}",
        expected=expected,
        found=found,
    )
