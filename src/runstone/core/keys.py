"""Idempotency keys: who would be doing the same thing again (§IDM-1 to §IDM-4).

Fields go into the hash behind their length, for `a|b` with `c` and `a` with `b|c` are not the
same thing.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final
from uuid import UUID

from msgspec import Raw

from runstone.core.ids import is_id


def event_key(
    stream_id: str,
    event_type: str,
    *,
    step_key: str | None = None,
    logical_attempt: int | None = None,
    plan_version: str = "",
    occurrence: str = "",
) -> str:
    """One event of one attempt; `occurrence` tells the second pause from the first."""
    attempt = "" if logical_attempt is None else str(logical_attempt)
    return digest(stream_id, step_key or "", attempt, event_type, plan_version, occurrence)


def effect_key(
    tenant_id: str, run_id: str, step_key: str, ordinal: int, effect_type: str, spec: Raw | bytes
) -> str:
    """The default key of an effect, unique in its tenant."""
    return digest(tenant_id, run_id, step_key, str(ordinal), effect_type, content_hash(spec))


def step_call_key(tenant_id: str, run_id: str, step_key: str) -> str:
    """What a step does outside, whichever attempt at it: for others to know a repetition by."""
    return digest(tenant_id, run_id, step_key)


def run_request_key(
    tenant_id: str, project: str, environment: str, plan_id: str, plan_version: str, run_request_id: str
) -> str:
    """One request to start one run."""
    return digest(tenant_id, project, environment, plan_id, plan_version, run_request_id)


def control_signal_id(run_id: str, given: str) -> str:
    """The id of a control signal to a run, from what its sender calls it; an id is its own."""
    return given if is_id(given) else str(UUID(hex=digest(run_id, given)[:32], version=4))


def entity_stream(tenant_id: str, entity_type: str, entity_id: str) -> str:
    """The id of an entity's stream: whoever is the first to write to the entity finds the same (§ENT-28)."""
    return str(UUID(hex=digest("entity", tenant_id, entity_type, entity_id)[:32], version=4))


def schedule_stream(tenant_id: str, name: str, generation: int = 0) -> str:
    """The id of a schedule's stream, from its name and how often what had that was archived (§ENT-32)."""
    fields = ("schedule", tenant_id, name, str(generation)) if generation else ("schedule", tenant_id, name)
    return str(UUID(hex=digest(*fields)[:32], version=4))


def tool_cache_key(tenant_id: str, tool_name: str, arguments: Raw | bytes) -> str:
    """Where a tool's result is remembered, for one tenant."""
    return f"tool:{tenant_id}:{tool_name}:{content_hash(arguments)}"


def content_hash(content: Raw | bytes) -> str:
    """The SHA-256 of some bytes."""
    return sha256(content).hexdigest()


def digest(*fields: str) -> str:
    """SHA-256 over length-prefixed fields."""
    prefixed = [_remembered(field) if len(field) <= _SHORT else _prefixed(field) for field in fields]
    return sha256(b"".join(prefixed)).hexdigest()


def _prefixed(field: str) -> bytes:
    encoded = field.encode()
    return len(encoded).to_bytes(4, "big") + encoded


_SHORT: Final = 64
"""How long a field may be to be remembered: others may come from anybody, and be of any size."""
_remembered: Final = lru_cache(maxsize=4096)(_prefixed)
"""Most fields come again and again: names of types and versions, ids of streams."""
