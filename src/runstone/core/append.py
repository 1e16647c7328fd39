"""A blind append: an event that somebody else drafted, put at the end of its stream (§STO-4)."""

from __future__ import annotations

from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import Context, StreamWrite, StreamWriter, run_write, signal_write
from runstone.core.contract import AppendResult
from runstone.core.events import EventDraft, StreamKind
from runstone.core.fold import run_fold, signal_fold
from runstone.core.keys import content_hash
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
    """What appending the draft writes, and the state after it."""
    context = Context(now=draft.occurred_at, new_id=lambda: draft.id, actor=draft.actor)
    if isinstance(state, SignalState):
        signal_writer = StreamWriter(signal_fold(state), context, draft.correlation_id)
        signal_writer.adopt(draft)
        return signal_write(state, signal_writer, fence), signal_writer.fold.freeze()
    run_writer = StreamWriter(run_fold(state), context, draft.correlation_id)
    run_writer.adopt(draft)
    return run_write(state, run_writer, fence), run_writer.fold.freeze()


def repeated(draft: EventDraft, run_seq: int, event_type: str, event_data: bytes) -> AppendResult:
    """The answer to a key that the stream has already (§IDM-8 to §IDM-10)."""
    same = event_type == draft.event_type and content_hash(event_data) == content_hash(draft.event_data)
    return AppendResult(run_seq=run_seq, idempotent=True, persisted=False, conflict=not same)
