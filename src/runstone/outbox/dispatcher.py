"""The dispatcher: claims effects, has them executed outside, and records what came of them.

    claim ─► admit ─► carry

A claim only leases. What is bound for a host that is down or busy is put back, without counting a
retry. A place among the calls is free as soon as the outside has answered: the next claim goes on while
outcomes are recorded.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from runstone.core.effect import Effect
from runstone.core.ids import NewId
from runstone.core.payloads import ErrorInfo
from runstone.core.run import Run
from runstone.errors import InvalidPayload, RunstoneError, StoreCorrupt, StoreUnusable
from runstone.outbox.alerts import Alerts
from runstone.outbox.carrier import Carrier, Flight, deadly
from runstone.outbox.circuit import Circuits
from runstone.outbox.outcomes import raised
from runstone.outbox.policy import policy_of
from runstone.outbox.recorder import Recorder
from runstone.outbox.services import Service
from runstone.ports.bell import Bell
from runstone.ports.clock import Clock
from runstone.ports.executor import Failed
from runstone.ports.store import Host
from runstone.ports.troubles import Troubles

LEASE: Final = timedelta(seconds=30)
POLL: Final = 0.25
CONCURRENCY: Final = 256
PER_TENANT: Final = 192
PER_HOST: Final = 64
CLAIM_SHARE: Final = 0.25
"""What has to be free of all places before the next claim, while there is more: each is a transaction."""
RECORDING: Final = 5.0
"""How long outcomes may take to be recorded when the dispatcher leaves, in seconds."""
CROWDED: Final = timedelta(milliseconds=250)
"""How long an effect rests whose host has as many calls as it may."""
UNRECORDED: Final = 4
"""How many effects may be under way for each call there may be at once: most wait for their record only,
while the store has others to write and to claim."""

_log = logging.getLogger("runstone.outbox")


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
        performed: Callable[[Effect], None] = lambda effect: None,
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
        self._carrier = Carrier(
            host,
            self._recorder,
            worker_id=worker_id,
            clock=clock,
            lease=lease,
            jitter=jitter,
            circuits=self.circuits,
            alerts=self._alerts,
            give_back=self._give_back,
            answered=self._answered,
            performed=performed,
        )
        self._flights: dict[str, Flight] = {}
        """By their effects. One that has lost its lease is not called beside itself (see `_admit`)."""
        self._calls: dict[asyncio.Task[None], Flight] = {}
        self._unanswered = 0
        self._suspect: Flight | None = None
        """The one under way that may be deadly: one at a time, lest one is taken for another (§OUT-72)."""
        self._tenants: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._left = asyncio.Event()
        self._idle = asyncio.Event()
        """No claim is on its way."""
        self._idle.set()
        self._told = Troubles(_log)
        self._stopping = False
        self._sure_at = clock.now()
        """When all that lay in its name was known to it."""
        self._unsure = False
        """An answer was lost, or it is time to look: effects may be in its name that it does not know of."""
        self._more = False
        """The last claim took all it could: there may be more where that came from."""

    @property
    def free(self) -> int:
        """How many more effects it can take."""
        if self._stopping:
            return 0
        calls = self._concurrency - self._unanswered
        return max(0, min(calls, UNRECORDED * self._concurrency - len(self._calls)))

    def wake(self) -> None:
        """An effect was asked for: look now rather than later. A run's bell would say much more than that."""
        self._wake.set()

    async def run(self) -> None:
        """Dispatches until it is stopped."""
        heartbeat = asyncio.ensure_future(self._beat())
        heartbeat.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stopping:
                self._wake.clear()
                if heartbeat.done():  # whoever cannot keep leases takes none
                    heartbeat.result()
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
        if not self._services or (limit <= 0 and not self._unsure):
            return 0
        self._idle.clear()
        try:
            # What is in its own name would be counted once more when it takes it again (§OUT-76).
            if self._unsure and not await self._release_strays():
                return 0
            return await self._claim(limit) if limit > 0 else 0
        finally:
            self._idle.set()

    async def _claim(self, limit: int) -> int:
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
            self._told.warn(f"cannot claim effects: {error}")
            self._unsure = True
            return 0
        holding.update(claim.effect.tenant_id for claim in claims)
        full = any(count >= self._per_tenant for count in holding.values())
        self._more = full or len(claims) == limit
        self._recorder.expect(claims)
        rests: dict[datetime, list[str]] = defaultdict(list)
        for claim in claims:
            service = self._services[claim.effect.effect_type]
            await self._admit(Flight(claim, service, now, now + self._lease), rests)
        for until, effect_ids in rests.items():
            await self._put_back(effect_ids, until)
        if self._suspect is not None and not self._suspect.spawned:
            self._spawn(self._suspect, None)  # not before: what is put back must not die with it
        return len(claims)

    async def _release_strays(self) -> bool:
        """Puts back what is in its name without its knowing, while no claim is under way; if it could."""
        now, self._unsure = self._clock.now(), False
        try:
            strays = await self._host.release_stray_effects(
                self.id, keeping=list(self._flights), since=self._sure_at
            )
        except RunstoneError as error:
            self._told.warn(f"cannot give back effects whose claim was not answered: {error}")
            self._unsure = True
            return False
        self._sure_at = now
        if strays:
            _log.warning("gave back %d effects that were in its name and unknown to it", strays)
        return True

    async def drain(self, deadline: timedelta = timedelta(seconds=30)) -> None:
        """Claims no more, lets calls finish until the deadline, gives back the rest."""
        self._stopping = True
        self._wake.set()
        time = asyncio.get_running_loop().time
        until = time() + deadline.total_seconds()
        with suppress(TimeoutError):  # what a claim brings that is on its way is put back
            await asyncio.wait_for(self._idle.wait(), max(RECORDING, deadline.total_seconds()))
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=max(0.0, until - time()))
        for call, flight in list(self._calls.items()):
            if flight.calling:
                call.cancel()
        if self._calls:  # what is known is recorded
            await asyncio.wait(list(self._calls), timeout=RECORDING)
        if self._calls:
            _log.error("%d effects are left behind, what came of them is not recorded", len(self._calls))
        for call in list(self._calls):
            call.cancel()
        if self._unsure and self._idle.is_set():
            await self._release_strays()
        await self._alerts.close()
        self._left.set()

    # Admitting

    async def _admit(self, flight: Flight, rests: dict[datetime, list[str]]) -> None:
        """On its way, or to be put back until its host has time."""
        effect, now = flight.effect, self._clock.now()
        if self._stopping:
            rests[flight.claimed_at].append(effect.id)
            return
        if effect.id in self._flights:  # it lost its lease: what comes of it is soon known (§OUT-73)
            rests[flight.claimed_at + CROWDED].append(effect.id)
            return
        if effect.execution_result is None and not flight.lost:
            try:
                failure = deadly(flight) or await self._read(flight)
            except StoreUnusable:
                rests[flight.claimed_at + CROWDED].append(effect.id)
                return
            if failure is not None:
                self._spawn(flight, failure)
                return
            until = self._crowded(flight, now)
            if until is not None:
                rests[until].append(effect.id)
                return
            if flight.suspect:
                self._suspect = flight
                return
        self._spawn(flight, None)

    async def _read(self, flight: Flight) -> Failed | None:
        """Reads the spec and asks where it goes."""
        effect, service = flight.effect, flight.service
        try:
            flight.spec = service.read(await self._recorder.whole(effect, effect.effect_spec))
            flight.policy = policy_of(effect, service)
            flight.host = None if service.outer is None else service.outer.target(flight.spec)
        except Exception as error:
            if isinstance(error, StoreUnusable) and not isinstance(error, StoreCorrupt):
                raise  # nothing is wrong with the effect
            if not isinstance(error, msgspec.DecodeError | InvalidPayload | RunstoneError):
                _log.error("effect %s has a spec that cannot be worked with", effect.id, exc_info=error)
                return msgspec.structs.replace(raised(error), nothing_sent=True)
            info = ErrorInfo(
                category="VALIDATION",
                code="UNREADABLE_SPEC",
                message=f"{effect.effect_type} does not fit {service.spec.__name__}: {error}"[:2000],
            )
            return Failed(info, nothing_sent=True)
        return None

    def _crowded(self, flight: Flight, now: datetime) -> datetime | None:
        """Until when it has to wait: for its host to have time, or for others that may be deadly."""
        if flight.suspect and self._suspect is not None:
            return flight.claimed_at + CROWDED
        host = flight.host
        if host is None:
            return None
        if self._hosts[host] >= self._per_host:
            return flight.claimed_at + CROWDED  # the same for all of one claim: one write puts them back
        return self.circuits.admit(host, now)

    async def _put_back(self, effect_ids: Sequence[str], until: datetime | None = None) -> None:
        try:
            await self._host.release_effects(self.id, effect_ids, until=until)
        except RunstoneError:
            self._unsure = True

    async def _give_back(self, flight: Flight, until: datetime | None = None) -> None:
        await self._put_back([flight.effect.id], until)

    def _spawn(self, flight: Flight, failure: Failed | None) -> None:
        effect = flight.effect
        self._flights[effect.id] = flight
        self._unanswered += 1
        flight.spawned = True
        self._tenants[effect.tenant_id] += 1
        if flight.host is not None:
            self._hosts[flight.host] += 1
        call = asyncio.ensure_future(self._carrier.carry(flight, failure))
        self._calls[call] = flight
        call.add_done_callback(self._land)

    def _land(self, call: asyncio.Task[None]) -> None:
        flight = self._calls.pop(call)
        effect = flight.effect
        del self._flights[effect.id]
        if self._suspect is flight:
            self._suspect = None
        self._answered(flight)
        self._look_for_more(effect.tenant_id)

    def _answered(self, flight: Flight) -> None:
        """Others may call in its place."""
        if flight.answered:
            return
        flight.answered = True
        effect = flight.effect
        self._unanswered -= 1
        for counter, name in ((self._tenants, effect.tenant_id), (self._hosts, flight.host)):
            if name is not None:
                counter[name] -= 1
                if counter[name] <= 0:
                    del counter[name]
        self._look_for_more(effect.tenant_id)

    def _look_for_more(self, tenant_id: str) -> None:
        if self._more and (not self._calls or self._room(tenant_id) >= CLAIM_SHARE):
            self._wake.set()

    def _room(self, tenant_id: str) -> float:
        """Which share of all places is free, for this tenant."""
        bound = min(self._concurrency, self._per_tenant)
        return min(self.free, self._per_tenant - self._tenants[tenant_id]) / bound

    # Keeping leases

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            await self.beat_once()

    async def beat_once(self) -> None:
        """Extends the leases of calls that take long, and lets alerts go that were held back."""
        self._alerts.flush()
        self._unsure = True  # what was lost may also land later than anybody waited for it
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
            elif flight.effect.id in self._flights and flight.calling:
                _log.warning("effect %s was claimed by another: its outcome comes late", flight.effect.id)
