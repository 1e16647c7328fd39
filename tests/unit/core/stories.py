"""Stories that together hold every type of event: what is true of any history is tried on all of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from runstone.core import commands, payloads
from runstone.core.effect import effect_wait
from runstone.core.payloads import ArtifactRef, OutputResult
from tests.unit.core.build import HASH, LARGE, OTHER_HASH, Story, answer, control, decided, error, raw


def completed() -> Story:
    """The usual: steps, a tool, an effect that goes out, the end."""
    story = Story.running()
    story.step("classify", {"kind": "order"}, arguments=raw({"text": "buy"}))
    story.open_step("lookup", "TOOL_SEQUENCE")
    call = story.new_id()
    story.do(
        commands.CallTool(step_key="lookup", tool_name="find", tool_args=raw({"q": 1}), tool_call_id=call)
    )
    story.do(commands.CompleteTool(tool_call_id=call, result=raw({"hits": 3}), duration_ms=12))
    story.do(commands.CompleteStep(step_key="lookup", output=OutputResult(tool_results=(raw({"hits": 3}),))))
    effect = story.effect()
    story.returned({"ok": True})
    story.sent(effect)
    return story


def retried() -> Story:
    """A step that fails, is tried again by policy and then by a person, and one that is skipped."""
    story = Story.running()
    story.failed_step("flaky")
    story.do(commands.RetryStep(step_key="flaky", retry_at=story.now + timedelta(seconds=5)))
    story.parked_step("flaky")
    story.do(control("RETRY_STEP", 901, target="flaky"))
    artifact = ArtifactRef(uri="file:///report.pdf", kind="report", size_bytes=7)
    story.do(
        commands.StartStep(step_key="flaky", step_type="DECISION"),
        commands.CompleteStep(step_key="flaky", output=decided(1), artifacts=(artifact,)),
        commands.StartStep(step_key="extra", step_type="DECISION"),
        commands.SkipStep(step_key="extra", reason="not needed"),
    )
    story.returned()
    return story


def waited() -> Story:
    """Answers before and after their waits, a sleep, a deadline that passes."""
    story = Story.running()
    story.do(answer("color", "red", 901))
    story.wait("color", "wait:1")
    story.wait("size", "wait:2", deadline=story.now + timedelta(hours=1))
    story.do(commands.SuspendRun(wake_at=story.now + timedelta(hours=1), waiting=("wait:2",)))
    story.do(answer("size", "XL", 902))
    story.wait(None, "sleep", deadline=story.now + timedelta(seconds=1))
    story.do(commands.FailStep(step_key="sleep", error=error("DEADLINE", category="TIMEOUT")))
    story.returned()
    return story


def approved() -> Story:
    """Approval, a pause, a resumption, and two control signals that are refused."""
    story = Story.queued(approval_required=True)
    story.do(control("APPROVE", 901))
    story.do(commands.StartRun())
    story.do(control("PAUSE", 902, reason="LUNCH"))
    story.do(control("PAUSE", 903))
    story.do(control("RESUME", 904))
    refused = commands.RefuseControl(
        control_signal_id=story.new_id(), kind="CANCEL", sender="eve", error=error("FORBIDDEN")
    )
    story.do(refused)
    story.returned()
    return story


def cancelled() -> Story:
    """Everything that can be under way is, when the run is cancelled."""
    story = Story.running()
    story.effect("pending")
    executing = story.effect("executing", spec={"to": "eve"})
    story.do(commands.BeginEffect(effect_id=executing, executor="smtp", fence=4))
    story.not_sent(story.effect("failed", spec={"to": "joe"}), retryable=True)
    story.open_step("call", "TOOL_SEQUENCE")
    story.do(commands.CallTool(step_key="call", tool_name="slow", tool_args=raw({})))
    story.wait("never", "wait")
    story.do(control("CANCEL", 901, reason="CHANGED_MIND"))
    story.sent(executing)
    return story


def cancelled_before_start() -> Story:
    story = Story.queued()
    story.do(commands.CancelRun(exit_reason="NOT_NEEDED"))
    return story


def failed() -> Story:
    """The handler raises while a tool fails; its effect goes out all the same."""
    story = Story.running()
    effect = story.effect()
    story.open_step("call", "TOOL_SEQUENCE")
    call = story.new_id()
    story.do(commands.CallTool(step_key="call", tool_name="bad", tool_args=raw({}), tool_call_id=call))
    story.do(commands.FailTool(tool_call_id=call, error=error("TOOL_BROKE"), duration_ms=3))
    story.do(commands.FailRun(error=error("HANDLER_RAISED")))
    story.sent(effect)
    return story


def dead_letters() -> Story:
    """A critical dead letter fails the run; afterwards one is requeued and one discarded."""
    story = Story.running()
    first = story.effect("first", max_retries=1)
    second = story.effect("second", spec={"to": "joe"}, critical=False)
    story.returned()
    story.not_sent(first, retryable=True)
    story.not_sent(first, retryable=True)
    story.not_sent(second)
    story.do(commands.RequeueEffect(effect_id=first, reason="fixed"))
    story.sent(first)
    story.do(commands.DiscardEffect(effect_id=second))
    return story


def compensated() -> Story:
    """A run that fails takes back what it did, one after the other; one of them cannot be sent."""
    story = Story.running()
    first = story.effect("first", spec={"to": "hotel"}, compensation=True)
    second = story.effect("second", spec={"to": "airline"}, compensation=True, delivery="at_most_once")
    story.do(commands.FailRun(error=error("NO_SEATS")))
    story.not_sent(second)
    story.sent(first)
    return story


def waited_for_effects() -> Story:
    """Waits that outcomes end: one before it begins, one after, one by an error."""
    story = Story.running()
    done, late, bad = (story.effect(name, spec={"to": name}) for name in ("done", "late", "bad"))
    story.sent(done)
    for name, effect in (("done", done), ("late", late), ("bad", bad)):
        story.wait(effect_wait(effect), f"wait:{name}")
    story.do(commands.SuspendRun(waiting=("wait:late", "wait:bad")))
    story.sent(late)
    story.not_sent(bad)
    story.do(commands.FailRun(error=error("GAVE_UP")))
    return story


def unknown_outcomes() -> Story:
    """Effects that may or may not have been sent, found out by a person; a stale executor reports late."""
    story = Story.running()
    once = [story.effect(key, spec={"to": key}, delivery="at_most_once") for key in ("a", "b")]
    for effect in once:
        story.do(commands.BeginEffect(effect_id=effect, executor="smtp"))
        story.do(commands.LoseEffect(effect_id=effect, executor="smtp"))
    story.returned()
    story.do(commands.ReconcileEffect(effect_id=once[0], sent=True, evidence="in the outbox"))
    story.do(commands.ReconcileEffect(effect_id=once[1], sent=False))
    story.sent(once[1])
    story.do(commands.ReportLateOutcome(effect_id=once[0], executor="smtp", result=raw("sent")))
    return story


def continued() -> Story:
    """Two generations with the same step keys; a checkpoint and a variable on the way."""
    story = Story.running()
    story.step("page", {"cursor": 1})
    story.do(commands.SetVariable(name="seen", value=raw(10)))
    story.do(commands.CreateCheckpoint(checkpoint_id=story.new_id()))
    story.do(commands.ContinueRun(carry=raw({"cursor": 1})))
    story.step("page", {"cursor": 2})
    story.returned()
    return story


def corrected() -> Story:
    """An output that was wrong twice, put right during the run and after it."""
    story = Story.running()
    step = story.step("total", 41)
    story.do(commands.CorrectStep(step_id=step, output=decided(42), reason="off by one"), actor="ada")
    story.returned()
    story.do(commands.CorrectStep(step_id=step, output=decided(LARGE), reason="in full"), actor="ada")
    return story


def large() -> Story:
    """Payloads over 2 KB, everywhere one can stand."""
    story = Story.running(LARGE, metadata=raw(LARGE))
    story.open_step("think", "TOOL_SEQUENCE", arguments=raw(LARGE), metadata=raw(LARGE))
    call = story.new_id()
    story.do(
        commands.CallTool(
            step_key="think",
            tool_name="read",
            tool_args=raw(LARGE),
            tool_call_id=call,
            metadata=raw(LARGE),
        )
    )
    story.do(commands.CompleteTool(tool_call_id=call, result=raw(LARGE), duration_ms=1))
    story.do(commands.CompleteStep(step_key="think", output=OutputResult(tool_results=(raw(LARGE),))))
    effect = story.effect(spec=LARGE, metadata=raw(LARGE))
    story.sent(effect, LARGE)
    story.returned(LARGE)
    return story


def conflicting() -> Story:
    story = Story.queued()
    story.do(commands.ReportConflict(source_hash=OTHER_HASH))
    return story


def pipeline() -> Story:
    """A run in a folder: states, artifacts, work items, issues."""
    story = Story.running()
    story.record(
        payloads.RunStateChanged(to_state="CREATED"),
        payloads.RunStateChanged(from_state="CREATED", to_state="DRAFTING"),
        payloads.InvalidStateTransition(from_state="DRAFTING", to_state="DONE"),
        payloads.SectionStateChanged(section="intro", state="WRITTEN"),
        payloads.ArtifactWritten(name="facts", path="facts.json", sha256=HASH, writer_worker="reader"),
        payloads.WorkItemStarted(item="intro", worker="writer", inputs={"facts": HASH}),
        payloads.ArtifactWritten(
            name="draft", path="draft.md", sha256=HASH, writer_worker="writer", item="intro"
        ),
        payloads.WorkItemCompleted(item="intro", outputs=("draft",)),
        payloads.ArtifactInvalidated(name="draft", because="facts", reason="facts changed"),
        payloads.ArtifactRevalidated(name="draft"),
        payloads.CommitRecorded(sha="c" * 40, repository="docs", branch="main", item="intro"),
        payloads.WorkItemStarted(item="intro", worker="writer", forced=True, inputs={"facts": HASH}),
        payloads.WorkItemFailed(item="intro", error=error("WRITER_DIED")),
        payloads.IssueOpened(issue="1", code="BrokenLink", severity="WARNING", message="404"),
        payloads.IssueResolved(issue="1", resolution="removed"),
        payloads.ResumeRewind(from_state="DRAFTING", to_state="PLAN_READY"),
    )
    return story


STORIES: Final[dict[str, Callable[[], Story]]] = {
    tell.__name__: tell
    for tell in (
        completed,
        retried,
        waited,
        approved,
        cancelled,
        cancelled_before_start,
        failed,
        dead_letters,
        compensated,
        waited_for_effects,
        unknown_outcomes,
        continued,
        corrected,
        large,
        conflicting,
        pipeline,
    )
}
