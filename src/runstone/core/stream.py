"""A stream and its head, as a store hands them over (§ORD-1, §ORD-2)."""

from __future__ import annotations

from datetime import datetime

import msgspec

from runstone.core.events import Event, StreamKind
from runstone.core.fold import fold_run, fold_signal
from runstone.core.state import RunState, SignalState
from runstone.errors import UnreadableEvent


class StreamHead(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The append authority of one stream: the row that every commit is compared with."""

    stream_id: str
    tenant_id: str
    kind: StreamKind
    last_seq: int
    head: str
    last_at: datetime
    fence: int


class Stream(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A stream as it was at one moment."""

    head: StreamHead
    events: tuple[Event, ...]

    def fold(self) -> SignalState | RunState:
        """The state its events add up to."""
        stream_id, tenant_id = self.head.stream_id, self.head.tenant_id
        if self.head.kind == "SIGNAL":
            return fold_signal(SignalState(stream_id=stream_id, tenant_id=tenant_id), self.events)
        if self.head.kind == "RUN":
            return fold_run(RunState(stream_id=stream_id, tenant_id=tenant_id), self.events)
        raise UnreadableEvent(f"Stream {stream_id} is of a kind that nobody knows: {self.head.kind!r}")
