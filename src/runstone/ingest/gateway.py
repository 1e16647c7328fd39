"""The gateway: everything that comes in from outside goes through here into the log.

A signal and its run are created in one commit. The same signal again finds the first one; the same
source id with other content is refused and recorded (§IDM-14, §IDM-15). Control signals pass authorization,
land beside a running handler, and ring the bell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from runstone.core.commands import Control, CreateRun, ReceiveSignal, RefuseControl, ReportConflict
from runstone.core.commit import Context, Lease
from runstone.core.decide import Case, decide
from runstone.core.events import Event
from runstone.core.ids import NewId
from runstone.core.keys import content_hash
from runstone.core.payloads import ControlKind, ErrorInfo, OptionalJson, SignalType
from runstone.core.run import Run
from runstone.errors import ControlRefused, DuplicateKey, NotFound, SignalConflict, StaleSequence
from runstone.ingest.answers import answer_schema, misfit
from runstone.ports.authorization import Authorization
from runstone.ports.bell import Bell
from runstone.ports.cases import carry_out, submit
from runstone.ports.clock import Clock
from runstone.ports.store import Store

MAX_CONTROL_BYTES: Final = 64 * 1024
MAX_CONTROLS_A_MINUTE: Final = 60


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """Input, normalized."""

    signal_type: SignalType
    source_channel: str
    source_id: str
    payload: Raw
    received_at: datetime
    ingested_by: str | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a signal: the run that handles it, and its case if this call created it."""

    run_id: str
    case: Case | None


