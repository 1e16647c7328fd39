"""The doctor: what is wrong with a store and the work in it, and what to do about it.

Each check looks at one thing and is a function of what the store says of itself. What is wrong with the log
and its rows is for `verify` to find; this is about what keeps work from going on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from runstone.core.ids import DEFAULT_TENANT
from runstone.errors import RunstoneError, StoreCorrupt
from runstone.ports.clock import Clock
from runstone.ports.health import Problem, Vitals
from runstone.ports.store import Store

QUEUE_LAG: Final = timedelta(minutes=1)
OUTBOX_LAG: Final = timedelta(minutes=5)
SCHEDULE_LAG: Final = timedelta(minutes=1)
SKEW: Final = timedelta(seconds=2)

_PAUSES: Final = {
    "NON_DETERMINISTIC": "Compare what `runstone show {run}` has as expected and as actual, mend the "
    "handler, and resume the run: `runstone control resume {run}`",
    "QUARANTINED": "Find out what ends the worker's process when it comes to this run, mend that, and resume "
    "the run: `runstone control resume {run}`",
}
"""Pauses that nobody asked for, and what to do about each."""

_DAMAGE: Final = "See `runstone verify`; then `runstone db rebuild --all`, or restore a backup"
_TENANTS: Final = 5
"""How many tenants with the same problem are named, those that have most of it."""


async def examine(store: Store, clock: Clock) -> list[Problem]:
    """Everything that can be found wrong with a store that is open; changes nothing."""
    found: dict[str, Problem] = {}
    looks: tuple[Callable[[], Awaitable[Sequence[Problem]]], ...] = (
        lambda: _look_at_work(store, clock),
        store.symptoms,
        lambda: _look_for_damage(store),
    )
    for look in looks:
        try:
            problems = await look()
        except RunstoneError as error:
            problems = [in_the_way(error)]
        for problem in problems:
            found.setdefault(problem.what, problem)  # who tells of it first knows best what to do
    return list(found.values())


async def _look_at_work(store: Store, clock: Clock) -> list[Problem]:
    before = clock.now()
    vitals = await store.vitals()
    return [*check_clock(vitals, before, clock.now()), *check_work(vitals)]


async def _look_for_damage(store: Store) -> list[Problem]:
    return damage(await store.self_check())


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
    for due in vitals.due_runs:
        if vitals.now - due.since > longest:
            version = f"version {due.version}" if due.version else "no version"
            yield Problem(
                check="queue",
                what=f"{_runs(due.count)} of {due.handler!r} ({version}) due, not taken, for "
                f"{_age(vitals, due.since)} or less: {due.example}{_of(due.tenant_id)}",
                remedy="Start more workers; see that one has that handler, at that version or a later one",
            )


def check_outbox(vitals: Vitals, longest: timedelta = OUTBOX_LAG) -> Iterator[Problem]:
    due = vitals.due_effects
    if due.since is not None and vitals.now - due.since > longest:
        yield Problem(
            check="outbox",
            what=f"{due.count} effects due, not sent, for {_age(vitals, due.since)} or less: {due.example}"
            f"{_of(due.tenant_id)}",
            remedy=f"See `runstone outbox list --groups{tenant_option(due.tenant_id)}`, and start a worker "
            "with an executor of their type",
        )


def check_letters(vitals: Vitals) -> Iterator[Problem]:
    for count, whose, option in _by_tenant(vitals.dead_letters):
        yield Problem(
            check="dead letters",
            what=f"{count} effects{whose} could not be sent, and wait for a person",
            remedy=f"See `runstone outbox list --status DEAD_LETTER{option}`; then `outbox requeue` or "
            "`discard`",
        )
    for count, whose, option in _by_tenant(vitals.unknown_effects):
        yield Problem(
            check="unknown outcomes",
            what=f"Of {count} effects{whose} nobody knows whether they were sent",
            remedy=f"See `runstone outbox list --status UNKNOWN{option}`, look at their receivers, then say "
            "`runstone effects reconcile --sent` or `--not-sent`",
        )


def check_pauses(vitals: Vitals) -> Iterator[Problem]:
    for paused in vitals.paused:
        if paused.reason in _PAUSES:
            yield Problem(
                check="paused runs",
                what=f"{_runs(paused.count)} paused as {paused.reason}, such as {paused.example}"
                f"{_of(paused.tenant_id)}",
                remedy=_PAUSES[paused.reason].format(
                    run=f"{paused.example}{tenant_option(paused.tenant_id)}"
                ),
            )


def check_schedules(vitals: Vitals, longest: timedelta = SCHEDULE_LAG) -> Iterator[Problem]:
    """A worker that has the task's handler fires it in time: there is none, or it cannot."""
    for late in vitals.unfired:
        if vitals.now - late.since > longest:
            many = "1 schedule" if late.count == 1 else f"{late.count} schedules"
            yield Problem(
                check="schedules",
                what=f"{many} of task {late.task!r} due, not fired, for {_age(vitals, late.since)} or less: "
                f"{late.example}{_of(late.tenant_id)}",
                remedy="Start a worker whose app has such a handler; if one has, its log says why. Or "
                f"take it back: `runstone schedules cancel{tenant_option(late.tenant_id)}`",
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
    return [Problem(check="store", what=what, remedy=_DAMAGE) for what in found]


def in_the_way(error: RunstoneError) -> Problem:
    """Why something could not be looked at: damage, or what the error itself says what to do about."""
    remedy = _DAMAGE if isinstance(error, StoreCorrupt) else "Until then not everything can be seen"
    return Problem(check="store", what=str(error), remedy=remedy)


def _by_tenant(counts: Mapping[str, int]) -> Iterator[tuple[int, str, str]]:
    """How many, whose they are, and the option that shows them; few tenants are named."""
    most = sorted(counts, key=lambda tenant_id: (-counts[tenant_id], tenant_id))
    for tenant_id in most[:_TENANTS]:
        yield counts[tenant_id], _of(tenant_id), tenant_option(tenant_id)
    if others := most[_TENANTS:]:
        such = others[0]
        yield sum(map(counts.__getitem__, others)), f" of tenants such as {such}", tenant_option(such)


def _of(tenant_id: str) -> str:
    return "" if tenant_id == DEFAULT_TENANT else f" of tenant {tenant_id}"


def tenant_option(tenant_id: str) -> str:
    """The verbs show one tenant, unless told otherwise the default one."""
    return "" if tenant_id == DEFAULT_TENANT else f" --tenant {tenant_id}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _age(vitals: Vitals, since: datetime) -> timedelta:
    return timedelta(seconds=round((vitals.now - since).total_seconds()))
