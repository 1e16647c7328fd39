"""Schedules as people and programs see them: looked up by name, listed, and taken back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from runstone.core import schedule as core
from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import Commit, Context, StreamWriter, stream_write
from runstone.core.decide.schedules import cancel
from runstone.core.fold import schedule_fold
from runstone.core.payloads import TaskScheduled
from runstone.core.transitions import ScheduleStatus
from runstone.errors import CommitRefused, NotFound
from runstone.ports.cases import ATTEMPTS, make_durable
from runstone.ports.schedules import find_stream, load_schedule
from runstone.ports.store import Host, Store


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A task for later, as it is now."""

    name: str
    task: str
    status: ScheduleStatus
    next_at: datetime | None
    """When it is due; none: never, unless it is scheduled again."""
    run_at: datetime | None
    cron: str | None
    timezone: str
    arguments: dict[str, Any] | None
    version: int
    """How often it was scheduled."""
    fired: int
    """How often it has fired, in all versions."""
    last_fired_at: datetime | None
    last_run_id: str | None
    run_id: str
    """The run that asked for it; it may be archived by now."""
    effect_id: str
    stream_id: str
    created_at: datetime
    updated_at: datetime


async def read_schedule(store: Store, tenant_id: str, name: str) -> Schedule | None:
    """The schedule of this name; none if nobody has scheduled it."""
    row = await store.find_schedule(tenant_id, name)
    return None if row is None else await _whole(store, row)


async def read_schedules(
    store: Store,
    tenant_id: str,
    *,
    status: ScheduleStatus | None = None,
    task: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[Schedule]:
    """A page of them, by name; `after` is the last name of the page before."""
    rows: Sequence[core.Schedule] = await store.list_schedules(
        tenant_id, status=status, task=task, after=after, limit=limit
    )
    found = [await _whole(store, row) for row in rows]
    return [one for one in found if one is not None]


async def _whole(store: Store, row: core.Schedule) -> Schedule | None:
    """The event that scheduled it holds what the row may only refer to; none if it was archived meanwhile."""
    events = await store.fetch(row.tenant_id, row.id, after_seq=row.scheduled_seq - 1, limit=1)
    if not events:
        return None
    asked = CATALOGUE.read(events[0], TaskScheduled)
    return Schedule(
        name=row.name,
        task=row.task,
        status=row.status,
        next_at=row.next_at,
        run_at=asked.run_at,
        cron=row.cron,
        timezone=row.timezone,
        arguments=msgspec.json.decode(asked.arguments),
        version=row.version,
        fired=row.fired,
        last_fired_at=row.last_fired_at,
        last_run_id=row.last_run_id,
        run_id=row.run_id,
        effect_id=row.effect_id,
        stream_id=row.id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def cancel_schedule(host: Host, tenant_id: str, name: str, reason: str, *, context: Context) -> None:
    """Takes a schedule back; decides again while it is fired or replaced meanwhile (§OUT-70).

    `NotFound` if there is none of this name, `CommandRefused` if it is not active.
    """
    stream_id = await find_stream(host, tenant_id, name)
    for attempt in range(1, ATTEMPTS + 1):
        known = await load_schedule(host, tenant_id, stream_id)
        if known is None:
            raise NotFound(f"There is no schedule {name!r}: see `runstone schedules list`")
        last = await host.fetch(tenant_id, stream_id, after_seq=known.head.last_seq - 1, limit=1)
        writer = StreamWriter(schedule_fold(known.state), context, correlation_id=stream_id)
        cancel(writer, reason, cause=last[0].id if last else None)
        write = stream_write(writer.fold, writer.events, known.head.fence)
        try:
            await make_durable(host, Commit((write,), write.events))
        except CommitRefused:
            if attempt == ATTEMPTS:
                raise
        else:
            return
