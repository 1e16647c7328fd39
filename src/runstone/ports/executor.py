"""The executor port: what does one type of effect outside, once per call (§OUT-10, §OUT-11, §OUT-25).

The dispatcher claims, asks the ledger, calls an executor and records what came of it. An executor
knows nothing of stores: it gets one call, and says how it went. It is called again with the same
key after a crash or a failure, and passes that key to its service (§OUT-19). What lives in our own store
has an inner executor instead: it is done with its outcome, or not at all (§OUT-55).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from runstone.core.commit import StreamWriter
from runstone.core.effect_specs import EffectSpec
from runstone.core.events import Event, StreamKind
from runstone.core.payloads import ErrorInfo


class EffectCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one effect. Every call of the same effect has the same spec and the same key."""

    effect_id: str
    tenant_id: str
    run_id: str
    effect_type: str
    spec: EffectSpec
    """Typed: an instance of the struct that the executor was registered for."""
    key: str
    """The idempotency key, unique in its tenant, the same for every attempt."""
    attempt: int
    """From 1; the retries since it was last queued, plus one."""
    timeout: timedelta
    """All the time there is: the dispatcher cancels the call after it (§OUT-11)."""
    correlation_id: str
    requested_at: datetime
    """When the run asked for it: the one time that every attempt shares, such as the date of a mail."""
    orchestrator_version: str = ""
    """The version of the app that runs the run, as far as an inner executor is concerned."""


class Succeeded(msgspec.Struct, frozen=True):
    """It was done; `result` is what the outside answered, as plain JSON."""

    result: Any = None


class Failed(msgspec.Struct, frozen=True):
    """It was not done, as far as anybody knows.

    `error.retryable` says whether another try could help (§OUT-15). `retry_after` is how long the
    other side wants to be left alone (§OUT-16). `nothing_sent` is true only when the other side
    cannot have acted, such as after a refused connection: an at-most-once effect is tried again
    only then (§OUT-23). `target_down` says that the host itself is failing, not this one call: a
    circuit counts those.
    """

    error: ErrorInfo
    retry_after: timedelta | None = None
    nothing_sent: bool = False
    target_down: bool = False

    @property
    def retryable(self) -> bool:
        return self.error.retryable


Outcome: TypeAlias = Succeeded | Failed


class Executor(Protocol):
    """Does one or more types of effect.

    A failure is returned as `Failed`. An exception means that nobody knows what happened: the
    dispatcher records it as a retryable failure, `TerminalError` as one that is not, and in neither
    case as `nothing_sent`. `execute` may be cancelled at any await (time-out, shutdown).
    """

    async def execute(self, call: EffectCall) -> Outcome:
        """Does it, within `call.timeout`."""
        ...

    def target(self, spec: EffectSpec) -> str | None:
        """The host that the call would go to, for limits and the circuit; none: it has no host of its own."""
        ...

    async def aclose(self) -> None:
        """Lets go of connections. May be called twice."""
        ...


@runtime_checkable
class InnerExecutor(Protocol):
    """Does one type of effect in our own store, in the transaction of its outcome: exactly once (§OUT-55).

    It neither reads nor writes: it is shown one stream as it is, and records on it what is to be committed
    with the outcome. Whenever another was faster, there or in the run's own stream, it is asked again, with
    the stream as it is by then. So it has to be quick, and to depend on nothing but what it is given.
    """

    def place(self, call: EffectCall) -> tuple[StreamKind, str]:
        """The kind and the id of the stream it writes to, which may not be there yet."""
        ...

    def schedule(self, call: EffectCall) -> str | None:
        """The name of the schedule it writes to, if to one: that may have another stream by now (§STO-57)."""
        ...

    def perform(self, call: EffectCall, stream: StreamWriter[Any], cause: str) -> Outcome:
        """Records what it does, caused by `cause`: the event that the effect's own stream has of it.

        After `Failed` or an exception, which mean the same as for an `Executor`, nothing of it is written.
        """
        ...

    def written_at(self, call: EffectCall) -> int | None:
        """The `run_seq` that its event has, if it is there already; none where what it asks for does not say.

        For an effect that fails because of what it has itself done before (§OUT-75).
        """
        ...

    def recall(self, event: Event) -> Outcome:
        """What `perform` said of this event, that its stream has of the effect already (§OUT-75)."""
        ...
