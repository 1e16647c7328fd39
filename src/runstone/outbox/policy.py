"""How one effect is tried: as it asks for itself, as its type says, or by the table (§OUT-21).

What an effect asks for itself stands in its metadata:
`{"retry": {"base_ms": …, "cap_ms": …}, "timeout_ms": …}`. How often it is retried stands in its row.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from runstone.core import codec
from runstone.core.effect import Effect
from runstone.core.retry import RetryPolicy
from runstone.outbox.services import Service


class Policy(msgspec.Struct, frozen=True):
    """What an effect asks for itself; none: as its type says."""

    retries: RetryPolicy | None = None
    timeout: timedelta | None = None


class _Backoff(msgspec.Struct, frozen=True):
    base_ms: int | None = None
    cap_ms: int | None = None


class _Asked(msgspec.Struct, frozen=True):
    retry: _Backoff | None = None
    timeout_ms: int | None = None


_NOTHING = Policy()
_read_asked = codec.reader(_Asked)


def policy_of(effect: Effect, service: Service) -> Policy:
    """The policy of one effect; metadata that says something else altogether is the caller's own."""
    if effect.metadata is None:
        return _NOTHING
    try:
        asked = _read_asked(effect.metadata)
    except msgspec.ValidationError:
        return _NOTHING
    timeout = None if asked.timeout_ms is None else timedelta(milliseconds=asked.timeout_ms)
    if asked.retry is None:
        return Policy(None, timeout)
    known = service.retries
    base, cap = asked.retry.base_ms, asked.retry.cap_ms
    return Policy(
        RetryPolicy(
            effect.max_retries,
            known.base if base is None else timedelta(milliseconds=base),
            known.cap if cap is None else timedelta(milliseconds=cap),
        ),
        timeout,
    )
