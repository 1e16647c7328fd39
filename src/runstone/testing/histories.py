"""Legal random histories of a case, as the decisions that make them.

A history is determined by a tape of numbers, so that hypothesis can shrink what went wrong, or
by a seeded `Random`. It needs no store: each decision carries the commit to submit and the case
as it is then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from msgspec import Raw

from runstone.core import codec, commands, payloads
from runstone.core.commands import Command
from runstone.core.commit import Context
from runstone.core.decide import Case, Decision, decide
from runstone.core.decide.case import CaseWriter
from runstone.core.ids import NewId
from runstone.core.payloads import OutputResult, Payload, WaitSpec
from runstone.core.pipeline import PipelineState
from runstone.core.state import RunState
from runstone.core.transitions import RUN
from runstone.testing.clock import VirtualClock
from runstone.testing.moves import moves
from runstone.testing.pen import Pen

_TICKS: Final = (0.001, 0.0, 0.000_001, 1.0, 3600.0, -0.5)
"""Seconds between decisions; clocks may go back."""


class Tape:
    """Choices read from numbers; zeros when it has run out."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = iter(numbers)

    def below(self, bound: int) -> int:
        return next(self._numbers, 0) % bound


class Dice:
    """Choices by a seeded generator."""

    def __init__(self, random: Random) -> None:
        self.below = random.randrange


def legal_history(
    source: Sequence[int] | Random,
    *,
    tenant_id: str,
    clock: VirtualClock,
    new_id: NewId,
    length: int = 40,
    pipeline: bool = False,
) -> Iterator[Decision]:
    """Up to `length` decisions on one new case; it stops before that some way after the run has ended.

    With `pipeline`, the events of a run that lives in a folder stand among the others.
    """
    chance = Dice(source) if isinstance(source, Random) else Tape(source)
    pen = Pen(chance, clock, new_id)
    case = Case.new(tenant_id, new_id(), new_id())
    for _ in range(length):
        if _has_ended(case) and pen.chance.below(5) == 0:
            return
        clock.advance(pen.pick(_TICKS))
        decision = _next_decision(case, pen, pipeline)
        yield decision
        case = decision.case


def _has_ended(case: Case) -> bool:
    return case.run.run is not None and case.run.run.status in RUN.terminal


def _next_decision(case: Case, pen: Pen, pipeline: bool) -> Decision:
    context = _context(pen)
    if pipeline and case.run.run and not _has_ended(case) and pen.chance.below(3) == 2:
        return _record(case, context, pen.pick(_pipeline_payloads(case.run, pen)))
    return _several(case, context, pen, 1 + pen.pick((0, 0, 0, 1, 2)))


def _several(case: Case, context: Context, pen: Pen, count: int) -> Decision:
    """Moves that are each chosen after the one before, decided together as one commit."""
    chosen: list[Command] = []
    after = case
    for _ in range(count):
        chosen.append(_choose(after, pen))
        decision = decide(case, *chosen, context=context)
        after = decision.case
    return decision


def _choose(case: Case, pen: Pen) -> Command:
    offered = moves(case, pen)
    pick = pen.chance.below(sum(weight for weight, _ in offered))
    for weight, make in offered:
        if pick < weight:
            return make()
        pick -= weight
    raise AssertionError("the pick is below the sum of all weights")


def _context(pen: Pen) -> Context:
    return Context(
        now=pen.clock.now(),
        new_id=pen.new_id,
        actor=pen.text(),
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        span_id="00f067aa0ba902b7",
        adapter_version=pen.pick((None, "2.0.0")),
        engine_attempt=pen.pick((None, 1, 2)),
        engine_run_ref=pen.pick((None, {"workflow": "größe", "shard": 1.5})),
    )


def _record(case: Case, context: Context, payload: Payload) -> Decision:
    """Pipelines write without commands: their graph is declared, not folded."""
    writer = CaseWriter(case, context)
    writer.run.record(payload)
    commit = writer.commit()
    return Decision(case=writer.freeze(), commit=commit)


