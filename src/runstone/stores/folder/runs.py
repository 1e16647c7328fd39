"""The life of a run in a folder: created with a signal of its own, and ended with it (§PIP-46).

A run and its signal are two files, so that a crash can come between them. They are written in the
order of their causes; whoever creates or recovers the run once more adds what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from msgspec import UNSET, Raw

from runstone.core import codec
from runstone.core.commands import CreateRun, ReceiveSignal
from runstone.core.commit import Context
from runstone.core.decide import Case, decide
from runstone.core.events import Event
from runstone.core.fold import RunFold, SignalFold
from runstone.core.ids import check_id, uuid7
from runstone.core.payloads import (
    Payload,
    RunStarted,
    SignalProcessed,
    SignalProcessingFailed,
    SignalProcessingStarted,
)
from runstone.core.run import Run
from runstone.core.state import RunState, SignalState
from runstone.core.transitions import RUN, SIGNAL
from runstone.errors import StoreError
from runstone.stores.folder.folders import MOVES, Folders, refuse_remains
from runstone.stores.folder.writer import EventFile

CHANNEL: Final = "folder"
"""Where the signal of a run comes from that was created here."""

_logger = logging.getLogger("runstone.folder")


def create(
    folders: Folders,
    tenant_id: str,
    run_id: str,
    plan_id: str,
    plan_version: str,
    key: str | None,
    metadata: Raw,
    context: Context,
) -> Run:
    """A signal and its run, written in the order of their causes: where a crash cuts that, it goes on."""
    check_id(run_id)
    log = folders.held(run_id)
    if log is None:
        refuse_remains(folders.place("RUN", run_id))
        signal = own_signal(folders, tenant_id, run_id, metadata, context)
        wanted = CreateRun(
            plan_id=plan_id,
            run_type="HUMAN_TRIGGERED",
            plan_version=plan_version,
            key=key,
            metadata=UNSET if metadata == codec.NULL else metadata,
        )
        case = Case(signal=signal, run=RunState(stream_id=run_id, tenant_id=tenant_id))
        for event in decide(case, wanted, context=context).commit.events:
            folders.write(event)
    log = folders.required(tenant_id, run_id)
    fold = log.fold()
    assert isinstance(fold, RunFold), "a run's folder holds a run"
    if fold.run is not None and fold.run.status == "PENDING":
        started = RunStarted(signal_id=fold.run.signal_id, run_type=fold.run.run_type)
        log.record([started], context)
    _try_to_settle(folders, log, context)
    folders.write_snapshot(log)
    run = folders.run(tenant_id, run_id)
    assert run is not None, "it was created"
    return run


def own_signal(folders: Folders, tenant_id: str, run_id: str, payload: Raw, context: Context) -> SignalState:
    """The signal of a run that is created here; its id follows from the run's (§PIP-46)."""
    empty = Case.new(tenant_id, signal_of(run_id), run_id)
    log = folders.held(empty.signal.stream_id)
    if log is None:
        received = ReceiveSignal(
            signal_type="HUMAN_COMMAND",
            source_channel=CHANNEL,
            source_id=run_id,
            source_hash=sha256(bytes(payload)).hexdigest(),
            normalized_payload=payload,
            received_at=context.now,
        )
        (event,) = decide(empty, received, context=context).commit.events
        log = folders.write(event)
    fold = log.fold_anew()
    assert isinstance(fold, SignalFold), "a signal's folder holds a signal"
    return fold.freeze()


def record(
    folders: Folders, tenant_id: str, run_id: str, data: Sequence[Payload], context: Context
) -> list[Event]:
    log = folders.required(tenant_id, run_id)
    if not data:
        return []
    events = log.record(data, context)
    types = [event.event_type for event in events]
    folders.written(log, *types)
    if not MOVES.isdisjoint(types):
        _try_to_settle(folders, log, context)
    return events


def settle_signal(folders: Folders, log: EventFile, context: Context) -> None:
    """Brings the run's signal to where the run is: being handled, or ended with it (§TRN-25)."""
    fold = log.fold()
    if not isinstance(fold, RunFold) or fold.run is None or fold.run.status in ("PENDING", "APPROVED"):
        return
    signal_log = folders.held(fold.run.signal_id)
    if signal_log is None:
        return
    due = [*_due_of_signal(fold, signal_log)]
    if due:
        signal_log.record(due, context, fold.causes.get(fold.stream_id))


def _try_to_settle(folders: Folders, log: EventFile, context: Context) -> None:
    """The run's events are durable, whatever is wrong with its signal; `recover` tries again."""
    try:
        settle_signal(folders, log, context)
    except StoreError as error:
        _logger.warning("the signal of run %s does not know where it is: %s", log.stream_id, error)


def _due_of_signal(run: RunFold, signal_log: EventFile) -> Iterator[Payload]:
    fold = signal_log.fold()
    if run.run is None or not isinstance(fold, SignalFold) or fold.signal is None:
        return
    if fold.signal.status == "PENDING":
        yield SignalProcessingStarted()
    if run.run.status not in RUN.terminal or fold.signal.status in SIGNAL.terminal:
        return
    if run.run.status == "COMPLETED":
        yield SignalProcessed()
    else:
        yield SignalProcessingFailed(exit_reason=run.run.exit_reason or run.run.status)


def signal_of(run_id: str) -> str:
    """The id of the signal that a run has which was created in a folder: as old as the run's own."""
    return uuid7(int(run_id[:13].replace("-", ""), 16), sha256(run_id.encode()).digest()[:10])
