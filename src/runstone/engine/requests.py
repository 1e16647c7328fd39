"""What a branch asks for: one durable step, and how to carry it out when the log has no outcome yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from runstone.core import codec
from runstone.core.codec import NULL
from runstone.core.commands import Command, CompleteStep, RequestEffect, SkipStep
from runstone.core.payloads import OptionalJson, OutputResult, StepType, WaitSpec
from runstone.engine.functions import CallOptions, checked_text

Begun: TypeAlias = Callable[[], None]
"""Told when the work itself begins: what waits for a thread has not begun, and uses up no timeout."""

Perform: TypeAlias = Callable[[Begun | None], Awaitable[Raw]]
"""Does the work of a step; what it returns is recorded."""

Recall: TypeAlias = Callable[[], Raw | None]
"""What the same work gave not long ago, if that still holds."""


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One durable step."""

    key: str
    step_type: StepType
    arguments: OptionalJson = UNSET
    wait: WaitSpec | None = None
    overdue: str = ""
    """What is said of a wait that its deadline ends; not compared on replay."""
    specialist_id: str | None = None
    tool_name: str | None = None
    perform: Perform | None = None
    """Nothing to perform: the outcome is known when it is asked for, or comes from outside."""
    recall: Recall | None = None
    output: OutputResult | None = None
    skip_reason: str | None = None
    effect: RequestEffect | None = None
    options: CallOptions = CallOptions()

    def __post_init__(self) -> None:
        if self.skip_reason is not None:
            checked_text("reason", self.skip_reason)
        if self.effect is not None and self.effect.effect_key is not None:
            checked_text("key", self.effect.effect_key)

    def known_outcome(self) -> tuple[Command, ...]:
        """What a step records that needs no work."""
        if self.skip_reason is not None:
            return (SkipStep(step_key=self.key, reason=self.skip_reason),)
        assert self.output is not None, "asked only of steps whose outcome is known"
        done = CompleteStep(step_key=self.key, output=self.output)
        return (done,) if self.effect is None else (self.effect, done)


def output_of(step_type: StepType, value: Raw) -> OutputResult:
    """A value under the key of its step's type."""
    match step_type:
        case "SPECIALIST_CALL":
            return OutputResult(specialist_reasoning=value)
        case "TOOL_SEQUENCE":
            return OutputResult(tool_results=(value,))
        case "DECISION":
            return OutputResult(decision=value)
        case _:
            return OutputResult(answer=value)


_read_output: Final = codec.reader(OutputResult)


def value_of(step_type: StepType, output: Raw) -> Raw:
    """The value back."""
    result = _read_output(output)
    match step_type:
        case "SPECIALIST_CALL":
            value = result.specialist_reasoning
        case "TOOL_SEQUENCE":
            value = result.tool_results[-1]
        case "DECISION":
            value = result.decision
        case _:
            value = result.answer
    return NULL if isinstance(value, UnsetType) else value
