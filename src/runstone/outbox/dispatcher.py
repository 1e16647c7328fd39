"""The dispatcher: claims effects, has them executed outside, and records what came of them.

    claim ─► admit ─► (begin) ─► call ─► record

A claim only leases. What is bound for a host that is down or busy is put back, without counting a
retry. The beginning of an at-most-once effect is durable before its call; of any other it rides with
the outcome. No transaction is open while the outside is called. Whoever loses its lease meanwhile has
its outcome refused, and kept as a fact.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from runstone.core.effect import Effect
from runstone.core.effect_specs import EffectSpec
from runstone.core.ids import NewId
from runstone.core.payloads import ErrorInfo
from runstone.core.run import Run
from runstone.errors import (
    InvalidPayload,
    OutcomeUnknown,
    RetryableError,
    RunstoneError,
    StoreUnusable,
    UnreadableEvent,
)
from runstone.outbox.alerts import Alerts
from runstone.outbox.circuit import Circuits
from runstone.outbox.outcomes import Report, raised, report
from runstone.outbox.policy import Policy, policy_of
from runstone.outbox.recorder import Recorder
from runstone.outbox.services import Service
from runstone.ports.bell import Bell
from runstone.ports.clock import Clock
from runstone.ports.executor import EffectCall, Failed, Outcome
from runstone.ports.store import EffectClaim, Host

LEASE: Final = timedelta(seconds=30)
POLL: Final = 0.25
CONCURRENCY: Final = 256
PER_TENANT: Final = 192
PER_HOST: Final = 64
CLAIM_SHARE: Final = 0.25
"""What has to be free of all places before the next claim, while there is more: each is a transaction."""
RECORDING: Final = 5.0
"""How long outcomes may take to be recorded when the dispatcher leaves, in seconds."""
TROUBLE: Final = timedelta(minutes=5)
"""How long at most an effect rests whose run cannot be read or written here; two seconds at first."""
TROUBLES_KEPT: Final = 10_000
CROWDED: Final = timedelta(milliseconds=250)
"""How long an effect rests whose host has as many calls as it may."""
FRESH: Final = timedelta(seconds=1)
"""A claim says how the ledger stood; if it is older than this, the ledger is asked again before the call."""

_log = logging.getLogger("runstone.outbox")


@dataclass
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

    @property
    def effect(self) -> Effect:
        return self.claim.effect

    @property
    def lost(self) -> bool:
        """Somebody began it, who may not begin it twice, and is gone (§OUT-26)."""
        return self.effect.delivery == "at_most_once" and self.effect.status == "EXECUTING"


class Dispatcher:
    """Takes effects from the outbox to the outside."""

    def __init__(
        self,
        host: Host,
        services: Mapping[str, Service],
        *,
        worker_id: str,
        clock: Clock,
        new_id: NewId,
        bell: Bell,
        concurrency: int = CONCURRENCY,
        per_tenant: int = PER_TENANT,
        per_host: int = PER_HOST,
        lease: timedelta = LEASE,
        poll: float = POLL,
        jitter: Callable[[], float] = random.random,
        circuits: Circuits | None = None,
        alerts: Alerts | None = None,
        ended: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.id = worker_id
        self._host = host
        self._services = services
        self._clock = clock
        self._concurrency = concurrency
        self._per_tenant = per_tenant
        self._per_host = per_host
        self._lease = lease
        self._poll = poll
        self._jitter = jitter
        self.circuits = circuits or Circuits(jitter=jitter)
        self._alerts = alerts or Alerts(None, clock=clock)
        self._recorder = Recorder(
            host, clock=clock, new_id=new_id, actor=f"dispatcher:{worker_id}", bell=bell, ended=ended
        )
        self._flights: dict[str, Flight] = {}
        """The newest of each effect: one that lost its lease may be claimed again while its call goes on."""
        self._calls: dict[asyncio.Task[None], Flight] = {}
        self._tenants: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()
        self._troubles: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._left = asyncio.Event()
        self._stopping = False
        self._more = False
        """The last claim took all it could: there may be more where that came from."""

    @property
    def free(self) -> int:
        """How many more effects it can take."""
        return 0 if self._stopping else self._concurrency - len(self._calls)

    def wake(self) -> None:
        """An effect was asked for: look now rather than later. A run's bell would say much more than that."""
        self._wake.set()

    async def run(self) -> None:
        """Dispatches until it is stopped."""
        heartbeat = asyncio.ensure_future(self._beat())
        try:
            while not self._stopping:
                self._wake.clear()
                limit = self.free
                claimed = await self.run_once()
                if claimed < limit or self.free == 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._poll * (0.5 + self._jitter()))
            await self._left.wait()  # calls under way keep their leases while it drains
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def run_once(self) -> int:
        """Claims what it has room for and sets it on its way; how many it claimed."""
        limit = self.free
        if limit <= 0 or not self._services:
            return 0
        now = self._clock.now()
        holding = Counter(self._tenants)
        try:
            claims = await self._host.claim_effects(
                self.id,
                types=list(self._services),
                limit=limit,
                lease=self._lease,
                per_tenant=self._per_tenant,
                holding=dict(holding),
            )
        except RunstoneError as error:
            _log.warning("cannot claim effects: %s", error)
            return 0
        holding.update(claim.effect.tenant_id for claim in claims)
        full = any(count >= self._per_tenant for count in holding.values())
        self._more = full or len(claims) == limit
        rests: dict[datetime, list[str]] = defaultdict(list)
        for claim in claims:
            service = self._services[claim.effect.effect_type]
            await self._admit(Flight(claim, service, now, now + self._lease), rests)
        for until, effect_ids in rests.items():
            await self._put_back(effect_ids, until)
        return len(claims)

    async def drain(self, deadline: timedelta = timedelta(seconds=30)) -> None:
        """Claims no more, lets calls finish until the deadline, gives back the rest."""
        self._stopping = True
        self._wake.set()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=deadline.total_seconds())
        for call, flight in list(self._calls.items()):
            if flight.calling:
                call.cancel()
        if self._calls:  # what is known is recorded
            await asyncio.wait(list(self._calls), timeout=RECORDING)
        for call in list(self._calls):
            call.cancel()
        await self._alerts.close()
        self._left.set()

    # Admitting

    async def _admit(self, flight: Flight, rests: dict[datetime, list[str]]) -> None:
        """On its way, or to be put back until its host has time."""
        effect, now = flight.effect, self._clock.now()
        if effect.execution_result is None and not flight.lost:
            failure = await self._read(flight)
            if failure is not None:
                self._spawn(flight, failure)
                return
            until = self._crowded(flight, now)
            if until is not None:
                rests[until].append(effect.id)
                return
        self._spawn(flight, None)

    async def _read(self, flight: Flight) -> Failed | None:
        """Reads the spec and asks where it goes."""
        effect, service = flight.effect, flight.service
        try:
            flight.spec = service.read(await self._recorder.whole(effect, effect.effect_spec))
            flight.policy = policy_of(effect, service)
            flight.host = service.executor.target(flight.spec)
        except (msgspec.DecodeError, InvalidPayload, RunstoneError) as error:
            info = ErrorInfo(
                category="VALIDATION",
                code="UNREADABLE_SPEC",
                message=f"{effect.effect_type} does not fit {service.spec.__name__}: {error}"[:2000],
            )
            return Failed(info, nothing_sent=True)
        return None

    def _crowded(self, flight: Flight, now: datetime) -> datetime | None:
        """Until when its host is to be left alone, if it is."""
        host = flight.host
        if host is None:
            return None
        if self._hosts[host] >= self._per_host:
            return flight.claimed_at + CROWDED  # the same for all of one claim: one write puts them back
        return self.circuits.admit(host, now)

    async def _put_back(self, effect_ids: Sequence[str], until: datetime | None = None) -> None:
        with suppress(RunstoneError):  # then its lease runs out
            await self._host.release_effects(self.id, effect_ids, until=until)

    async def _give_back(self, flight: Flight, until: datetime | None = None) -> None:
        """Puts its effect back, unless a later claim of the same process has it now."""
        if self._flights.get(flight.effect.id) is flight:
            await self._put_back([flight.effect.id], until)

    def _spawn(self, flight: Flight, failure: Failed | None) -> None:
        effect = flight.effect
        self._flights[effect.id] = flight
        self._tenants[effect.tenant_id] += 1
        if flight.host is not None:
            self._hosts[flight.host] += 1
        call = asyncio.ensure_future(self._fly(flight, failure))
        self._calls[call] = flight
        call.add_done_callback(self._land)

    def _land(self, call: asyncio.Task[None]) -> None:
        flight = self._calls.pop(call)
        effect = flight.effect
        if self._flights.get(effect.id) is flight:
            del self._flights[effect.id]
        for counter, name in ((self._tenants, effect.tenant_id), (self._hosts, flight.host)):
            if name is not None:
                counter[name] -= 1
                if counter[name] <= 0:
                    del counter[name]
        if self._more and (not self._calls or self._room(effect.tenant_id) >= CLAIM_SHARE):
            self._wake.set()

    def _room(self, tenant_id: str) -> float:
        """Which share of all places is free, for this tenant."""
        bound = min(self._concurrency, self._per_tenant)
        return min(self.free, self._per_tenant - self._tenants[tenant_id]) / bound

    # On its way

    async def _fly(self, flight: Flight, failure: Failed | None) -> None:
        effect = flight.effect
        begun = False
        try:
            known = await self._known(flight, failure)
            if known is None:
                if effect.delivery == "at_most_once":
                    begun = await self._recorder.begin(effect, self.id, flight.claim.fence)
                    if not begun:
                        self._say_nothing(flight)
                        await self._give_back(flight)
                        return
                    failure = self._too_late(flight)
                elif not await self._still_ours(flight):
                    self._say_nothing(flight)
                    return
                flight.calling = True
                known = self._report(flight, failure or await self._call(flight))
                flight.calling = False
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
        error = ErrorInfo(
            category="INFRASTRUCTURE",
            code="LEASE_EXPIRED",
            message="Its dispatcher was held up before it called",
            retryable=True,
        )
        return Failed(error, nothing_sent=True)

    async def _call(self, flight: Flight) -> Outcome:
        """Calls the outside, with a limit on its time (§OUT-10, §OUT-11)."""
        effect, spec = flight.effect, flight.spec
        assert spec is not None, "it was read when it was admitted"
        timeout = flight.policy.timeout or flight.service.timeout
        call = EffectCall(
            effect_id=effect.id,
            tenant_id=effect.tenant_id,
            run_id=effect.run_id,
            effect_type=effect.effect_type,
            spec=spec,
            key=effect.idempotency_key,
            attempt=effect.retry_count + 1,
            timeout=timeout,
            correlation_id=effect.correlation_id,
            requested_at=effect.requested_at,
        )
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                outcome = await flight.service.executor.execute(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            outcome = raised(RetryableError("The executor was cancelled by something of its own"))
        except Exception as error:
            outcome = raised(error)
        if flight.host is not None:
            if isinstance(outcome, Failed) and outcome.target_down:
                self.circuits.failed(flight.host, self._clock.now())
            else:
                self.circuits.succeeded(flight.host)
        return outcome

    def _say_nothing(self, flight: Flight) -> None:
        """It was dropped before the host could answer: nothing is known of the host."""
        if flight.host is not None:
            self.circuits.gave_up(flight.host)

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
        if after is not None and after.status == "DEAD_LETTER" and known.error is not None:
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

    # Keeping leases

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            await self.beat_once()

    async def beat_once(self) -> None:
        """Extends the leases of calls that take long, and lets alerts go that were held back."""
        self._alerts.flush()
        now = self._clock.now()
        third = self._lease / 3
        old = [flight for flight in self._flights.values() if flight.leased_until - now <= third * 2.5]
        if not old:
            return
        try:
            async with asyncio.timeout(third.total_seconds()):
                kept = await self._host.extend_effects(
                    self.id, [flight.effect.id for flight in old], lease=self._lease
                )
        except (RunstoneError, TimeoutError) as error:
            _log.warning("cannot extend the leases of effects: %s", str(error) or "the store takes too long")
            return
        fences = {claim.effect.id: claim.fence for claim in kept}
        for flight in old:
            if fences.get(flight.effect.id) == flight.claim.fence:
                flight.leased_until = now + self._lease
            elif self._flights.get(flight.effect.id) is flight and flight.calling:
                _log.warning("effect %s was claimed by another: its outcome comes late", flight.effect.id)
