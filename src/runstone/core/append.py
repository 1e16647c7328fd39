"""A blind append: an event that somebody else drafted, put at the end of its stream (§STO-4)."""

from __future__ import annotations

from typing import Final, cast, get_args

import msgspec

from runstone.core.catalogue import CATALOGUE
from runstone.core.chain import seal
from runstone.core.commit import StreamWrite, run_write, stream_write
from runstone.core.contract import AppendResult
from runstone.core.events import EventDraft, StreamKind
from runstone.core.fold import RunFold, new_state, stream_fold
from runstone.core.keys import content_hash
from runstone.core.rows import queue_entry
from runstone.core.state import RunState, StreamState

_STREAMS: Final = {
    name: cast(StreamKind, kind.AGGREGATE)
    for name, kind in CATALOGUE.types.items()
    if kind.AGGREGATE in get_args(StreamKind)
}
"""Types of events of what has a stream of its own; all others are of a run."""


def stream_kind(draft: EventDraft) -> StreamKind:
    """The kind of stream an event belongs to."""
    return _STREAMS.get(draft.event_type, "RUN")


def empty_state(draft: EventDraft) -> StreamState:
    """The state of a stream that this would be the first event of."""
    return new_state(stream_kind(draft), draft.stream_id, draft.tenant_id)


def append_write(state: StreamState, draft: EventDraft, fence: int) -> tuple[StreamWrite, StreamState]:
    """What appending the draft writes, and the state after it; its time is not before the stream's last."""
    if state.last_at is not None and draft.occurred_at < state.last_at:
        draft = msgspec.structs.replace(draft, occurred_at=state.last_at)
    event = seal(draft, state.last_seq + 1, state.head)
    fold = stream_fold(state)
    fold.apply(event)
    if isinstance(fold, RunFold) and isinstance(state, RunState):
        return run_write(fold, (event,), fence, queued=queue_entry(state)), fold.freeze()
    return stream_write(fold, (event,), fence), fold.freeze()


def repeated(draft: EventDraft, run_seq: int, event_type: str, event_data: bytes) -> AppendResult:
    """The answer to a key that the stream has already (§IDM-8 to §IDM-10)."""
    same = event_type == draft.event_type and content_hash(event_data) == content_hash(draft.event_data)
    return AppendResult(run_seq=run_seq, idempotent=True, persisted=False, conflict=not same)
