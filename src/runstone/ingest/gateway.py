"""The gateway: everything that comes in from outside goes through here into the log.

A signal and its run are created in one commit. The same signal again finds the first one; the same
source id with other content is refused and recorded (§IDM-14, §IDM-15). Control signals pass authorization,
land beside a running handler, and ring the bell.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from runstone.core import codec
from runstone.core.catalogue import CATALOGUE
from runstone.core.commands import Control, CreateRun, ReceiveSignal, RefuseControl, ReportConflict
from runstone.core.commit import Context, Lease
from runstone.core.decide import Case, Decision, decide
from runstone.core.events import Event
from runstone.core.ids import NewId
from runstone.core.keys import content_hash
from runstone.core.keys import control_signal_id as known_as
from runstone.core.payloads import (
    NOT_AUTHORIZED,
    ControlKind,
    ErrorInfo,
    OptionalJson,
    SignalAccepted,
    SignalRejected,
    SignalType,
)
from runstone.core.run import Run
from runstone.errors import (
    ControlRefused,
    DuplicateKey,
    NotFound,
    SignalConflict,
    StaleSequence,
    TooManyControls,
)
from runstone.ingest.answers import answer_schema, misfit
from runstone.ports.authorization import Authorization
from runstone.ports.bell import Bell
from runstone.ports.cases import carry_out, submit
from runstone.ports.clock import Clock
from runstone.ports.store import Store

MAX_CONTROL_BYTES: Final = 64 * 1024

_ANSWERED: Final = ("SIGNAL_ACCEPTED", "SIGNAL_REJECTED")


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
        self.refused: Counter[str] = Counter()
        """Control signals that were refused by size or rate: answered and counted, not recorded."""

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
            return await self._archived(tenant_id, incoming, digest, create)
        streams = await self._store.correlation(tenant_id, signal.correlation_id)
        if signal.source_hash != digest:
            await self._report_conflict(tenant_id, signal.id, digest)
            run = await self._store.find_run(tenant_id, create.key) if create.key is not None else None
            raise SignalConflict(
                _other_start(run, create)
                if run is not None
                else f"{incoming.source_channel} {incoming.source_id} came before with other content: "
                f"signal {signal.id} stands"
            )
        runs = [stream.head.stream_id for stream in streams if stream.head.kind == "RUN"]
        return runs[0] if runs else await self._archived(tenant_id, incoming, digest, create)

    async def _archived(self, tenant_id: str, incoming: Incoming, digest: str, create: CreateRun) -> str:
        """The same for a signal of which only a tombstone is left (§STO-52)."""
        source = (incoming.source_channel, incoming.source_id)
        stone = await self._store.find_tombstone(tenant_id, source=source)
        if stone is None:
            if create.key is not None:
                stone = await self._store.find_tombstone(tenant_id, run_key=create.key)
            conflict = SignalConflict(f"The key {create.key!r} belongs to a run of another handler")
            raise conflict if stone is None else stone.error
        if stone.source_hash != digest:
            first = f"{' '.join(source)} came before with other content: signal {stone.stream_id} stands, and"
            if create.key is not None:
                first = f"Key {create.key!r} belongs to a run with another handler or value, which"
            raise SignalConflict(f"{first} was archived in {stone.where}")
        for other in await self._store.tombstones(tenant_id, stone.correlation_id):
            if other.signal_id == stone.stream_id:
                return other.stream_id
        raise stone.error

    async def _report_conflict(self, tenant_id: str, signal_id: str, digest: str) -> None:
        for _ in range(10):
            stream = await self._store.load(tenant_id, signal_id)
            if stream is None:  # it was archived a moment ago, and says no more
                return
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
            stone = await self._store.find_tombstone(tenant_id, stream_id=run_id)
            raise NotFound(f"There is no run {run_id}") if stone is None else stone.error
        _check_texts(target=target, reason=reason, sender=sender, id=control_signal_id)
        self._check_size(target, data, reason)
        signal_id = self._new_id() if control_signal_id is None else known_as(run_id, control_signal_id)
        objection = await self._authorization.objection(sender, kind, run)
        if objection is not None:
            await self._refuse(run, signal_id, kind, sender, target, NOT_AUTHORIZED, objection)
        if control_signal_id is not None and await self._came_before(run, signal_id, kind, target, data):
            return
        if kind == "ANSWER" and (problem := await self._misfit(run, target, data)) is not None:
            await self._refuse(run, signal_id, kind, sender, target, "INVALID_ANSWER", problem)
        command = Control(
            control_signal_id=signal_id, kind=kind, sender=sender, target=target, data=data, reason=reason
        )
        decision = await self._carry_out(run, command)
        self._bell.ring(run_id)
        if not decision.commit.events:  # the same signal was faster on another way
            await self._came_before(run, signal_id, kind, target, data)
        for event in decision.commit.events:
            _raise_if_rejected(event, signal_id, kind)

    async def _came_before(
        self, run: Run, signal_id: str, kind: ControlKind, target: str | None, data: OptionalJson
    ) -> bool:
        """Whether this control signal was answered before: sent again, it gets the same answer (§ENG-25)."""
        stream = await self._store.load(run.tenant_id, run.id)
        for event in stream.events if stream is not None else ():
            if event.event_type in _ANSWERED and event.control_signal_id == signal_id:
                _check_same(event, kind, target, data)
                _raise_if_rejected(event, signal_id, kind)
                return True
        return False

    def _check_size(self, target: str | None, data: OptionalJson, reason: str) -> None:
        """Too large: answered, not recorded (§ENG-27)."""
        size = len((target or "").encode()) + len(reason.encode())
        if size + (memoryview(data).nbytes if isinstance(data, Raw) else 0) > MAX_CONTROL_BYTES:
            self.refused["size"] += 1
            raise ControlRefused(f"A control signal holds at most {MAX_CONTROL_BYTES} bytes")

    async def _carry_out(self, run: Run, command: Control | RefuseControl) -> Decision:
        try:
            return await carry_out(
                self._store, run.tenant_id, run.id, command, context=self._context(command.sender)
            )
        except TooManyControls:
            self.refused["rate"] += 1
            raise

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
        await self._carry_out(run, command)
        raise ControlRefused(f"{kind} was refused: {objection}")

    def _context(self, actor: str) -> Context:
        return Context(now=self._clock.now(), new_id=self._new_id, actor=actor)


def _other_start(run: Run, create: CreateRun) -> str:
    """What is wrong with a start whose key another start has."""
    owner = f"Key {create.key!r} belongs to run {run.id} of {run.plan_id!r}"
    same = run.plan_id == create.plan_id
    return f"{owner}, started with another value" if same else f"{owner}, not of {create.plan_id!r}"


def _check_texts(**texts: str | None) -> None:
    """Refuses what no event could hold, such as a command line's bytes that are no UTF-8."""
    for name, text in texts.items():
        codec.check_text(text or "", f"/{name}")


def _raise_if_rejected(event: Event, signal_id: str, kind: ControlKind) -> None:
    if event.event_type == "SIGNAL_REJECTED" and event.control_signal_id == signal_id:
        error = msgspec.json.decode(event.event_data)["error"]["message"]
        raise ControlRefused(f"{kind} was refused: {error}")


def _check_same(event: Event, kind: ControlKind, target: str | None, data: OptionalJson) -> None:
    """The same id for something else is a mistake of its sender, who has to hear of it."""
    first = CATALOGUE.decode(event)
    assert isinstance(first, SignalAccepted | SignalRejected)
    same = (first.kind, first.target) == (kind, target)
    if same and isinstance(first, SignalAccepted):
        same = bytes(first.data or b"") == bytes(data or b"")
    if not same:
        raise SignalConflict(
            f"Control signal {event.control_signal_id} came before, as {first.kind} of "
            f"{first.target or 'the run'} with other content: the first one stands"
        )
