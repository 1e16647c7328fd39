"""A stream and its head, as a store hands them over (§ORD-1, §ORD-2)."""

from __future__ import annotations

from datetime import datetime

import msgspec

from runstone.core.events import Event, StreamKind
from runstone.core.fold import KINDS, fold_stream, new_state
from runstone.core.state import StreamState
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

    def fold(self) -> StreamState:
        """The state its events add up to."""
        stream_id, kind = self.head.stream_id, self.head.kind
        if kind not in KINDS:
            raise UnreadableEvent(f"Stream {stream_id} is of a kind that nobody knows: {kind!r}")
        return fold_stream(new_state(kind, stream_id, self.head.tenant_id), self.events)
