"""Cases on a store: read one, or decide on it and make that durable, again when others were faster.

A writer that owns the run names the fence of its claim and stops when that is stale. Anybody else
(the gateway, a dispatcher, a person) writes beside the owner, and simply reads again (§ENG-28).
"""

from __future__ import annotations

from typing import Final

import msgspec

from runstone.core.commands import Command
from runstone.core.commit import Commit, Context, Lease
from runstone.core.decide import Case, Decision, decide
from runstone.core.state import RunState, SignalState
from runstone.core.transitions import SIGNAL
from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    NotFound,
    OutcomeUnknown,
    StaleFence,
    StoreUnusable,
)
from runstone.ports.store import Committed, Host

ATTEMPTS: Final = 100
"""How often a writer decides again before it lets its caller know that the stream is too busy."""

RESUBMISSIONS: Final = 3
"""How often a commit is submitted whose outcome nobody knows."""


async def load_case(host: Host, tenant_id: str, run_id: str) -> Case | None:
    """A run and its signal with the fences their streams have now; none if there is no such run."""
    stream = await host.load(tenant_id, run_id)
    if stream is None:
        return None
    run = stream.fold()
    if not isinstance(run, RunState) or run.run is None:
        return None
    signal_id = run.run.signal_id
    signals = await host.load(tenant_id, signal_id)
    signal = signals.fold() if signals else SignalState(stream_id=signal_id, tenant_id=tenant_id)
    assert isinstance(signal, SignalState), "a run's signal is a signal"
    if signal.signal is not None and signal.signal.status in SIGNAL.terminal:
        # It may have ended between the two reads, and the run with it.
        stream = await host.load(tenant_id, run_id)
        if stream is None:  # it was archived a moment ago
            return None
        run = stream.fold()
        assert isinstance(run, RunState), "a stream stays what it is"
    return Case(
        signal=signal,
        run=run,
        signal_fence=signals.head.fence if signals else 0,
        run_fence=stream.head.fence,
    )


async def carry_out(
    host: Host,
    tenant_id: str,
    run_id: str,
    *commands: Command,
    context: Context,
    lease: Lease | None = None,
    fence: int | None = None,
) -> Decision:
    """Decides on the run as it is and commits that; reads and decides again while others are faster.

    `fence` is that of the caller's own claim: `StaleFence` then passes on, for the run is no longer
    the caller's. `NotFound` when there is no such run, `DuplicateKey` when it was done before.
    """
    for attempt in range(1, ATTEMPTS + 1):
        case = await load_case(host, tenant_id, run_id)
        if case is None:
            raise NotFound(f"There is no run {run_id}")
        if fence is not None:
            case = msgspec.structs.replace(case, run_fence=fence)
        decision = decide(case, *commands, context=context, lease=lease)
        try:
            await submit(host, decision)
        except CommitRefused as refusal:
            lost = isinstance(refusal, StaleFence) and fence is not None
            if lost or isinstance(refusal, DuplicateKey) or attempt == ATTEMPTS:
                raise
        else:
            return decision
    raise AssertionError("the last attempt returns or raises")


async def submit(host: Host, decision: Decision) -> Committed:
    """Commits a decision; the same commit again while its outcome is unknown (§STO-19)."""
    if not decision.commit.writes:
        return Committed(repeated=True)
    return await make_durable(host, decision.commit)


async def make_durable(host: Host, commit: Commit) -> Committed:
    """Submits a commit until somebody knows what became of it; `OutcomeUnknown` if that takes too often.

    That a later submission wrote nothing, since the store is unusable, says nothing about the first.
    """
    doubt: OutcomeUnknown | None = None
    for _ in range(RESUBMISSIONS):
        try:
            return await host.commit(commit)
        except OutcomeUnknown as error:
            doubt = error
        except StoreUnusable as error:
            if doubt is None:
                raise
            raise doubt from error
    assert doubt is not None, "every submission has left it open"
    raise doubt
