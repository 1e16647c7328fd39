"""Schedule: a task for later, once or again and again, as its last event left it (§ENT-30)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw

from runstone.core.events import Event
from runstone.core.transitions import ScheduleStatus

CHANNEL: Final = "app.schedule"
"""The door through which a task comes in whose time has come."""


class Schedule(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `schedules`; its id is that of its stream."""

    id: str
    tenant_id: str
    name: str
    version: int
    task: str
    cron: str | None
    timezone: str
    arguments: Raw
    status: ScheduleStatus
    next_at: datetime | None
    fired: int
    last_fired_at: datetime | None
    last_run_id: str | None
    run_id: str
    effect_id: str
    scheduled_seq: int
    created_at: datetime
    updated_at: datetime


def source_id(fired: Event) -> str:
    """What the signal of a firing is known by: another store never has the same (§OUT-66)."""
    return f"{fired.stream_id}:{fired.run_seq}:{fired.id}"


def firing_place(source_id: str) -> tuple[str, int] | None:
    """The stream and the place of the firing that a signal was sent by; none if it does not say so."""
    stream_id, _, rest = source_id.partition(":")
    number = rest.partition(":")[0]
    return (stream_id, int(number)) if number.isascii() and number.isdigit() else None
