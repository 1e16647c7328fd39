"""The doctor: what is wrong with a store and the work in it, and what to do about it.

Each check looks at one thing and is a function of what the store says of itself. What is wrong with the log
and its rows is for `verify` to find; this is about what keeps work from going on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from runstone.errors import RunstoneError
from runstone.ports.clock import Clock
from runstone.ports.health import Problem, Vitals
from runstone.ports.store import Store

QUEUE_LAG: Final = timedelta(minutes=1)
OUTBOX_LAG: Final = timedelta(minutes=5)
SCHEDULE_LAG: Final = timedelta(minutes=1)
SKEW: Final = timedelta(seconds=2)

_PAUSES: Final = {
    "NON_DETERMINISTIC": "Compare what `runstone events RUN --json` has as expected and as actual, mend the "
    "handler, and resume the run: handle.resume()",
    "QUARANTINED": "Find out what ends the worker's process when it comes to this run, mend that, and resume "
    "the run: handle.resume()",
}
"""Pauses that nobody asked for, and what to do about each."""


async def examine(store: Store, clock: Clock) -> list[Problem]:
    """Everything that can be found wrong with a store that is open; changes nothing."""
    found: list[Problem] = []
    try:
        before = clock.now()
        vitals = await store.vitals()
        found += check_clock(vitals, before, clock.now())
        found += check_work(vitals)
        found += await store.symptoms()
        found += damage(await store.self_check())
    except RunstoneError as error:
        found += damage([str(error)])
    return found


def check_work(vitals: Vitals) -> list[Problem]:
    """What can be found wrong with the work in a store."""
    return [
        *check_workers(vitals),
        *check_queue(vitals),
        *check_outbox(vitals),
        *check_letters(vitals),
        *check_pauses(vitals),
        *check_schedules(vitals),
    ]


def check_workers(vitals: Vitals) -> Iterator[Problem]:
    for worker in vitals.lost_workers:
        since = f"ended at {worker.lease_until:%Y-%m-%d %H:%M:%S}" if worker.lease_until else "is gone"
        yield Problem(
            check="workers",
            what=f"The lease of worker {worker.worker_id} {since}, and it still owns {_runs(worker.runs)}",
            remedy="Start a worker that has their handlers, at their version or later: it takes them over",
        )


def check_queue(vitals: Vitals, longest: timedelta = QUEUE_LAG) -> Iterator[Problem]:
    due = vitals.due_runs
    if due.since is not None and vitals.now - due.since > longest:
        yield Problem(
            check="queue",
            what=f"{_runs(due.count)} due, not taken, for {_age(vitals, due.since)} or less: {due.example}",
            remedy="Start more workers; see that one has that run's handler, at its version or a later one",
        )


def check_outbox(vitals: Vitals, longest: timedelta = OUTBOX_LAG) -> Iterator[Problem]:
    due = vitals.due_effects
    if due.since is not None and vitals.now - due.since > longest:
        yield Problem(
            check="outbox",
            what=f"{due.count} effects due, not sent, for {_age(vitals, due.since)} or less: {due.example}",
            remedy="See `runstone outbox list --groups`, and start a worker with an executor of their type",
        )


def check_letters(vitals: Vitals) -> Iterator[Problem]:
    if vitals.dead_letters:
        yield Problem(
            check="dead letters",
            what=f"{vitals.dead_letters} effects could not be sent, and wait for a person",
            remedy="See `runstone outbox list --status DEAD_LETTER`; then `outbox requeue` or `discard`",
        )
    if vitals.unknown_effects:
        yield Problem(
            check="unknown outcomes",
            what=f"Of {vitals.unknown_effects} effects nobody knows whether they were sent",
            remedy="Look at their receivers, then say `runstone effects reconcile --sent` or `--not-sent`",
        )


def check_pauses(vitals: Vitals) -> Iterator[Problem]:
    for paused in vitals.paused:
        if paused.reason in _PAUSES:
            yield Problem(
                check="paused runs",
                what=f"{_runs(paused.count)} paused as {paused.reason}, such as {paused.example}",
                remedy=_PAUSES[paused.reason],
            )


def check_schedules(vitals: Vitals, longest: timedelta = SCHEDULE_LAG) -> Iterator[Problem]:
    """A worker that has the task's handler fires it in time: there is none, or it cannot."""
    for late in vitals.unfired:
        if vitals.now - late.since > longest:
            many = "1 schedule" if late.count == 1 else f"{late.count} schedules"
            yield Problem(
                check="schedules",
                what=f"{many} of task {late.task!r} due, not fired, for {_age(vitals, late.since)} or less: "
                f"{late.example}",
                remedy="Start a worker whose app has such a handler; if one has, its log says why. Or "
                "take it back: `runstone schedules cancel`",
            )


def check_clock(
    vitals: Vitals, before: datetime, after: datetime, most: timedelta = SKEW
) -> Iterator[Problem]:
    """The store told its time at some moment between these two of ours."""
    skew = max(before - vitals.now, vitals.now - after)
    if skew > most:
        yield Problem(
            check="clock",
            what=f"The clock of this machine and that of the store are {skew.total_seconds():.1f} s apart",
            remedy="Let both follow a time server (NTP)",
        )
    if vitals.latest is not None and vitals.latest - max(after, vitals.now) > most:
        yield Problem(
            check="clock",
            what=f"The newest event was persisted at {vitals.latest:%Y-%m-%d %H:%M:%S}, in the future",
            remedy="A clock was set back, or was ahead: let all machines follow a time server (NTP)",
        )


def damage(found: Sequence[str]) -> list[Problem]:
    """What a store finds wrong with itself."""
    remedy = "See `runstone verify`; then `runstone db rebuild --all`, or restore a backup"
    return [Problem(check="store", what=what, remedy=remedy) for what in found]


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _age(vitals: Vitals, since: datetime) -> timedelta:
    return timedelta(seconds=round((vitals.now - since).total_seconds()))
