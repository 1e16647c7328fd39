"""The page about a run, folded from its log: above all what it says there is to do."""

from __future__ import annotations

import shlex

import msgspec
import pytest
from msgspec import Raw

from runstone.cli.overview import Overview, overview
from runstone.core import codec, commands
from runstone.core.commands import Command
from runstone.core.commit import Context
from runstone.core.decide import Case, decide
from runstone.core.events import Event
from runstone.core.ids import DEFAULT_TENANT
from runstone.core.payloads import ErrorInfo, OutputResult, WaitSpec
from runstone.testing.clock import SeededIds, VirtualClock

ERROR = ErrorInfo(category="EXTERNAL", code="E1", message="it is down")
SIGNAL = commands.ReceiveSignal(
    signal_type="API_CALL",
    source_channel="app.start",
    source_id="one",
    source_hash="a" * 64,
    normalized_payload=Raw(b"{}"),
    received_at=VirtualClock().now(),
)
STARTED = (SIGNAL, commands.CreateRun(plan_id="handler"), commands.StartRun())
STEP = commands.StartStep(step_key="charge#1", step_type="TOOL_SEQUENCE")
DONE = OutputResult(tool_results=(Raw(b"null"),))
ASKED = commands.RequestEffect(
    step_key="charge#1",
    effect_type="HTTP_REQUEST",
    spec={"method": "POST", "url": "https://example.org"},
    max_retries=0,
    critical=False,
    effect_id="00000000-0000-7000-8000-00000000000e",
)


class Told:
    """A run, and what has happened to it."""

    def __init__(self, *story: Command, tenant_id: str = DEFAULT_TENANT) -> None:
        self.clock = VirtualClock()
        self.new_id = SeededIds(7, self.clock)
        self.case = Case.new(tenant_id, self.new_id(), self.new_id())
        self.events: list[Event] = []
        for command in story:
            self.clock.advance(1)
            context = Context(now=self.clock.now(), new_id=self.new_id, actor="engine")
            decision = decide(self.case, command, context=context)
            self.events += decision.commit.events
            self.case = decision.case

    def page(self) -> Overview:
        run_id = self.case.run.stream_id
        events = [event for event in self.events if event.stream_id == run_id]
        return overview(self.case.run, events, self.case.signal.signal)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("NON_DETERMINISTIC", "put the code right"),
        ("QUARANTINED", "what keeps failing the worker"),
        ("LUNCH", "lets it go on"),
    ],
)
def test_a_pause_says_what_to_do(reason: str, words: str) -> None:
    details = codec.canonical({"attempts": 5})
    told = Told(*STARTED, commands.PauseRun(reason=reason, details=details))
    page = told.page()
    assert page.paused is not None
    assert (page.paused.reason, page.paused.details, page.paused.by) == (reason, details, "engine")
    (advice,) = page.to_do
    assert words in advice
    assert f"`runstone control resume {page.id}`" in advice


def test_a_step_that_failed_while_its_run_was_paused_can_be_tried_again() -> None:
    paused = commands.PauseRun(reason="OPERATOR")
    page = Told(*STARTED, STEP, paused, commands.FailStep(step_key="charge#1", error=ERROR)).page()
    assert page.retryable_steps == ("charge#1",)
    assert f"`runstone control retry {page.id} 'charge#1'`" in page.to_do[0]


def test_a_run_that_has_ended_has_nothing_to_retry_and_says_where_it_failed() -> None:
    failed = commands.FailStep(step_key="charge#1", error=ERROR)
    page = Told(*STARTED, STEP, failed, commands.FailRun(error=ERROR)).page()
    assert (page.status, page.retryable_steps, page.paused, page.to_do) == ("FAILED", (), None, ())
    assert page.error is not None
    assert (page.error.code, page.error.step) == ("E1", "charge#1")
    assert page.duration_ms == 3000


def test_a_step_that_was_tried_again_did_not_fail_the_run() -> None:
    story = (
        commands.FailStep(step_key="charge#1", error=ERROR),
        commands.RetryStep(step_key="charge#1", retry_at=VirtualClock().now()),
        commands.StartStep(step_key="charge#1", step_type="TOOL_SEQUENCE"),
        commands.CompleteStep(step_key="charge#1", output=DONE),
    )
    page = Told(*STARTED, STEP, *story, commands.FailRun(error=ERROR)).page()
    assert page.error is not None
    assert (page.error.code, page.error.step) == ("E1", None)


