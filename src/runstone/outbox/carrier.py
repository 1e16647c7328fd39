"""Carries out one claimed effect: what is known of it already, the call, what came of it, the record.

    known? ─► (begin) ─► call ─► record

The beginning of an at-most-once effect is durable before its call; of any other it rides with the
outcome. No transaction is open while the outside is called. Whoever loses its lease meanwhile has its
outcome refused, and kept as a fact.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from runstone.core.effect import Effect
from runstone.core.effect_specs import EffectSpec
from runstone.core.payloads import ErrorInfo
from runstone.errors import (
    OutcomeUnknown,
    RetryableError,
    RunstoneError,
    StoreUnusable,
    UnreadableEvent,
)
from runstone.outbox.alerts import Alerts
from runstone.outbox.circuit import Circuits
from runstone.outbox.inside import Inside
from runstone.outbox.outcomes import Report, raised, report
from runstone.outbox.policy import Policy
from runstone.outbox.recorder import Recorder
from runstone.outbox.services import Service
from runstone.ports.clock import Clock
from runstone.ports.executor import EffectCall, Failed, InnerExecutor, Outcome
from runstone.ports.exits import stops_the_process
from runstone.ports.store import EffectClaim, Host

TROUBLE: Final = timedelta(minutes=5)
"""How long at most an effect rests whose run cannot be read or written here; two seconds at first."""
TROUBLES_KEPT: Final = 10_000
MOST_CLAIMS: Final = 5
"""How often an effect is claimed without an outcome before it is given up (§OUT-71)."""
SUSPECT_AFTER: Final = 2
"""So many claims without an outcome, and it is not called beside others of its kind (§OUT-72)."""
FRESH: Final = timedelta(seconds=1)
"""A claim says how the ledger stood; if it is older than this, the ledger is asked again before the call."""

_log = logging.getLogger("runstone.outbox")


@dataclass(eq=False)
class Flight:
    """One claimed effect on its way."""

    claim: EffectClaim
    service: Service
    claimed_at: datetime
    leased_until: datetime
    spec: EffectSpec | None = None
    policy: Policy = field(default_factory=Policy)
    host: str | None = None
    calling: bool = False
    """Nothing is known yet that would have to be recorded."""
    spawned: bool = False
    answered: bool = False
    """It calls nobody any more: its place among the calls is free."""

    @property
    def effect(self) -> Effect:
        return self.claim.effect

    @property
    def suspect(self) -> bool:
        """It may be what its dispatchers died of (§OUT-72)."""
        return self.claim.claims > SUSPECT_AFTER

    @property
    def lost(self) -> bool:
        """Somebody began it, who may not begin it twice, and is gone (§OUT-26)."""
        begun = self.effect.delivery == "at_most_once" and self.effect.status == "EXECUTING"
        return begun and self.service.inner is None


def deadly(flight: Flight) -> Failed | None:
    """Why it is not called any more: nobody who claimed it lived to say what came of it (§OUT-71)."""
    lost = flight.claim.claims - 1
    if lost < MOST_CLAIMS:
        return None
    error = ErrorInfo(
        category="INFRASTRUCTURE",
        code="DISPATCHER_LOST",
        message=f"Its dispatcher died {lost} times before anything was known of it: it may be what killed it",
    )
    return Failed(error)


class GiveBack(Protocol):
    """Puts an effect back, to be claimed at once or not before `until`."""

    def __call__(self, flight: Flight, until: datetime | None = None) -> Awaitable[None]: ...


class Carrier:
    """Takes effects from their claim to their outcome, each by itself."""

    def __init__(
        self,
        host: Host,
        recorder: Recorder,
        *,
        worker_id: str,
        clock: Clock,
        lease: timedelta,
        jitter: Callable[[], float],
        circuits: Circuits,
        alerts: Alerts,
        give_back: GiveBack,
        answered: Callable[[Flight], None],
        performed: Callable[[Effect], None] = lambda effect: None,
    ) -> None:
        self.id = worker_id
        self._host = host
        self._recorder = recorder
        self._clock = clock
        self._lease = lease
        self._jitter = jitter
        self._circuits = circuits
        self._alerts = alerts
        self._give_back = give_back
        self._answered = answered
        self._performed = performed
        self._troubles: Counter[str] = Counter()

    async def carry(self, flight: Flight, failure: Failed | None) -> None:
        """All of it; `failure` is one that was found before there was anything to call."""
        effect = flight.effect
        begun = False
        try:
            known = await self._known(flight, failure)
            if known is None and flight.service.inner is not None:
                self._answered(flight)
                await self._carry_out(flight, flight.service.inner)
                return
            if known is None:
                if effect.delivery == "at_most_once":
                    begun = await self._recorder.begin(effect, self.id, flight.claim.fence)
                    if not begun:
                        self._say_nothing(flight)
                        await self._give_back(flight)
                        return
                    failure = self._too_late(flight)
                    flight.calling = True
                else:
                    flight.calling = True
                    if not await self._still_ours(flight):
                        self._say_nothing(flight)
                        return
                known = self._report(flight, failure or await self._call(flight))
                flight.calling = False
            self._answered(flight)
            await self._record(flight, known)
        except asyncio.CancelledError:
            self._say_nothing(flight)
            if flight.calling:
                await self._leave(flight, begun)
            raise
        except Exception as error:
            self._say_nothing(flight)
            _log.error("effect %s stops here: %s", effect.id, error, exc_info=error)
            await self._give_back(flight, self._clock.now() + self._rest(effect.id, error))

    def _rest(self, effect_id: str, error: Exception) -> timedelta:
        """A store in trouble is so for all; what is wrong with one effect alone may go on for ever."""
        if isinstance(error, OutcomeUnknown | StoreUnusable):
            return timedelta(0)
        if isinstance(error, UnreadableEvent):  # what it did cannot be recorded here: it must not do it often
            return TROUBLE
        if len(self._troubles) >= TROUBLES_KEPT:
            self._troubles.clear()
        self._troubles[effect_id] += 1
        return min(TROUBLE, timedelta(seconds=2 ** self._troubles[effect_id]))

    async def _known(self, flight: Flight, failure: Failed | None) -> Report | None:
        """An outcome that needs no call: on record already, lost with its worker, or unreadable (§OUT-8)."""
        effect, fence = flight.effect, flight.claim.fence
        if effect.execution_result is not None:
            result = await self._recorder.whole(effect, effect.execution_result)
            return Report(effect_id=effect.id, executor=self.id, fence=fence, result=result)
        if flight.lost:
            return Report(effect_id=effect.id, executor=self.id, fence=fence, unknown=True)
        return None if failure is None else self._report(flight, failure)

    async def _still_ours(self, flight: Flight) -> bool:
        """Whether a claim that had to wait is good still, and its effect to be executed (§OUT-8, §OUT-9)."""
        effect = flight.effect
        if self._clock.now() - flight.claimed_at < FRESH:
            return True
        now = await self._host.extend_effects(self.id, [effect.id], lease=self._lease)
        if not now or now[0].fence != flight.claim.fence:
            return False
        status, result = now[0].effect.status, now[0].effect.execution_result
        if status in ("PENDING", "FAILED", "EXECUTING") and result is None:
            return True
        await self._give_back(flight)
        return False

    def _too_late(self, flight: Flight) -> Failed | None:
        """Others may take for lost what was begun so long ago, and a person may say that it was not sent."""
        if self._clock.now() < flight.leased_until:
            return None
        self._say_nothing(flight)
        error = ErrorInfo(
            category="INFRASTRUCTURE",
            code="LEASE_EXPIRED",
            message="Its dispatcher was held up before it called",
            retryable=True,
        )
        return Failed(error, nothing_sent=True)

    def _effect_call(self, flight: Flight) -> EffectCall:
        effect, spec = flight.effect, flight.spec
        assert spec is not None, "it was read when it was admitted"
        return EffectCall(
            effect_id=effect.id,
            tenant_id=effect.tenant_id,
            run_id=effect.run_id,
            effect_type=effect.effect_type,
            spec=spec,
            key=effect.idempotency_key,
            attempt=effect.retry_count + 1,
            timeout=flight.policy.timeout or flight.service.timeout,
            correlation_id=effect.correlation_id,
            requested_at=effect.requested_at,
        )

    async def _carry_out(self, flight: Flight, executor: InnerExecutor) -> None:
        """Does in our own store what is done there: without a call, and so without a doubt (§OUT-55)."""
        inside = Inside(self._effect_call(flight), executor, lambda outcome: self._report(flight, outcome))
        after = await self._recorder.perform(flight.effect, inside, flight.claim.fence)
        if after is None or inside.reported is None:
            await self._give_back(flight)
            return
        self._alert(after, inside.reported)
        self._performed(after)

    async def _call(self, flight: Flight) -> Outcome:
        """Calls the outside, with a limit on its time (§OUT-10, §OUT-11)."""
        call, executor = self._effect_call(flight), flight.service.outer
        assert executor is not None, "what is done inside is not called"
        try:
            async with asyncio.timeout(call.timeout.total_seconds()):
                outcome = await executor.execute(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            outcome = raised(RetryableError("The executor was cancelled by something of its own"))
        except (Exception, SystemExit) as error:  # `sys.exit` is not the worker's end (§ENG-52)
            if stops_the_process(error):
                raise
            outcome = raised(error)
        if flight.host is not None:
            if isinstance(outcome, Failed) and outcome.target_down:
                self._circuits.failed(flight.host, self._clock.now())
            else:
                self._circuits.succeeded(flight.host)
        return outcome

    def _say_nothing(self, flight: Flight) -> None:
        """It was dropped before the host could answer: nothing is known of the host."""
        if flight.host is not None:
            self._circuits.gave_up(flight.host)

    def _report(self, flight: Flight, outcome: Outcome) -> Report:
        return report(
            flight.effect,
            outcome,
            executor=self.id,
            fence=flight.claim.fence,
            policy=flight.policy.retries or flight.service.retries,
            now=self._clock.now(),
            jitter=self._jitter(),
        )

    async def _record(self, flight: Flight, known: Report) -> None:
        after = await self._recorder.record(flight.effect, known)
        if after is not None:
            self._alert(after, known)

    def _alert(self, after: Effect, known: Report) -> None:
        if after.status == "DEAD_LETTER" and known.error is not None:
            self._alerts.dead_letter(after, known.error)

    async def _leave(self, flight: Flight, begun: bool) -> None:
        """The process goes away in the middle of a call: nobody knows whether it was done (§OUT-26)."""
        effect = flight.effect
        if not begun:
            await self._give_back(flight)
            return
        lost = Report(effect_id=effect.id, executor=self.id, fence=flight.claim.fence, unknown=True)
        with suppress(RunstoneError):
            await self._recorder.record(effect, lost)
