"""Takes the events of a signal in."""

from __future__ import annotations

from datetime import UTC
from typing import Final

from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, SignalFold
from runstone.core.payloads import signals
from runstone.core.signal import Signal
from runstone.errors import StateTransitionError


def received(fold: SignalFold, event: Event, data: signals.SignalReceived) -> None:
    if fold.signal is not None:
        raise StateTransitionError("signal", fold.stream_id, fold.signal.status, "PENDING")
    fold.payload_event = event.id
    fold.signal = Signal(
        id=fold.stream_id,
        tenant_id=fold.tenant_id,
        signal_type=data.signal_type,
        source_channel=data.source_channel,
        source_id=data.source_id,
        source_hash=data.source_hash,
        normalized_payload=fold.keep(event, "normalized_payload", data.normalized_payload),
        received_at=data.received_at.astimezone(UTC),
        ingested_at=event.occurred_at,
        processed_at=None,
        status="PENDING",
        correlation_id=event.correlation_id,
        ingested_by=data.ingested_by,
    )


def processing_started(fold: SignalFold, event: Event, data: signals.SignalProcessingStarted) -> None:
    fold.to("PROCESSING")


def processed(fold: SignalFold, event: Event, data: signals.SignalProcessed) -> None:
    fold.to("PROCESSED", processed_at=event.occurred_at)


def processing_failed(fold: SignalFold, event: Event, data: signals.SignalProcessingFailed) -> None:
    fold.to("FAILED", processed_at=event.occurred_at)


def conflict(fold: SignalFold, event: Event, data: signals.SignalConflict) -> None:
    fold.existing("PENDING")


REDUCERS: Final[dict[str, Reducer]] = {
    "SIGNAL_RECEIVED": received,
    "SIGNAL_PROCESSING_STARTED": processing_started,
    "SIGNAL_PROCESSED": processed,
    "SIGNAL_PROCESSING_FAILED": processing_failed,
    "SIGNAL_CONFLICT": conflict,
}
