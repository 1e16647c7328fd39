"""Schedules on a store: what the next event of one is decided on, however long its history is."""

from __future__ import annotations

from typing import Final

from runstone.core.keys import schedule_stream
from runstone.core.stream import StreamHead
from runstone.ports.cases import ATTEMPTS
from runstone.ports.store import DueSchedule, Host

FAR: Final = 2**53
"""Behind every event: what is read from there on is the head alone."""


async def find_stream(host: Host, tenant_id: str, name: str) -> str:
    """The stream that the schedule of this name has, or would have: the first not archived (§ENT-32).

    One that came from another store may be of a later generation than its name has here.
    """
    known = await host.find_schedule(tenant_id, name)
    if known is not None:
        return known.id
    generation = 0
    stream_id = schedule_stream(tenant_id, name)
    while await host.find_tombstone(tenant_id, stream_id=stream_id) is not None:
        generation += 1
        stream_id = schedule_stream(tenant_id, name, generation)
    return stream_id


async def load_schedule(host: Host, tenant_id: str, stream_id: str) -> DueSchedule | None:
    """A schedule and the head of its stream, as of one moment; none if there is none, or no row of it.

    What fires every minute has half a million events a year: none of them is read. A row between two reads of
    the same head is the one of that head.
    """
    before = await _head(host, tenant_id, stream_id)
    for _ in range(ATTEMPTS):
        row = None if before is None else await host.get_schedule(tenant_id, stream_id)
        if row is None:
            return None
        head = await _head(host, tenant_id, stream_id)
        if head is not None and before is not None and head.head == before.head:
            return DueSchedule(schedule=row, head=head)
        before = head
    return None


async def _head(host: Host, tenant_id: str, stream_id: str) -> StreamHead | None:
    stream = await host.load(tenant_id, stream_id, after_seq=FAR)
    return None if stream is None else stream.head
