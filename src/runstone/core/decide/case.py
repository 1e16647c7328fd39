"""A case: a signal and the run that handles it, the two streams one decision can touch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from runstone.core.commit import (
    Commit,
    Context,
    Hold,
    Lease,
    StreamWrite,
    StreamWriter,
    run_write,
    stream_write,
)
from runstone.core.events import Event
from runstone.core.fold import run_fold, signal_fold
from runstone.core.payloads import SignalProcessed, SignalProcessingFailed, SignalProcessingStarted
from runstone.core.rows import queue_entry
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
    """A case under one's hands: decisions go into its folds, and come out as one commit after another."""

    def __init__(self, case: Case, context: Context) -> None:
        self.context = context
        correlation_id = _correlation(case) or context.new_id()
        plan_version = case.run.run.plan_version if case.run.run else ""
        self.journal: list[Event] = []
        self.signal = StreamWriter(signal_fold(case.signal), context, correlation_id, journal=self.journal)
        self.run = StreamWriter(run_fold(case.run), context, correlation_id, plan_version, self.journal)
        self.state = self.run.fold
        """The run as it is after what was recorded so far."""
        self.signal_fence = case.signal_fence
        self.run_fence = case.run_fence
        self.raise_fence = False
        self._queued = queue_entry(case.run)

    def begin(self, context: Context) -> None:
        """What is recorded from here on is recorded in this context."""
        self.context = self.signal.context = self.run.context = context

    def at(self, moment: datetime) -> None:
        """What is recorded from here on happened then."""
        if moment != self.context.now:
            self.begin(msgspec.structs.replace(self.context, now=moment))

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

    def commit(self, lease: Lease | None = None, holds: tuple[Hold, ...] = ()) -> Commit:
        """What was decided since the last commit; the next one is decided on what this one makes."""
        writes: list[StreamWrite] = []
        if self.signal.events:
            writes.append(stream_write(self.signal.fold, self.signal.events, self.signal_fence))
            self.signal.hand_over()
        if self.run.events:
            write = run_write(
                self.run.fold,
                self.run.events,
                self.run_fence,
                queued=self._queued,
                raise_fence=self.raise_fence,
                lease=lease,
                holds=holds,
            )
            writes.append(write)
            self.run.hand_over()
            self._queued = write.queue
            self.run_fence += self.raise_fence
            self.raise_fence = False
        events = tuple(self.journal)
        self.journal.clear()
        return Commit(tuple(writes), events)

    def take_in(self, signal: Iterable[Event], run: Iterable[Event]) -> None:
        """Folds what others have committed; nothing of one's own may be waiting for its commit."""
        assert not self.journal, "what is not in the log yet cannot come before what is"
        for event in signal:
            self.signal.fold.apply(event)
        for event in run:
            self.run.fold.apply(event)
        self.signal.hand_over()
        self.run.hand_over()
        self._queued = queue_entry(self.run.fold)

    def freeze(self) -> Case:
        """The case as it is now; nothing more is decided on this one."""
        return Case(
            signal=self.signal.fold.freeze(),
            run=self.run.fold.freeze(),
            signal_fence=self.signal_fence,
            run_fence=self.run_fence,
        )


def _correlation(case: Case) -> str | None:
    if case.signal.signal is not None:
        return case.signal.signal.correlation_id
    return case.run.run.correlation_id if case.run.run is not None else None
