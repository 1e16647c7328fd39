"""What the tests of the core are told with: a clock and ids that are the same every time, and a story.

A story is one case, the commands that were given to it and the events they made. Nothing here
sleeps, reads a clock or draws a random number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw

from runstone.core import codec, commands
from runstone.core.commands import Command
from runstone.core.commit import Context, Lease, StreamWriter
from runstone.core.decide import Case, CaseWriter, Decision, carry_out, decide
from runstone.core.effect import Effect
from runstone.core.events import Event, EventDraft
from runstone.core.fold import RunFold, run_fold
from runstone.core.ids import DEFAULT_TENANT, uuid7
from runstone.core.payloads import (
    ControlKind,
    ErrorCategory,
    ErrorInfo,
    OutputResult,
    Payload,
    StepType,
    WaitSpec,
)
from runstone.core.run import Run
from runstone.core.signal import Signal
from runstone.core.state import RunState, StreamState
from runstone.core.step import Step
from runstone.core.stream import Stream, StreamHead
from runstone.core.toolcall import ToolCall

TENANT: Final = DEFAULT_TENANT
NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
HASH: Final = "a" * 64
OTHER_HASH: Final = "b" * 64
LARGE: Final = {"text": "x" * 3000}
"""Over 2 KB once it is JSON."""


def an_id(number: int) -> str:
    """The same id for the same number; those of a story are low."""
    return uuid7(1_772_366_400_000 + number, number.to_bytes(10, "big"))


def raw(value: object) -> Raw:
    return codec.canonical(value)


def plain(payload: Raw | None) -> Any:
    """A stored payload as a value."""
    assert payload is not None
    return msgspec.json.decode(payload)


def data(event: EventDraft) -> Any:
    """What stands in an event's `event_data`."""
    return plain(event.event_data)


def handed_over(state: StreamState, events: Sequence[Event]) -> Stream:
    """A stream as a store would hand it over."""
    assert state.last_at is not None
    head = StreamHead(
        stream_id=state.stream_id,
        tenant_id=state.tenant_id,
        kind=state.KIND,
        last_seq=state.last_seq,
        head=state.head,
        last_at=state.last_at,
        fence=0,
    )
    return Stream(head=head, events=tuple(events))


def error(
    code: str = "BOOM", *, retryable: bool = False, category: ErrorCategory = "APPLICATION"
) -> ErrorInfo:
    return ErrorInfo(category=category, code=code, message=f"It went {code}", retryable=retryable)


def decided(value: object) -> OutputResult:
    return OutputResult(decision=raw(value))


def receive(payload: object = None, **given: Any) -> commands.ReceiveSignal:
    fields: dict[str, Any] = {
        "signal_type": "API_CALL",
        "source_channel": "http",
        "source_id": "order-1",
        "source_hash": HASH,
        "normalized_payload": raw({"order": 1} if payload is None else payload),
        "received_at": NOON,
    }
    return commands.ReceiveSignal(**fields | given)


def control(kind: ControlKind, number: int = 900, **given: Any) -> commands.Control:
    return commands.Control(control_signal_id=an_id(number), kind=kind, sender="ada", **given)


def answer(name: str, value: object, number: int = 900) -> commands.Control:
    return control("ANSWER", number, target=name, data=raw(value))


def parked(key: str) -> commands.PauseRun:
    """What the engine writes with the failure of a step that parks its run."""
    return commands.PauseRun(reason="PARKED", details=raw({"step": key}))


def types(decision: Decision) -> list[str]:
    """The types of the events a decision made, in the order of the feed."""
    return [event.event_type for event in decision.commit.events]


