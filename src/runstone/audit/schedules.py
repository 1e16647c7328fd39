"""Proves that schedules and what came of them say the same: each firing has its run, each run its firing."""

from __future__ import annotations

from typing import Final

import msgspec

from runstone.core import codec
from runstone.core.events import Event
from runstone.core.schedule import CHANNEL
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
    """Whether the schedule of a signal, where it is in the store, has fired as often as the signal says."""
    first = stream.events[0]
    received = _read_received(first.event_data)
    if received.source_channel != CHANNEL:
        return []
    schedule_id, _, number = received.source_id.partition(":")
    schedule = await store.get_schedule(first.tenant_id, schedule_id)
    if schedule is None or (number.isdecimal() and 1 <= int(number) <= schedule.fired):
        return []
    wanted = f"firing {number} of schedule {schedule_id}"
    return [_finding(first, wanted, f"that it fired {schedule.fired} times")]


def _finding(event: Event, expected: str, found: str) -> Finding:
    return Finding(
        stream_id=event.stream_id,
        check="schedule",
        place=f"run_seq {event.run_seq}",
        expected=expected,
        found=found,
    )