def _pipeline_payloads(state: RunState, pen: Pen) -> tuple[Payload, ...]:
    pipeline = state.pipeline or PipelineState()
    here = pipeline.run_state
    found: list[Payload] = [
        payloads.RunStateChanged(from_state=here, to_state=pen.pick(("DRAFTING", "größe"))),
        payloads.SectionStateChanged(section=pen.text(), state="DONE"),
        payloads.ArtifactWritten(
            name="draft",
            path="out/draft.md",
            sha256="b" * 64,
            writer_worker="w1",
            item="chapter" if "chapter" in pipeline.work_items else None,
        ),
        payloads.WorkItemStarted(item="chapter", worker="w1", inputs=pen.pick(({}, {"plan": "c" * 64}))),
        payloads.CommitRecorded(sha="d" * 40, branch=pen.text()),
        payloads.IssueOpened(issue="i1", code="SnapshotInvalid", message=pen.text()),
    ]
    if here is not None:
        found.append(payloads.ResumeRewind(from_state=here, to_state="DRAFTING"))
        found.append(payloads.InvalidStateTransition(from_state=here, to_state="nowhere"))
    if "draft" in pipeline.artifacts:
        found.append(payloads.ArtifactInvalidated(name="draft", because="plan", reason=pen.text()))
        found.append(payloads.ArtifactRevalidated(name="draft"))
    if "chapter" in pipeline.work_items:
        found.append(payloads.WorkItemCompleted(item="chapter", outputs=("draft",)))
        found.append(payloads.WorkItemFailed(item="chapter", error=pen.error()))
    if "i1" in pipeline.issues:
        found.append(payloads.IssueResolved(issue="i1", resolution=pen.text()))
    return tuple(found)


def five_step_history(*, tenant_id: str, clock: VirtualClock, new_id: NewId) -> list[Decision]:
    """The usual run: five steps of different types, one effect, an answered wait, all well.

    Every commit is one that an engine would make, a second after the one before.
    """
    case = Case.new(tenant_id, new_id(), new_id())
    history: list[Decision] = []
    for wanted in _five_steps(clock, new_id):
        clock.advance(1)
        context = Context(now=clock.now(), new_id=new_id, actor="engine")
        history.append(decide(case, *wanted, context=context))
        case = history[-1].case
    return history


def _five_steps(clock: VirtualClock, new_id: NewId) -> Iterator[tuple[Command, ...]]:
    call_id, effect_id = new_id(), new_id()
    yield (
        commands.ReceiveSignal(
            signal_type="EMAIL",
            source_channel="inbox",
            source_id=new_id(),
            source_hash="0" * 64,
            normalized_payload=codec.canonical({"subject": "five steps"}),
            received_at=clock.now(),
        ),
        commands.CreateRun(plan_id="handler", orchestrator_version="1.0"),
    )
    yield (commands.StartRun(),)
    yield from _one_step("decide", "DECISION", OutputResult(decision=codec.canonical({"go": True})))
    yield from _one_step(
        "ask", "SPECIALIST_CALL", OutputResult(specialist_reasoning=codec.canonical("because"))
    )
    yield (
        commands.StartStep(step_key="look", step_type="TOOL_SEQUENCE"),
        commands.CallTool(
            step_key="look", tool_name="search", tool_args=codec.canonical({"q": 1}), tool_call_id=call_id
        ),
    )
    yield (
        commands.CompleteTool(tool_call_id=call_id, result=codec.canonical([1]), duration_ms=3),
        commands.CompleteStep(step_key="look", output=OutputResult(tool_results=(codec.canonical([1]),))),
    )
    yield (
        commands.StartStep(step_key="send", step_type="EFFECT_REQUEST"),
        commands.RequestEffect(
            step_key="send", effect_type="SEND_EMAIL", spec={"to": ["a@example.org"]}, effect_id=effect_id
        ),
        commands.CompleteStep(
            step_key="send", output=OutputResult(effect_spec=codec.canonical({"to": ["a@example.org"]}))
        ),
    )
    yield (
        commands.StartStep(step_key="confirm", step_type="WAIT", wait=WaitSpec(name="confirmed")),
        commands.SuspendRun(waiting=("confirm",)),
    )
    yield (
        commands.Control(
            control_signal_id=new_id(), kind="ANSWER", sender="ada", target="confirmed", data=Raw(b"true")
        ),
    )
    yield (commands.ReturnHandler(result=codec.canonical("done")),)
    yield (commands.CompleteEffect(effect_id=effect_id, executor="dispatcher", result=Raw(b'{"id":7}')),)


def _one_step(key: str, step_type: payloads.StepType, output: OutputResult) -> Iterator[tuple[Command, ...]]:
    yield (commands.StartStep(step_key=key, step_type=step_type),)
    yield (commands.CompleteStep(step_key=key, output=output),)