def test_an_effect_that_failed_the_run_leads_to_its_step() -> None:
    """Whatever happened last: here another effect came through."""
    critical = msgspec.structs.replace(ASKED, critical=True)
    later = commands.StartStep(step_key="note#1", step_type="TOOL_SEQUENCE")
    other = msgspec.structs.replace(
        ASKED, step_key="note#1", effect_id="00000000-0000-7000-8000-00000000000f"
    )
    story: list[Command] = [STEP, critical, later, other]
    story += [commands.CompleteStep(step_key=key, output=DONE) for key in ("charge#1", "note#1")]
    story.append(commands.ReturnHandler(result=Raw(b"null")))
    begun = commands.BeginEffect(effect_id=ASKED.effect_id or "", executor="x")
    story += [
        begun,
        commands.FailEffect(
            effect_id=begun.effect_id, executor="x", error=ERROR, next_retry_at=VirtualClock().now()
        ),
    ]
    begun = commands.BeginEffect(effect_id=other.effect_id or "", executor="x")
    story += [begun, commands.CompleteEffect(effect_id=begun.effect_id, executor="x", result=Raw(b"null"))]
    page = Told(*STARTED, *story).page()
    assert page.error is not None
    assert (page.error.code, page.error.step) == ("EFFECT_DEAD_LETTERED", "charge#1")


def test_a_run_that_waits_for_approval_says_so() -> None:
    page = Told(SIGNAL, commands.CreateRun(plan_id="handler", approval_required=True)).page()
    assert page.approval_required
    assert page.to_do == (f"it waits for approval: `runstone control approve {page.id}`",)


def test_a_name_that_a_shell_would_obey_is_quoted() -> None:
    name = "reply; rm -rf $HOME"
    ask = commands.StartStep(step_key="ask#1", step_type="WAIT", wait=WaitSpec(name=name))
    nap = commands.StartStep(step_key="sleep#1", step_type="WAIT", wait=WaitSpec())
    page = Told(*STARTED, ask, nap).page()
    assert [(wait.name, wait.takes_answer) for wait in page.waits] == [(name, True), (None, False)]
    (advice,) = page.to_do
    command = advice.partition("`")[2].removesuffix("`")
    assert shlex.split(command) == ["runstone", "control", "answer", page.id, name, "JSON"]


def test_effects_that_need_somebody_are_told_of() -> None:
    begun = commands.BeginEffect(effect_id=ASKED.effect_id or "", executor="x")
    lost = commands.LoseEffect(effect_id=begun.effect_id, executor="x")
    once = msgspec.structs.replace(ASKED, delivery="at_most_once")
    page = Told(*STARTED, STEP, once, begun, lost).page()
    assert [(one.status, one.tries, one.step) for one in page.effects] == [("UNKNOWN", 1, "charge#1")]
    assert f"`runstone effects reconcile {begun.effect_id} --sent`" in page.to_do[0]

    failed = commands.FailEffect(
        effect_id=begun.effect_id, executor="x", error=ERROR, next_retry_at=VirtualClock().now()
    )
    page = Told(*STARTED, STEP, ASKED, begun, failed).page()
    (effect,) = page.effects
    assert (effect.status, effect.error and effect.error.code) == ("DEAD_LETTER", "E1")
    assert f"`runstone outbox requeue {effect.id}`" in page.to_do[0]


OTHER_TENANT = "11111111-1111-4111-8111-111111111111"


@pytest.mark.parametrize(
    "story",
    [
        (SIGNAL, commands.CreateRun(plan_id="handler", approval_required=True)),
        (*STARTED, commands.PauseRun(reason="LUNCH")),
        (*STARTED, commands.PauseRun(reason="QUARANTINED")),
        (*STARTED, commands.PauseRun(reason="NON_DETERMINISTIC")),
        (
            *STARTED,
            STEP,
            commands.PauseRun(reason="PARKED"),
            commands.FailStep(step_key="charge#1", error=ERROR),
        ),
        (*STARTED, commands.StartStep(step_key="a#1", step_type="WAIT", wait=WaitSpec(name="a"))),
        (
            *STARTED,
            STEP,
            msgspec.structs.replace(ASKED, delivery="at_most_once"),
            commands.BeginEffect(effect_id=ASKED.effect_id or "", executor="x"),
            commands.LoseEffect(effect_id=ASKED.effect_id or "", executor="x"),
        ),
        (
            *STARTED,
            STEP,
            ASKED,
            commands.BeginEffect(effect_id=ASKED.effect_id or "", executor="x"),
            commands.FailEffect(
                effect_id=ASKED.effect_id or "", executor="x", error=ERROR, next_retry_at=VirtualClock().now()
            ),
        ),
    ],
    ids=["approve", "resume", "quarantined", "changed", "parked", "answer", "unknown", "dead letter"],
)
def test_commands_name_a_tenant_that_is_not_the_default_one(story: tuple[Command, ...]) -> None:
    whose = f" --tenant {OTHER_TENANT}"
    (own,), (other,) = Told(*story).page().to_do, Told(*story, tenant_id=OTHER_TENANT).page().to_do
    assert "--tenant" not in own
    assert other.replace(whose, "") == own
    assert other.count(whose) == other.count("`runstone ")
