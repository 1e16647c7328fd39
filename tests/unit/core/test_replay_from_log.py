"""Everything a run got and gave can be shown from its events alone (§ENG-1, §ENT-18).

The reader here knows no state and no fold: only events, and that `{"$event": id, "field": name}`
means a field of another event's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from runstone.core import commands
from runstone.core.events import Event
from runstone.core.payloads import EntityRef, OutputResult
from runstone.core.rows import all_rows
from tests.unit.core.build import LARGE, Story, answer, data, decided, error, plain, raw
from tests.unit.core.stories import STORIES

SMALL: dict[str, Any] = {"text": "short"}
both_sizes = pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "over 2 KB"])


class Log:
    """Events by id, and what their fields hold, as bytes."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = {event.id: event for event in events}

    def field(self, event_id: str, name: str) -> Raw:
        fields: dict[str, Raw] = msgspec.json.decode(self.events[event_id].event_data, type=dict[str, Raw])
        return fields[name]

    def resolve(self, reference: dict[str, str]) -> Any:
        return plain(self.field(reference["$event"], reference["field"]))

    def input_of(self, started: Event) -> dict[str, Any]:
        """A step's input with every reference replaced by what it leads to."""
        context = data(started)["input_context"]
        for name in ("signal_data", "prior_step_output"):
            if name in context:
                context[name] = self.resolve(context[name])
        return dict(context)

    def of(self, event_type: str) -> list[Event]:
        return [event for event in self.events.values() if event.event_type == event_type]


def log_of(story: Story) -> Log:
    return Log(story.events)


@both_sizes
def test_what_a_step_received(payload: dict[str, Any]) -> None:
    story = Story.running(payload)
    story.step("first", payload)
    story.step(
        "second",
        "done",
        arguments=raw({"asked": payload}),
        sor_entities=(EntityRef(entity_id="o-1", entity_type="order"),),
        specialist_context=raw({"memory": payload}),
    )
    log = log_of(story)
    first, second = log.of("STEP_STARTED")
    assert log.input_of(first) == {"signal_data": payload}
    assert log.input_of(second) == {
        "signal_data": payload,
        "prior_step_output": {"decision": payload},
        "arguments": {"asked": payload},
        "sor_entities": [{"entity_id": "o-1", "entity_type": "order"}],
        "specialist_context": {"memory": payload},
    }


@both_sizes
def test_what_a_step_produced(payload: dict[str, Any]) -> None:
    story = Story.running()
    story.step("think", payload)
    assert [data(event)["output_result"] for event in log_of(story).of("STEP_COMPLETED")] == [
        {"decision": payload}
    ]


@both_sizes
def test_every_tool_its_arguments_and_its_result(payload: dict[str, Any]) -> None:
    story = Story.running()
    story.open_step("tools", "TOOL_SEQUENCE")
    call = story.new_id()
    story.do(
        commands.CallTool(step_key="tools", tool_name="t", tool_args=raw({"in": payload}), tool_call_id=call)
    )
    story.do(commands.CompleteTool(tool_call_id=call, result=raw({"out": payload}), duration_ms=1))
    log = log_of(story)
    assert [data(event)["tool_args"] for event in log.of("TOOL_CALLED")] == [{"in": payload}]
    assert [data(event)["result"] for event in log.of("TOOL_COMPLETED")] == [{"out": payload}]


@both_sizes
def test_every_effect_asked_for_and_what_came_of_it(payload: dict[str, Any]) -> None:
    story = Story.running()
    effect = story.effect(spec=payload, effect_key="k")
    story.sent(effect, {"answer": payload})
    log = log_of(story)
    assert [data(event)["effect_spec"] for event in log.of("EFFECT_REQUESTED")] == [
        {**payload, "idempotency_key": "k"}
    ]
    assert [data(event)["execution_result"] for event in log.of("EFFECT_COMPLETED")] == [{"answer": payload}]


