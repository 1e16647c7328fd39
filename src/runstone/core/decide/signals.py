"""Decisions about a signal."""

from __future__ import annotations

from runstone.core import commands, payloads
from runstone.core.decide.case import CaseWriter
from runstone.errors import CommandRefused


def receive(case: CaseWriter, command: commands.ReceiveSignal) -> None:
    if command.correlation_id is not None:
        case.signal.correlation_id = case.run.correlation_id = command.correlation_id
    case.signal.record(
        payloads.SignalReceived(
            signal_type=command.signal_type,
            source_channel=command.source_channel,
            source_id=command.source_id,
            source_hash=command.source_hash,
            normalized_payload=command.normalized_payload,
            received_at=command.received_at,
            ingested_by=command.ingested_by,
        ),
        cause=command.cause,
    )


def report_conflict(case: CaseWriter, command: commands.ReportConflict) -> None:
    signal = case.signal.fold.existing("PENDING")
    if signal.source_hash == command.source_hash:
        raise CommandRefused(f"Signal {signal.id} came again with the same content: that is no conflict")
    case.signal.record(
        payloads.SignalConflict(first_hash=signal.source_hash, second_hash=command.source_hash),
        cause=case.signal.fold.payload_event,
    )
