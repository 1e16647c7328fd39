"""What random histories are written with: chance, time, ids, and values that are hard on a store."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from msgspec import UNSET, Raw, UnsetType

from runstone.core import codec
from runstone.core.ids import NewId
from runstone.core.payloads import ArtifactRef, ErrorInfo, OutputResult, StepType
from runstone.ports.clock import Clock
from runstone.testing.hostile import PAYLOADS, TEXTS

_T = TypeVar("_T")


class Chance(Protocol):
    """Where choices come from."""

    def below(self, bound: int) -> int:
        """A number from 0 up to, not including, `bound`; 0 is the simplest choice."""
        ...


class Pen:
    """Makes the values of a history, each by a choice."""

    def __init__(self, chance: Chance, clock: Clock, new_id: NewId) -> None:
        self.chance = chance
        self.clock = clock
        self.new_id = new_id

    def pick(self, choices: tuple[_T, ...]) -> _T:
        return choices[self.chance.below(len(choices))]

    def text(self) -> str:
        return self.pick(TEXTS)

    def payload(self) -> Raw:
        return self.pick(PAYLOADS)

    def maybe_payload(self) -> Raw | UnsetType:
        return self.payload() if self.chance.below(4) == 3 else UNSET

    def later(self) -> datetime:
        return self.clock.now() + timedelta(microseconds=self.pick((0, 1, 999_999, 3_600_000_000)))

    def error(self) -> ErrorInfo:
        return ErrorInfo(
            category=self.pick(("APPLICATION", "EXTERNAL", "TIMEOUT")),
            code="E1",
            message=self.text(),
            retryable=self.chance.below(3) > 0,
        )

    def artifacts(self) -> tuple[ArtifactRef, ...]:
        if self.chance.below(4) < 3:
            return ()
        full = ArtifactRef(
            uri=f"file:///{self.text()}",
            kind="report",
            sha256="a" * 64,
            size_bytes=0,
            expires_at=self.later(),
        )
        return (ArtifactRef(uri="s3://bucket/key", kind="log"), full)

    def output(self, step_type: StepType) -> OutputResult:
        match step_type:
            case "DECISION" | "CHECKPOINT":
                return OutputResult(decision=self.payload(), next_step_hint=self.text())
            case "SPECIALIST_CALL":
                return OutputResult(specialist_reasoning=self.payload())
            case "TOOL_SEQUENCE":
                return OutputResult(tool_results=(self.payload(), self.payload()))
            case "EFFECT_REQUEST":
                return OutputResult(effect_spec=self.payload())
            case "WAIT":
                return OutputResult(answer=codec.NULL)