class Ids:
    """Ids in a fixed order."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self) -> str:
        self.given += 1
        return an_id(self.given)


class Story:
    """A case to which commands are given, a second apart."""

    def __init__(self) -> None:
        self.new_id = Ids()
        self.now = NOON
        self.signal_id, self.run_id = self.new_id(), self.new_id()
        self.beginning = Case.new(TENANT, self.signal_id, self.run_id)
        self.case = self.beginning
        self.signal_events: list[Event] = []
        self.run_events: list[Event] = []
        self.decisions: list[Decision] = []
        self._kept: tuple[CaseWriter | None, Case] = (None, self.beginning)

    @classmethod
    def received(cls, payload: object = None) -> Story:
        story = cls()
        story.do(receive(payload))
        return story

    @classmethod
    def queued(cls, payload: object = None, **create: Any) -> Story:
        story = cls()
        story.do(receive(payload), commands.CreateRun(**{"plan_id": "orders", **create}))
        return story

    @classmethod
    def running(cls, payload: object = None, **create: Any) -> Story:
        story = cls.queued(payload, **create)
        story.do(commands.StartRun())
        return story

    def context(self, **given: Any) -> Context:
        return Context(**{"now": self.now, "new_id": self.new_id, "actor": "tester", **given})

    def do(
        self, *wanted: Command, lease: Lease | None = None, times: Sequence[datetime] = (), **context: Any
    ) -> Decision:
        """One commit; a refused one leaves the story as it was."""
        self.now += SECOND
        ids: list[str] = []
        given = self.context(**context)

        def noted() -> str:
            ids.append(given.new_id())
            return ids[-1]

        decision = decide(
            self.case, *wanted, context=msgspec.structs.replace(given, new_id=noted), lease=lease, times=times
        )
        self._check_kept(
            decision, wanted, lease, times, msgspec.structs.replace(given, new_id=iter(ids).__next__)
        )
        for write in decision.commit.writes:
            (self.signal_events if write.kind == "SIGNAL" else self.run_events).extend(write.events)
        self.case = decision.case
        self.decisions.append(decision)
        return decision

    def _check_kept(
        self,
        decision: Decision,
        wanted: Sequence[Command],
        lease: Lease | None,
        times: Sequence[datetime],
        context: Context,
    ) -> None:
        """A case that is kept under one's hands makes the same commits as one that is frozen each time."""
        kept, known = self._kept
        if kept is not None and known is self.case:
            kept.begin(context)
            carry_out(kept, wanted, times)
            assert kept.commit(lease) == decision.commit
        else:
            kept = CaseWriter(decision.case, context) if decision.case.signal.signal else None
        self._kept = (kept, decision.case)

    def record(self, *payloads: Payload) -> list[Event]:
        """Events of the run that no command makes: those of a pipeline."""
        self.now += SECOND
        writer = StreamWriter[RunFold](run_fold(self.state), self.context(), self.run.correlation_id)
        made = [writer.record(payload) for payload in payloads]
        self.run_events += made
        self.case = msgspec.structs.replace(self.case, run=writer.fold.freeze())
        return made

    def forge(self, payload: Payload, aggregate_id: str | None = None, **given: Any) -> Event:
        """The event that would come next in its stream if somebody wrote it past `decide`."""
        stream = self.case.signal if payload.AGGREGATE == "SIGNAL" else self.case.run
        return Event(
            **{
                "id": self.new_id(),
                "tenant_id": stream.tenant_id,
                "stream_id": stream.stream_id,
                "event_type": payload.EVENT_TYPE,
                "event_version": payload.VERSION,
                "aggregate_type": payload.AGGREGATE,
                "aggregate_id": aggregate_id or stream.stream_id,
                "event_data": Raw(codec.encode(payload)),
                "idempotency_key": HASH,
                "correlation_id": an_id(0),
                "actor": "forger",
                "occurred_at": self.now,
                "trace_id": "0" * 32,
                "span_id": "0" * 16,
                "run_seq": stream.last_seq + 1,
                "prev_hash": stream.head,
                **given,
            }
        )

    # What happens often

    def open_step(self, key: str = "work", step_type: StepType = "DECISION", **start: Any) -> str:
        self.do(commands.StartStep(step_key=key, step_type=step_type, **start))
        return self.state.open_steps[key]

    def step(self, key: str = "work", value: object = "done", **start: Any) -> str:
        """A step that begins and ends well, in two commits."""
        step_id = self.open_step(key, **start)
        self.do(commands.CompleteStep(step_key=key, output=decided(value)))
        return step_id

    def failed_step(self, key: str = "work", **start: Any) -> str:
        step_id = self.open_step(key, **start)
        self.do(commands.FailStep(step_key=key, error=error()))
        return step_id

    def parked_step(self, key: str = "work") -> str:
        """A step that fails and pauses its run, in one commit."""
        step_id = self.open_step(key)
        self.do(commands.FailStep(step_key=key, error=error()), parked(key))
        return step_id

    def wait(self, name: str | None, key: str = "wait", deadline: datetime | None = None) -> str:
        spec = WaitSpec(name=name, deadline=deadline)
        self.do(commands.StartStep(step_key=key, step_type="WAIT", wait=spec))
        return self.state.latest_steps[key]

    def effect(self, key: str = "mail", **request: Any) -> str:
        """An effect, asked for by a step that then ends."""
        effect_id = self.new_id()
        given = {"effect_type": "SEND_EMAIL", "spec": {"to": "bob"}, "effect_id": effect_id, **request}
        self.do(
            commands.StartStep(step_key=key, step_type="EFFECT_REQUEST"),
            commands.RequestEffect(step_key=key, **given),
            commands.CompleteStep(step_key=key, output=OutputResult(effect_spec=raw(given["spec"]))),
        )
        return effect_id

    def returned(self, result: object = "ok") -> Decision:
        return self.do(commands.ReturnHandler(result=raw(result)))

    def sent(self, effect_id: str, result: object = "sent") -> Decision:
        return self.do(commands.CompleteEffect(effect_id=effect_id, executor="smtp", result=raw(result)))

    def not_sent(self, effect_id: str, *, retryable: bool = False) -> Decision:
        """A failure of the effect: without a retry it becomes a dead letter."""
        return self.do(
            commands.FailEffect(
                effect_id=effect_id,
                executor="smtp",
                error=error("SMTP_550", retryable=retryable, category="EXTERNAL"),
                next_retry_at=self.now + timedelta(minutes=1),
            )
        )

    # What it came to

    @property
    def events(self) -> list[Event]:
        return self.signal_events + self.run_events

    @property
    def state(self) -> RunState:
        return self.case.run

    @property
    def run(self) -> Run:
        assert self.case.run.run is not None
        return self.case.run.run

    @property
    def status(self) -> str:
        """The run's."""
        return self.run.status

    @property
    def signal(self) -> Signal:
        assert self.case.signal.signal is not None
        return self.case.signal.signal

    @property
    def last(self) -> Event:
        """The run's latest event."""
        return self.run_events[-1]

    def latest(self, key: str = "work") -> Step:
        """The latest attempt at a step."""
        return self.state.steps[self.state.latest_steps[key]]

    def effect_row(self, effect_id: str) -> Effect:
        return self.state.effects[effect_id]

    def tool_call(self, tool_call_id: str) -> ToolCall:
        return self.state.tool_calls[tool_call_id]

    def of_type(self, event_type: str) -> list[Event]:
        return [event for event in self.events if event.event_type == event_type]


def writer_on(story: Story, **context: Any) -> StreamWriter[RunFold]:
    """A writer on the run's stream as the story left it."""
    return StreamWriter[RunFold](run_fold(story.state), story.context(**context), story.run.correlation_id)
