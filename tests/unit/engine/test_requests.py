"""Steps as a branch asks for them."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from runstone.core.commands import CompleteStep, RequestEffect, SkipStep
from runstone.core.payloads import OutputResult, StepType
from runstone.engine.requests import StepRequest, output_of, value_of


@pytest.mark.parametrize(
    ("step_type", "field"),
    [
        ("SPECIALIST_CALL", "specialist_reasoning"),
        ("TOOL_SEQUENCE", "tool_results"),
        ("DECISION", "decision"),
        ("WAIT", "answer"),
    ],
)
@pytest.mark.parametrize("value", [b"null", b"1", b'{"a":[1,2]}'])
def test_a_value_stands_under_the_key_of_its_type(step_type: StepType, field: str, value: bytes) -> None:
    encoded = Raw(msgspec.json.encode(output_of(step_type, Raw(value))))
    assert list(msgspec.json.decode(encoded)) == [field]
    assert bytes(value_of(step_type, encoded)) == value


def test_known_outcomes() -> None:
    output = OutputResult(decision=Raw(b"1"))
    done = CompleteStep(step_key="a#1", output=output)
    effect = RequestEffect(step_key="a#1", effect_type="X", spec={})
    assert StepRequest(key="a#1", step_type="DECISION", output=output).known_outcome() == (done,)
    assert StepRequest(
        key="a#1", step_type="EFFECT_REQUEST", output=output, effect=effect
    ).known_outcome() == (effect, done)
    assert StepRequest(
        key="a#1", step_type="DECISION", output=OutputResult(), skip_reason="why"
    ).known_outcome() == (SkipStep(step_key="a#1", reason="why"),)
