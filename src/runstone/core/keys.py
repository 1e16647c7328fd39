"""Idempotency keys: who would be doing the same thing again (§IDM-1 to §IDM-4).

Fields go into the hash behind their length, for `a|b` with `c` and `a` with `b|c` are not the
same thing.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Raw


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


def run_request_key(
    tenant_id: str, project: str, environment: str, plan_id: str, plan_version: str, run_request_id: str
) -> str:
    """One request to start one run."""
    return digest(tenant_id, project, environment, plan_id, plan_version, run_request_id)


def tool_cache_key(tenant_id: str, tool_name: str, arguments: Raw | bytes) -> str:
    """Where a tool's result is remembered, for one tenant."""
    return f"tool:{tenant_id}:{tool_name}:{content_hash(arguments)}"


def content_hash(content: Raw | bytes) -> str:
    """The SHA-256 of some bytes."""
    return sha256(content).hexdigest()


def digest(*fields: str) -> str:
    """SHA-256 over length-prefixed fields."""
    parts: list[bytes] = []
    for field in fields:
        encoded = field.encode()
        parts.append(len(encoded).to_bytes(4, "big"))
        parts.append(encoded)
    return sha256(b"".join(parts)).hexdigest()
