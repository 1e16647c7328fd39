"""What is written and folded: histories, decided beforehand, as an engine would make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runstone.core import codec
from runstone.core.commands import (
    CallTool,
    Command,
    CompleteEffect,
    CompleteStep,
    CompleteTool,
    CreateRun,
    ReceiveSignal,
    RequestEffect,
    ReturnHandler,
    SetVariable,
    StartRun,
    StartStep,
)
from runstone.core.commit import Commit, Context
from runstone.core.decide import Case, Decision, decide
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import OutputResult
from runstone.ports.clock import SystemClock, new_id

_clock = SystemClock()


def context() -> Context:
    return Context(now=_clock.now(), new_id=new_id, actor="engine")


def decisions(groups: Iterable[tuple[Command, ...]]) -> Iterator[Decision]:
    """One decision, and so one commit, for each group of commands on one new case."""
    case = Case.new(DEFAULT_TENANT, new_id(), new_id())
    for wanted in groups:
        decision = decide(case, *wanted, context=context())
        yield decision
        case = decision.case


def five_step_run() -> list[Commit]:
    """The eight commits of a run with five steps: received, started, five steps, returned."""
    return [decision.commit for decision in decisions(_five_steps())]


def _five_steps() -> Iterator[tuple[Command, ...]]:
    yield _received()
    yield (StartRun(),)
    for number in range(5):
        yield specialist_step(f"ask#{number}", number)
    yield (ReturnHandler(result=codec.canonical("done")),)


def _received() -> tuple[Command, ...]:
    return (
        ReceiveSignal(
            signal_type="API_CALL",
            source_channel="api",
            source_id=new_id(),
            source_hash="a" * 64,
            normalized_payload=codec.canonical({"question": 1}),
            received_at=_clock.now(),
        ),
        CreateRun(plan_id="benchmark", plan_version="1", orchestrator_version="1.0"),
    )


def specialist_step(key: str, number: int) -> tuple[Command, ...]:
    """A step from its start to its end: two events, one commit."""
    answer = codec.canonical({"value": number, "text": "what a specialist has to say about it"})
    return (
        StartStep(step_key=key, step_type="SPECIALIST_CALL", arguments=codec.canonical([number])),
        CompleteStep(step_key=key, output=OutputResult(specialist_reasoning=answer)),
    )


ROUND_EVENTS = 12
"""Events of one round of a mixed run."""


def mixed_run(events: int, rounds_at_once: int = 200) -> Iterator[Decision]:
    """A run of at least so many events that is still going on, many rounds to a commit.

    A round asks a specialist, calls a tool, has an effect carried out and sets a variable.
    """
    return decisions(_mixed(-(-events // ROUND_EVENTS), rounds_at_once))


def _mixed(rounds: int, at_once: int) -> Iterator[tuple[Command, ...]]:
    yield _received()
    yield (StartRun(),)
    for first in range(0, rounds, at_once):
        numbers = range(first, min(first + at_once, rounds))
        yield tuple(command for number in numbers for command in _mixed_round(number))


def _mixed_round(number: int) -> Iterator[Command]:
    call_id, effect_id = new_id(), new_id()
    look, send = f"look#{number}", f"send#{number}"
    letter = {"to": ["ada@example.org"], "subject": f"number {number}", "text": "all is well"}
    found = codec.canonical({"hits": [number, number + 1], "more": False})
    yield from specialist_step(f"ask#{number}", number)
    yield StartStep(step_key=look, step_type="TOOL_SEQUENCE", arguments=codec.canonical([number]))
    yield CallTool(
        step_key=look, tool_name="search", tool_args=codec.canonical({"q": number}), tool_call_id=call_id
    )
    yield CompleteTool(tool_call_id=call_id, result=found, duration_ms=3)
    yield CompleteStep(step_key=look, output=OutputResult(tool_results=(found,)))
    yield SetVariable(name=f"v{number % 100}", value=codec.canonical(number))
    yield StartStep(step_key=send, step_type="EFFECT_REQUEST")
    yield RequestEffect(step_key=send, effect_type="SEND_EMAIL", spec=letter, effect_id=effect_id)
    yield CompleteStep(step_key=send, output=OutputResult(effect_spec=codec.canonical(letter)))
    yield CompleteEffect(effect_id=effect_id, executor="dispatcher", result=codec.canonical({"id": number}))
