"""Signal: input from outside, normalized, waiting for or handled by its run (§ENT-8)."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Raw

from runstone.core.payloads import SignalType
from runstone.core.transitions import SignalStatus


class Signal(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One row of `signals`."""

    id: str
    tenant_id: str
    signal_type: SignalType
    source_channel: str
    source_id: str
    source_hash: str
    normalized_payload: Raw
    received_at: datetime
    ingested_at: datetime
    processed_at: datetime | None
    status: SignalStatus
    correlation_id: str
    ingested_by: str | None
