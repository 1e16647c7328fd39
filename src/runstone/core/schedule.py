"""Schedule: a task for later, once or again and again, as its last event left it (§ENT-30)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw

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
