"""Calls as the dispatcher would make them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runstone.core.effect_specs import EffectSpec
from runstone.ports.executor import EffectCall, Executor, Failed, Succeeded

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = "6f1c0b" * 10


def call_of(
    spec: EffectSpec, *, key: str = KEY, seconds: float = 30, attempt: int = 1, tenant: str = "t"
) -> EffectCall:
    """One call; the spec is checked first, as it is when a handler asks for it."""
    spec.checked()
    return EffectCall(
        effect_id="0195-effect",
        tenant_id=tenant,
        run_id="0195-run",
        effect_type=spec.EFFECT_TYPE,
        spec=spec,
        key=key,
        attempt=attempt,
        timeout=timedelta(seconds=seconds),
        correlation_id="0195-correlation",
        requested_at=NOON,
    )


async def done(executor: Executor, call: EffectCall) -> Succeeded:
    outcome = await executor.execute(call)
    assert isinstance(outcome, Succeeded), outcome
    return outcome


async def not_done(executor: Executor, call: EffectCall) -> Failed:
    outcome = await executor.execute(call)
    assert isinstance(outcome, Failed), outcome
    return outcome
