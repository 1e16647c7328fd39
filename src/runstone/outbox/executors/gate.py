"""The one place that every executor passes on its way out: where it may go, and with which secrets.

Secrets are resolved here and nowhere else (§PAY-27), for now from names in the configuration. A guard on
outgoing addresses will stand here too: each executor asks before it connects.
"""

from __future__ import annotations

from collections.abc import Mapping

from runstone.core.effect_specs import SecretRef
from runstone.outbox.executors.failures import failed
from runstone.ports.executor import EffectCall, Failed

HIDDEN = "[secret]"


class Gate:
    """Knows the secrets that the configuration names."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._secrets = dict(secrets or {})

    async def objection(self, call: EffectCall, host: str) -> Failed | None:
        """Why this effect may not go to that host. Nothing is guarded yet: every host may be called."""
        return None

    async def secret(self, call: EffectCall, reference: SecretRef | str) -> str | Failed:
        """The value behind a reference, for the call's tenant; a literal of the configuration is its own."""
        if isinstance(reference, str):
            return reference
        value = self._secrets.get(reference.name)
        if value is None:
            return failed(
                "VALIDATION",
                "SECRET_MISSING",
                f"No secret is configured as {reference.name!r}: add it, then requeue this effect",
                nothing_sent=True,
            )
        return reference.prefix + value


def hide(content: bytes, secrets: list[str]) -> bytes:
    """What a peer answered, without the secrets that it may have repeated (§PAY-29)."""
    for secret in secrets:
        content = content.replace(secret.encode(), HIDDEN.encode())
    return content