@both_sizes
def test_answers_variables_carry_and_result(payload: dict[str, Any]) -> None:
    story = Story.running()
    story.wait("color")
    story.do(answer("color", payload))
    story.do(commands.SetVariable(name="v", value=raw(payload)))
    story.do(commands.ContinueRun(carry=raw(payload)))
    story.returned(payload)
    log = log_of(story)
    assert data(log.of("SIGNAL_ACCEPTED")[0])["data"] == payload
    assert data(log.of("STEP_COMPLETED")[0])["output_result"] == {"answer": payload}
    assert data(log.of("RUN_VARIABLE_SET")[0])["value"] == payload
    assert data(log.of("RUN_CONTINUED")[0])["carry"] == payload
    assert data(log.of("RUN_HANDLER_RETURNED")[0])["result"] == payload


@both_sizes
def test_both_versions_of_a_corrected_output(payload: dict[str, Any]) -> None:
    """§EVT-10"""
    story = Story.running()
    step = story.step("total", payload)
    story.do(commands.CorrectStep(step_id=step, output=decided([payload]), reason="wrong"))
    (corrected,) = log_of(story).of("STEP_CORRECTED")
    assert data(corrected)["original_output"] == {"decision": payload}
    assert data(corrected)["corrected_output"] == {"decision": [payload]}


def test_every_error_on_the_way() -> None:
    """§ENG-32"""
    story = Story.running()
    story.failed_step("broken")
    story.not_sent(story.effect())
    story.do(commands.FailRun(error=error("HANDLER_RAISED")))
    log = log_of(story)
    found = {
        event.event_type: data(event)["error"]["code"]
        for event in log.events.values()
        if "error" in data(event)
    }
    assert found == {
        "STEP_FAILED": "BOOM",
        "EFFECT_FAILED": "SMTP_550",
        "EFFECT_DEAD_LETTERED": "SMTP_550",
        "RUN_FAILED": "HANDLER_RAISED",
    }


def test_the_users_bytes_are_not_touched() -> None:
    """§PAY-15: what somebody stored comes back as it was written, in events and in rows."""
    odd = Raw(b'{"z":1e2,"a":-0,"n":1.0,"e":"\\u00e9"}')
    story = Story.running()
    story.open_step("work", arguments=odd)
    story.do(commands.CompleteStep(step_key="work", output=OutputResult(decision=odd)))
    log = log_of(story)
    started, completed = log.of("STEP_STARTED")[0], log.of("STEP_COMPLETED")[0]
    assert bytes(odd) in bytes(started.event_data)
    assert bytes(log.field(completed.id, "output_result")) == b'{"decision":' + bytes(odd) + b"}"
    assert story.latest().output_result == log.field(completed.id, "output_result")


def payloads_of(row: Any) -> dict[str, Raw]:
    return {name: value for name, value in msgspec.structs.asdict(row).items() if isinstance(value, Raw)}


@pytest.mark.parametrize("tell", STORIES.values(), ids=STORIES)
def test_every_reference_in_a_row_leads_to_its_bytes(tell: Callable[[], Story]) -> None:
    """§PAY-16, §PAY-17: event, field, size and hash are right, and nothing over 2 KB stands in a row."""
    story = tell()
    log = log_of(story)
    for row in (*all_rows(story.case.signal), *all_rows(story.state)):
        for payload in payloads_of(row).values():
            assert len(bytes(payload)) <= 2048
            value = plain(payload)
            if not (isinstance(value, dict) and "$event" in value):
                continue
            content = bytes(log.field(value["$event"], value["field"]))
            assert len(content) == value["size"] > 2048
            assert sha256(content).hexdigest() == value["sha256"]


def test_a_large_payload_stands_behind_a_reference_wherever_it_can() -> None:
    """The story `large` has one in every place: none was forgotten above."""
    story = STORIES["large"]()
    referring = {
        (type(row).__name__, name)
        for row in (*all_rows(story.case.signal), *all_rows(story.state))
        for name, payload in payloads_of(row).items()
        if bytes(payload).startswith(b'{"$event":')
    }
    assert referring == {
        ("Signal", "normalized_payload"),
        ("Run", "metadata"),
        ("Run", "result"),
        ("Step", "input_context"),
        ("Step", "output_result"),
        ("Step", "metadata"),
        ("ToolCall", "tool_args"),
        ("ToolCall", "result"),
        ("ToolCall", "metadata"),
        ("Effect", "effect_spec"),
        ("Effect", "execution_result"),
        ("Effect", "metadata"),
        ("OutboxEntry", "payload"),
        ("OutboxEntry", "result"),
    }
