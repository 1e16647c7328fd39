"""ToolCall: one call of a tool inside a step (§ENT-23)."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Raw

from runstone.core.transitions import ToolCallStatus


class ToolCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `tool_calls`."""

    id: str
    tenant_id: str
    run_id: str
    step_id: str
    tool_name: str
    tool_args: Raw
    called_at: datetime
    completed_at: datetime | None
    status: ToolCallStatus
    result: Raw | None
    error_details: Raw | None
    execution_duration_ms: int | None
    cache_hit: bool
    correlation_id: str
    metadata: Raw | None
