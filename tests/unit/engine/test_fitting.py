"""What a pen still has to write after others wrote to the run."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.commands import Command
from runstone.core.commit import Context, Lease
from runstone.core.decide import Case, decide
from runstone.core.payloads import ErrorInfo, OutputResult, WaitSpec
from runstone.core.state import RunState
from runstone.engine.fitting import Wanted, fitting
from runstone.testing.clock import SeededIds, VirtualClock

NOW = datetime(2024, 2, 29, tzinfo=UTC)
ERROR = ErrorInfo(category="APPLICATION", code="E", message="m")
DONE = OutputResult(decision=Raw(b"1"))
CLOCK = VirtualClock()
IDS = SeededIds(1, CLOCK)

CREATED: tuple[Command, ...] = (
    commands.ReceiveSignal(
        signal_type="API_CALL",
        source_channel="c",
        source_id="s",
        source_hash="0" * 64,
        normalized_payload=Raw(b"{}"),
        received_at=NOW,
    ),
    commands.CreateRun(plan_id="handler"),
)


def start(key: str = "a#1", wait: WaitSpec | None = None) -> commands.StartStep:
    return commands.StartStep(step_key=key, step_type="WAIT" if wait else "DECISION", wait=wait)


def complete(key: str = "a#1") -> commands.CompleteStep:
    return commands.CompleteStep(step_key=key, output=DONE)


def fail(key: str = "a#1") -> commands.FailStep:
    return commands.FailStep(step_key=key, error=ERROR)


def retry(key: str = "a#1") -> commands.RetryStep:
    return commands.RetryStep(step_key=key)


def control(kind: str, **more: str) -> commands.Control:
    return msgspec.convert(
        {"control_signal_id": IDS(), "kind": kind, "sender": "ada", **more}, type=commands.Control
    )


def state(*history: Command, started: bool = True) -> RunState:
    case = Case.new(IDS(), IDS(), IDS())
    begun = (commands.StartRun(),) if started else ()
    context = Context(now=NOW, new_id=IDS, actor="test")
    return decide(case, *CREATED, *begun, *history, context=context).case.run


def kept(run: RunState, *wanted: Command) -> list[Command]:
    return [one.command for one in fitting([Wanted(command, NOW) for command in wanted], run)]


@pytest.mark.parametrize(
    "wanted",
    [
        [start(), complete()],
        [start(), fail(), retry(), start(), complete()],
        [start(), commands.SkipStep(step_key="a#1", reason="r")],
        [start(), commands.SuspendRun(waiting=("a#1",))],
        [start(), fail(), retry(), commands.SuspendRun(waiting=("a#1",))],
        [commands.SetVariable(name="x", value=Raw(b"1")), commands.ReturnHandler(result=Raw(b"1"))],
        [commands.FailRun(error=ERROR)],
        [start(), complete(), commands.ContinueRun(carry=Raw(b"1"))],
        [start(), fail(), commands.PauseRun(reason="PARKED")],
        [
            start(),
            commands.CallTool(step_key="a#1", tool_name="t", tool_args=Raw(b"{}"), tool_call_id="c"),
            commands.CompleteTool(tool_call_id="c", result=Raw(b"1"), duration_ms=1),
            complete(),
        ],
        [start(), commands.RequestEffect(step_key="a#1", effect_type="X", spec={}), complete()],
    ],
)
def test_what_nobody_interfered_with_fits_as_a_whole(wanted: list[Command]) -> None:
    assert kept(state(), *wanted) == wanted


def test_a_run_is_started_once() -> None:
    wanted = [commands.StartRun(), start()]
    assert kept(state(started=False), *wanted) == wanted
    assert kept(state(), *wanted) == [start()]


def test_a_step_that_has_ended_does_not_end_again() -> None:
    ended = state(start(), complete())
    assert kept(ended, complete(), fail(), retry(), start()) == []
    assert kept(ended, start("b#1"), complete("b#1")) == [start("b#1"), complete("b#1")]


@pytest.mark.parametrize(
    "end",
    [
        commands.ReturnHandler(result=Raw(b"1")),
        commands.FailRun(error=ERROR),
        commands.ContinueRun(carry=Raw(b"1")),
    ],
    ids=lambda end: type(end).__name__,
)
def test_what_is_under_way_ends_with_its_handler_and_not_again(end: Command) -> None:
    assert kept(state(start()), end, complete(), start("b#1"), end) == [end]
    assert kept(state(), start(), end, fail(), retry()) == [start(), end]


def test_a_step_that_is_given_up_after_it_was_completed_stays_completed() -> None:
    assert kept(state(start()), complete(), fail()) == [complete()]


def test_a_wait_that_was_answered_does_not_time_out() -> None:
    waiting = start(wait=WaitSpec(name="x"))
    answered = state(waiting, control("ANSWER", target="x"))
    assert kept(answered, fail()) == []
    assert kept(answered, commands.SuspendRun(waiting=("a#1",))) == []


def test_a_run_does_not_suspend_on_a_wait_that_finds_its_answer() -> None:
    early = state(control("ANSWER", target="x"))
    suspend = commands.SuspendRun(waiting=("a#1",))
    waiting = start(wait=WaitSpec(name="x"))
    assert kept(early, waiting, suspend) == [waiting]
    second = start("b#1", wait=WaitSpec(name="x"))
    both = commands.SuspendRun(waiting=("b#1",))
    assert kept(early, waiting, second, both) == [waiting, second, both], "one answer ends one wait"


def test_a_paused_run_finishes_what_it_began_and_begins_nothing() -> None:
    paused = state(start(), control("PAUSE"))
    tool = commands.CallTool(step_key="b#1", tool_name="t", tool_args=Raw(b"{}"), tool_call_id="c")
    tool_done = commands.CompleteTool(tool_call_id="c", result=Raw(b"1"), duration_ms=1)
    assert kept(paused, complete(), start("b#1"), tool, tool_done, complete("b#1")) == [complete()]
    assert kept(paused, fail(), retry()) == [fail(), retry()]
    for command in (
        commands.ReturnHandler(result=Raw(b"1")),
        commands.FailRun(error=ERROR),
        commands.PauseRun(reason="NON_DETERMINISTIC"),
        commands.SetVariable(name="x", value=Raw(b"1")),
        commands.SuspendRun(waiting=("a#1",)),
    ):
        assert kept(paused, command) == []


def test_nothing_fits_a_run_that_has_ended() -> None:
    for ended in (
        state(start(), control("CANCEL")),
        state(start(), commands.ReturnHandler(result=Raw(b"1"))),
    ):
        assert kept(ended, complete(), start("b#1"), commands.ReturnHandler(result=Raw(b"1"))) == []


def test_a_step_that_is_due_again_may_start_once_more() -> None:
    due = state(start(), fail(), retry())
    assert kept(due, start(), start(), complete()) == [start(), complete()]
    assert kept(due, commands.SuspendRun(waiting=("a#1",))) == [commands.SuspendRun(waiting=("a#1",))]


def test_a_lease_goes_with_its_command() -> None:
    lease = Lease(owner=None)
    wanted = [Wanted(start(), NOW), Wanted(commands.SuspendRun(waiting=("other#1",)), NOW, lease)]
    assert [one.lease for one in fitting(wanted, state())] == [None]


def test_whatever_fits_can_be_decided() -> None:
    """The point of it: no command that is kept is refused."""
    histories = [
        (),
        (start(),),
        (start(), complete()),
        (start(), fail(), retry()),
        (start(), control("PAUSE")),
        (control("ANSWER", target="x"),),
        (control("CANCEL"),),
    ]
    wanted = [
        start(),
        commands.CallTool(step_key="a#1", tool_name="t", tool_args=Raw(b"{}"), tool_call_id=IDS()),
        complete(),
        fail(),
        retry(),
        start("w#1", WaitSpec(name="x")),
        commands.SetVariable(name="x", value=Raw(b"1")),
        commands.SuspendRun(waiting=("w#1",)),
        commands.ReturnHandler(result=Raw(b"1")),
        commands.FailRun(error=ERROR),
    ]
    for history in histories:
        case = Case.new(IDS(), IDS(), IDS())
        context = Context(now=NOW, new_id=IDS, actor="test")
        case = decide(case, *CREATED, commands.StartRun(), *history, context=context).case
        fits = kept(case.run, *wanted)
        after = decide(case, *fits, context=context).case.run
        assert after.last_seq >= case.run.last_seq
