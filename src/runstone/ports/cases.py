"""Cases on a store: read one, or decide on it and make that durable, again when others were faster.

A writer that owns the run names the fence of its claim and stops when that is stale. Anybody else
(the gateway, a dispatcher, a person) writes beside the owner, and simply reads again (§ENG-28).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from runstone.core.commands import Command
from runstone.core.commit import Commit, Context, Lease
from runstone.core.decide import Case, Decision, decide
from runstone.core.fold import fold_run, fold_signal
from runstone.core.state import RunState, SignalState
from runstone.core.stream import Stream
from runstone.core.transitions import SIGNAL
from runstone.errors import (
    CommitRefused,
    DuplicateKey,
    NotFound,
    OutcomeUnknown,
    StaleFence,
    StoreUnusable,
)
from runstone.ports.store import Committed, Host, Place

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


async def load_cases(host: Host, runs: Sequence[tuple[str, str]]) -> list[Case | None]:
    """The same for many, by tenant and id, in two reads however many they are."""
    streams = await host.load_many([Place(*run) for run in runs])
    begun = []
    for stream in streams:
        begun.append(_of_run(stream))
        await asyncio.sleep(0)
    cases = iter(await catch_up(host, [case for case in begun if case is not None]))
    return [None if case is None else next(cases) for case in begun]


def _of_run(stream: Stream | None) -> Case | None:
    """A case that knows nothing of its signal yet."""
    run = None if stream is None else stream.fold()
    if stream is None or not isinstance(run, RunState) or run.run is None:
        return None
    signal = SignalState(stream_id=run.run.signal_id, tenant_id=run.tenant_id)
    return Case(signal=signal, run=run, signal_fence=0, run_fence=stream.head.fence)


async def catch_up(host: Host, cases: Sequence[Case]) -> list[Case | None]:
    """The same cases as they are now, in one read of what others appended; none where the run is gone."""
    states = [state for case in cases for state in (case.signal, case.run)]
    streams = await host.load_many([Place(each.tenant_id, each.stream_id, each.last_seq) for each in states])
    pairs = zip(streams[::2], streams[1::2], strict=True)
    caught_up = []
    for case, (signal, run) in zip(cases, pairs, strict=True):
        caught_up.append(_caught_up(case, signal, run))
        await asyncio.sleep(0)  # to fold many takes a while: others have their turn
    return caught_up


def _caught_up(case: Case, signal: Stream | None, run: Stream | None) -> Case | None:
    if run is None or (signal is None and case.signal.last_seq):
        return None
    return msgspec.structs.replace(
        case,
        signal=fold_signal(case.signal, signal.events) if signal and signal.events else case.signal,
        run=fold_run(case.run, run.events) if run.events else case.run,
        signal_fence=signal.head.fence if signal else 0,
        run_fence=run.head.fence,
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
