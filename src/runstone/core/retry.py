"""How often and when to try again (§OUT-20, §OUT-21)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec


class RetryPolicy(msgspec.Struct, frozen=True):
    """`max_retries` tries after the first, further and further apart."""

    max_retries: int = 3
    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)

    def delay(self, retry: int, jitter: float) -> timedelta:
        """How long to wait before the given retry (the first is 1); `jitter` is from 0 to 1.

        Full jitter: anything between nothing and the exponential bound, so that what failed
        together does not come back together.
        """
        factor = 1 << min(retry, 30)
        # What lies far beyond the cap may be more than a timedelta can hold.
        bound = self.cap if self.base > self.cap / factor else min(self.cap, self.base * factor)
        return bound * jitter


EFFECT_RETRIES: Final = {
    "SEND_EMAIL": RetryPolicy(3, timedelta(seconds=2)),
    "API_CALL": RetryPolicy(5, timedelta(seconds=1)),
    "SOR_UPDATE": RetryPolicy(1, timedelta(seconds=5)),
}
"""What differs from the default, by type of effect."""

DEFAULT_RETRIES: Final = RetryPolicy()


def effect_retries(effect_type: str) -> RetryPolicy:
    """The policy of a type of effect."""
    return EFFECT_RETRIES.get(effect_type, DEFAULT_RETRIES)
