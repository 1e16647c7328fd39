"""Step: one attempt at one unit of work inside a run (§ENT-13, §ENT-19)."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Raw

from runstone.core.payloads import StepType
from runstone.core.transitions import StepStatus


class Step(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `steps`."""

    id: str
    tenant_id: str
    run_id: str
    step_index: int
    step_type: StepType
    step_key: str
    generation: int
    logical_attempt: int
    engine_attempt: int | None
    started_at: datetime
    completed_at: datetime | None
    status: StepStatus
    input_context: Raw
    input_digest: str
    output_result: Raw | None
    specialist_id: str | None
    error_details: Raw | None
    skip_reason: str | None
    retry_count: int
    artifacts: Raw | None
    wait_name: str | None
    wait_deadline: datetime | None
    correlation_id: str
    metadata: Raw | None


class StepCorrection(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `step_corrections`: a later version of a finished step's output."""

    id: str
    tenant_id: str
    run_id: str
    step_id: str
    version: int
    output_result: Raw
    reason: str
    corrected_at: datetime
    corrected_by: str
    correlation_id: str
