"""Decide: a case and commands in, events out; pure, so that a loser can simply decide again.

Every command is checked against the state as it is after the commands before it. Whatever they
add up to, the run and its signal end in the same commit as the last fact that lets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Context, Hold, Lease
from runstone.core.decide import control, effects, runs, signals, steps
from runstone.core.decide.case import Case, CaseWriter, Decision
from runstone.core.decide.steps import input_digest

__all__ = ["Case", "CaseWriter", "Decision", "carry_out", "decide", "input_digest"]

_DECIDERS: Final[dict[type[Command], Callable[[CaseWriter, Any], None]]] = {
    commands.ReceiveSignal: signals.receive,
    commands.ReportConflict: signals.report_conflict,
    commands.CreateRun: runs.create,
    commands.StartRun: runs.start,
    commands.PauseRun: runs.pause,
    commands.SuspendRun: runs.suspend,
    commands.SetVariable: runs.set_variable,
    commands.CreateCheckpoint: runs.create_checkpoint,
    commands.ReturnHandler: runs.return_handler,
    commands.ContinueRun: runs.continue_run,
    commands.FailRun: runs.fail,
    commands.CancelRun: runs.cancel,
    commands.Control: control.control,
    commands.RefuseControl: control.refuse,
    commands.StartStep: steps.start,
    commands.CompleteStep: steps.complete,
    commands.FailStep: steps.fail,
    commands.SkipStep: steps.skip,
    commands.RetryStep: steps.retry,
    commands.CorrectStep: steps.correct,
    commands.CallTool: steps.call_tool,
    commands.CompleteTool: steps.complete_tool,
    commands.FailTool: steps.fail_tool,
    commands.RequestEffect: effects.request,
    commands.BeginEffect: effects.begin,
    commands.CompleteEffect: effects.complete,
    commands.FailEffect: effects.fail,
    commands.LoseEffect: effects.lose,
    commands.ReconcileEffect: effects.reconcile,
    commands.RequeueEffect: effects.requeue,
    commands.DiscardEffect: effects.discard,
    commands.ReportLateOutcome: effects.report_late_outcome,
}


def decide(
    case: Case,
    *wanted: Command,
    context: Context,
    lease: Lease | None = None,
    times: Sequence[datetime] = (),
    holds: tuple[Hold, ...] = (),
) -> Decision:
    """The events these commands make of this case, or the error that refuses the first that does not fit.

    `times` says when each came to be, where that was before now.
    """
    writer = CaseWriter(case, context)
    carry_out(writer, wanted, times)
    commit = writer.commit(lease, holds)
    return Decision(case=writer.freeze(), commit=commit)


def carry_out(writer: CaseWriter, wanted: Sequence[Command], times: Sequence[datetime] = ()) -> None:
    """The same in place, for whoever keeps a case under his hands. After an error it is good for nothing."""
    for place, command in enumerate(wanted):
        if times:
            writer.at(times[place])
        _DECIDERS[type(command)](writer, command)
        runs.settle(writer)
