"""Takes the events of tool calls in."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw
from msgspec.structs import replace

from runstone.core import codec, transitions
from runstone.core.events import Event
from runstone.core.fold.streams import Reducer, RunFold
from runstone.core.payloads import steps
from runstone.core.toolcall import ToolCall
from runstone.errors import CommandRefused, StateTransitionError


def called(fold: RunFold, event: Event, data: steps.ToolCalled) -> None:
    step = fold.steps.get(data.step_id)
    if step is None or step.status != "RUNNING":
        raise CommandRefused(f"Tool {data.tool_name!r} was called outside of a running step")
    if event.aggregate_id in fold.tool_calls:
        known = fold.tool_calls[event.aggregate_id]
        raise StateTransitionError("tool call", known.id, known.status, "PENDING")
    fold.tool_calls[event.aggregate_id] = ToolCall(
        id=event.aggregate_id,
        tenant_id=fold.tenant_id,
        run_id=fold.stream_id,
        step_id=data.step_id,
        tool_name=data.tool_name,
        tool_args=fold.keep(event, "tool_args", data.tool_args),
        called_at=event.occurred_at,
        completed_at=None,
        status="PENDING",
        result=None,
        error_details=None,
        execution_duration_ms=None,
        cache_hit=False,
        correlation_id=event.correlation_id,
        metadata=fold.keep_any(event, "metadata", data.metadata),
    )


def _ended(fold: RunFold, event: Event, status: str, **changes: Any) -> None:
    call = fold.tool_calls.get(event.aggregate_id)
    if call is None:
        raise StateTransitionError("tool call", event.aggregate_id, None, status)
    transitions.TOOL_CALL.check(call.id, call.status, status)
    fold.tool_calls[call.id] = replace(call, status=status, completed_at=event.occurred_at, **changes)


def completed(fold: RunFold, event: Event, data: steps.ToolCompleted) -> None:
    _ended(
        fold,
        event,
        "COMPLETED",
        result=fold.keep(event, "result", data.result),
        execution_duration_ms=data.duration_ms,
        cache_hit=data.cache_hit,
    )


def failed(fold: RunFold, event: Event, data: steps.ToolFailed) -> None:
    _ended(
        fold,
        event,
        "FAILED",
        error_details=Raw(codec.encode(data.error)),
        execution_duration_ms=data.duration_ms,
    )


REDUCERS: Final[dict[str, Reducer]] = {
    "TOOL_CALLED": called,
    "TOOL_COMPLETED": completed,
    "TOOL_FAILED": failed,
}