class Gateway:
    """Takes signals and control signals in."""

    def __init__(
        self, store: Store, *, clock: Clock, new_id: NewId, bell: Bell, authorization: Authorization
    ) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._bell = bell
        self._authorization = authorization
        self._recent: dict[str, deque[datetime]] = {}

    async def receive(
        self, tenant_id: str, incoming: Incoming, create: CreateRun, *, owner: str | None = None
    ) -> Accepted:
        """Takes a signal in and queues its run; `owner` claims the run in the same commit."""
        digest = content_hash(incoming.payload)
        case = Case.new(tenant_id, self._new_id(), self._new_id())
        decision = decide(
            case,
            ReceiveSignal(
                signal_type=incoming.signal_type,
                source_channel=incoming.source_channel,
                source_id=incoming.source_id,
                source_hash=digest,
                normalized_payload=incoming.payload,
                received_at=incoming.received_at,
                ingested_by=incoming.ingested_by,
            ),
            create,
            context=self._context("gateway"),
            lease=None if owner is None else Lease(owner=owner, attempts=1),
        )
        try:
            await submit(self._store, decision)
        except DuplicateKey:
            run_id = await self._first(tenant_id, incoming, digest, create)
            return Accepted(run_id=run_id, case=None)
        if owner is None:
            self._bell.ring(case.run.stream_id)
        return Accepted(run_id=case.run.stream_id, case=decision.case)

    async def _first(self, tenant_id: str, incoming: Incoming, digest: str, create: CreateRun) -> str:
        """The run of the signal that came before; other content under its id is a conflict."""
        signal = await self._store.find_signal(tenant_id, incoming.source_channel, incoming.source_id)
        if signal is None:
            raise SignalConflict(f"The key {create.key!r} belongs to a run of another handler")
        streams = await self._store.correlation(tenant_id, signal.correlation_id)
        if signal.source_hash != digest:
            await self._report_conflict(tenant_id, signal.id, digest)
            raise SignalConflict(
                f"{incoming.source_channel} {incoming.source_id} came before with other content: "
                f"signal {signal.id} stands"
            )
        return next(stream.head.stream_id for stream in streams if stream.head.kind == "RUN")

    async def _report_conflict(self, tenant_id: str, signal_id: str, digest: str) -> None:
        for _ in range(10):
            stream = await self._store.load(tenant_id, signal_id)
            assert stream is not None, "it was found a moment ago, and nothing is deleted"
            case = Case.new(tenant_id, signal_id, self._new_id())
            case = msgspec.structs.replace(case, signal=stream.fold(), signal_fence=stream.head.fence)
            decision = decide(case, ReportConflict(source_hash=digest), context=self._context("gateway"))
            try:
                await submit(self._store, decision)
            except StaleSequence:
                continue
            return

    async def control(
        self,
        tenant_id: str,
        run_id: str,
        kind: ControlKind,
        *,
        sender: str,
        target: str | None = None,
        data: OptionalJson = UNSET,
        reason: str = "",
        control_signal_id: str | None = None,
    ) -> None:
        """Approve, pause, resume, cancel, retry a step, answer a wait; `ControlRefused` says why not."""
        run = await self._store.get_run(tenant_id, run_id)
        if run is None:
            raise NotFound(f"There is no run {run_id}")
        self._check_limits(run_id, target, data, reason)
        signal_id = control_signal_id or self._new_id()
        objection = await self._authorization.objection(sender, kind, run)
        if objection is not None:
            await self._refuse(run, signal_id, kind, sender, target, "NOT_AUTHORIZED", objection)
        if kind == "ANSWER" and (problem := await self._misfit(run, target, data)) is not None:
            await self._refuse(run, signal_id, kind, sender, target, "INVALID_ANSWER", problem)
        command = Control(
            control_signal_id=signal_id, kind=kind, sender=sender, target=target, data=data, reason=reason
        )
        decision = await carry_out(self._store, tenant_id, run_id, command, context=self._context(sender))
        self._bell.ring(run_id)
        events = decision.commit.events or await self._history(tenant_id, run_id)
        for event in events:
            if event.event_type == "SIGNAL_REJECTED" and event.control_signal_id == signal_id:
                error = msgspec.json.decode(event.event_data)["error"]["message"]
                raise ControlRefused(f"{kind} was refused: {error}")

    async def _history(self, tenant_id: str, run_id: str) -> Sequence[Event]:
        """Where the answer stands to a control signal that came before: sent again, it is the same."""
        stream = await self._store.load(tenant_id, run_id)
        return stream.events if stream else ()

    def _check_limits(self, run_id: str, target: str | None, data: OptionalJson, reason: str) -> None:
        """Too large or too many: answered, not recorded, or it would be a way to fill the log (§ENG-27)."""
        size = len((target or "").encode()) + len(reason.encode())
        if size + (memoryview(data).nbytes if isinstance(data, Raw) else 0) > MAX_CONTROL_BYTES:
            raise ControlRefused(f"A control signal holds at most {MAX_CONTROL_BYTES} bytes")
        now = self._clock.now()
        recent = self._recent.setdefault(run_id, deque())
        while recent and (now - recent[0]).total_seconds() >= 60:
            recent.popleft()
        if len(recent) >= MAX_CONTROLS_A_MINUTE:
            raise ControlRefused(f"A run takes at most {MAX_CONTROLS_A_MINUTE} control signals a minute")
        recent.append(now)
        if len(self._recent) > 10_000:
            self._recent.pop(next(iter(self._recent)))

    async def _misfit(self, run: Run, target: str | None, data: OptionalJson) -> str | None:
        """Why an answer cannot be what its wait waits for (§ENG-22)."""
        stream = await self._store.load(run.tenant_id, run.id)
        schema = answer_schema(stream, target or "") if stream else None
        if schema is None:
            return None
        return misfit(msgspec.json.decode(data) if isinstance(data, Raw) else None, schema)

    async def _refuse(
        self,
        run: Run,
        signal_id: str,
        kind: ControlKind,
        sender: str,
        target: str | None,
        code: str,
        objection: str,
    ) -> None:
        error = ErrorInfo(category="VALIDATION", code=code, message=objection)
        command = RefuseControl(
            control_signal_id=signal_id, kind=kind, sender=sender, target=target, error=error
        )
        await carry_out(self._store, run.tenant_id, run.id, command, context=self._context(sender))
        raise ControlRefused(f"{kind} was refused: {objection}")

    def _context(self, actor: str) -> Context:
        return Context(now=self._clock.now(), new_id=self._new_id, actor=actor)
