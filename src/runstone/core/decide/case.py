"""A case: a signal and the run that handles it, the two streams one decision can touch."""

from __future__ import annotations

from datetime import datetime

import msgspec

from runstone.core.commit import (
    Commit,
    Context,
    Lease,
    StreamWrite,
    StreamWriter,
    run_write,
    signal_write,
)
from runstone.core.events import Event
from runstone.core.fold import RunFold, SignalFold, run_fold, signal_fold
from runstone.core.payloads import SignalProcessed, SignalProcessingFailed, SignalProcessingStarted
from runstone.core.run import Run
from runstone.core.state import RunState, SignalState
from runstone.core.transitions import RUN
from runstone.errors import CommandRefused


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Both states, and the fencing token that each stream's next commit has to carry."""

    signal: SignalState
    run: RunState
    signal_fence: int = 0
    run_fence: int = 0

    @classmethod
    def new(cls, tenant_id: str, signal_id: str, run_id: str) -> Case:
        """A case in which nothing has happened yet."""
        return cls(
            signal=SignalState(stream_id=signal_id, tenant_id=tenant_id),
            run=RunState(stream_id=run_id, tenant_id=tenant_id),
        )


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision made: the case as it will be, and the commit that makes it so."""

    case: Case
    commit: Commit


class CaseWriter:
    """A decision in the making."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case = case
        self.context = context
        correlation_id = _correlation(case) or context.new_id()
        plan_version = case.run.run.plan_version if case.run.run else ""
        self.journal: list[Event] = []
        self.signal = StreamWriter[SignalFold](
            signal_fold(case.signal), context, correlation_id, journal=self.journal
        )
        self.run = StreamWriter[RunFold](
            run_fold(case.run), context, correlation_id, plan_version, self.journal
        )
        self.raise_fence = False

    def at(self, moment: datetime) -> None:
        """What is recorded from here on happened then."""
        self.context = msgspec.structs.replace(self.context, now=moment)
        self.signal.context = self.run.context = self.context

    @property
    def state(self) -> RunFold:
        """The run as it is after what was recorded so far."""
        return self.run.fold

    def existing_run(self) -> Run:
        if self.state.run is None:
            raise CommandRefused(f"There is no run {self.state.stream_id}")
        return self.state.run

    def unfinished_run(self, what: str) -> Run:
        run = self.existing_run()
        if run.status in RUN.terminal:
            raise CommandRefused(f"Run {run.id} has ended ({run.status}): cannot {what}")
        return run

    def handling_run(self, what: str) -> Run:
        """A run whose handler has not returned yet."""
        run = self.unfinished_run(what)
        if self.state.handler_returned:
            raise CommandRefused(f"The handler of run {run.id} has returned: it cannot {what}")
        return run

    def start_signal(self, cause: str) -> None:
        """The signal is being handled."""
        signal = self.signal.fold.signal
        if signal is not None and signal.status == "PENDING":
            self.signal.record(SignalProcessingStarted(), cause=cause)

    def end_signal(self, cause: str, exit_reason: str | None) -> None:
        """Its run has ended; one that was never picked up passes through PROCESSING (§TRN-25)."""
        if self.signal.fold.signal is None:
            return
        self.start_signal(cause)
        if exit_reason is None:
            self.signal.record(SignalProcessed(), cause=cause)
        else:
            self.signal.record(SignalProcessingFailed(exit_reason=exit_reason), cause=cause)

    def decision(self, lease: Lease | None) -> Decision:
        writes: list[StreamWrite] = []
        if self.signal.events:
            writes.append(
                signal_write(self.case.signal, self.signal.fold, self.signal.events, self.case.signal_fence)
            )
        if self.run.events:
            writes.append(
                run_write(
                    self.case.run,
                    self.run.fold,
                    self.run.events,
                    self.case.run_fence,
                    raise_fence=self.raise_fence,
                    lease=lease,
                )
            )
        case = Case(
            signal=self.signal.fold.freeze(),
            run=self.run.fold.freeze(),
            signal_fence=self.case.signal_fence,
            run_fence=self.case.run_fence + self.raise_fence,
        )
        return Decision(case=case, commit=Commit(tuple(writes), tuple(self.journal)))


def _correlation(case: Case) -> str | None:
    if case.signal.signal is not None:
        return case.signal.signal.correlation_id
    return case.run.run.correlation_id if case.run.run is not None else None
