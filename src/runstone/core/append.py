"""A blind append: an event that somebody else drafted, put at the end of its stream (§STO-4)."""

from __future__ import annotations

import msgspec

from runstone.core.catalogue import CATALOGUE
from runstone.core.chain import seal
from runstone.core.commit import StreamWrite, run_write, signal_write
from runstone.core.contract import AppendResult
from runstone.core.events import EventDraft, StreamKind
from runstone.core.fold import run_fold, signal_fold
from runstone.core.keys import content_hash
from runstone.core.rows import queue_entry
from runstone.core.state import RunState, SignalState

_SIGNAL_EVENTS = frozenset(name for name, kind in CATALOGUE.types.items() if kind.AGGREGATE == "SIGNAL")


def stream_kind(draft: EventDraft) -> StreamKind:
    """The kind of stream an event belongs to."""
    return "SIGNAL" if draft.event_type in _SIGNAL_EVENTS else "RUN"


def empty_state(draft: EventDraft) -> SignalState | RunState:
    """The state of a stream that this would be the first event of."""
    kind = SignalState if stream_kind(draft) == "SIGNAL" else RunState
    return kind(stream_id=draft.stream_id, tenant_id=draft.tenant_id)


def append_write(
    state: SignalState | RunState, draft: EventDraft, fence: int
) -> tuple[StreamWrite, SignalState | RunState]:
    """What appending the draft writes, and the state after it; its time is not before the stream's last."""
    if state.last_at is not None and draft.occurred_at < state.last_at:
        draft = msgspec.structs.replace(draft, occurred_at=state.last_at)
    event = seal(draft, state.last_seq + 1, state.head)
    if isinstance(state, SignalState):
        signal = signal_fold(state)
        signal.apply(event)
        return signal_write(signal, (event,), fence), signal.freeze()
    run = run_fold(state)
    run.apply(event)
    return run_write(run, (event,), fence, queued=queue_entry(state)), run.freeze()


def repeated(draft: EventDraft, run_seq: int, event_type: str, event_data: bytes) -> AppendResult:
    """The answer to a key that the stream has already (§IDM-8 to §IDM-10)."""
    same = event_type == draft.event_type and content_hash(event_data) == content_hash(draft.event_data)
    return AppendResult(run_seq=run_seq, idempotent=True, persisted=False, conflict=not same)
