"""Run: one execution of a handler for one signal, and its place in the queue (§ENT-11, §ENT-25)."""

from __future__ import annotations

from datetime import datetime
from functools import cache

import msgspec
from msgspec import Raw

from runstone.core.payloads import RunType
from runstone.core.transitions import RunStatus


class Run(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `runs`."""

    id: str
    tenant_id: str
    signal_id: str
    run_type: RunType
    project: str
    environment: str
    plan_id: str
    plan_version: str
    run_request_id: str
    key: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    status: RunStatus
    exit_reason: str | None
    error_details: Raw | None
    result: Raw | None
    correlation_id: str
    causation_id: str | None
    orchestrator_version: str
    engine_run_ref: Raw | None
    generation: int
    total_steps: int
    failed_steps: int
    fold_version: int
    metadata: Raw | None


class QueueEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `run_queue`, its lease columns apart: what is left to do for an unfinished run."""

    run_id: str
    tenant_id: str
    handler: str
    code_rank: str
    lane: str | None
    lane_limit: int
    started: bool
    wake_at: datetime | None
    news_seq: int


@cache
def code_rank(version: str) -> str:
    """A version as text that sorts as versions do, so that SQL can compare: `1.10` is above `1.9`."""
    return ".".join(map(_sortable, version.split(".")))


def _sortable(part: str) -> str:
    """A number goes behind the count of its digits."""
    if not (part.isascii() and part.isdigit()):
        return part
    digits = part.lstrip("0")
    return f"{len(digits):02}{digits}"
