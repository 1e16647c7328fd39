"""Blind appends: somebody else's event, put at the end of its stream wherever that is (§STO-4 to §STO-6).

An append is a commit of one event that is decided again until nobody was faster. Appends of this process
to one stream take turns, so that they do not race each other; the state a stream was left in is
remembered, so that it need not be folded for every event.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from runstone.core.append import append_write, empty_state, repeated
from runstone.core.commit import Commit
from runstone.core.contract import AppendResult
from runstone.core.events import EventDraft
from runstone.core.state import StreamState
from runstone.core.stream import StreamHead
from runstone.errors import DuplicateKey, StaleFence, StaleSequence
from runstone.ports.store import Committed
from runstone.stores.postgres import reads

STATES_KEPT: Final = 256
ATTEMPTS: Final = 100
"""How often an append is decided again before its caller learns that the stream is too busy."""


class Appends:
    """Appends events through the writer, one stream's after the other."""

    def __init__(
        self, read: Callable[..., Awaitable[Any]], commit: Callable[[Commit], Awaitable[Committed]]
    ) -> None:
        self._read = read
        self._commit = commit
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._states: OrderedDict[str, StreamState] = OrderedDict()

    async def append(self, draft: EventDraft) -> AppendResult:
        turn = self._turns.setdefault(draft.stream_id, asyncio.Lock())
        async with turn:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return await self._append(draft)
                except (StaleSequence, StaleFence, DuplicateKey) as refusal:
                    # Another process was faster: with this key, which the next look finds, or with another.
                    known = isinstance(refusal, DuplicateKey) and attempt > 1
                    if known or attempt == ATTEMPTS:
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def _append(self, draft: EventDraft) -> AppendResult:
        place = (draft.tenant_id, draft.stream_id, draft.idempotency_key)
        head, found = await self._read(reads.keyed, *place)
        if found is not None:
            return repeated(draft, *found)
        state = await self._state(head, draft)
        write, after = append_write(state, draft, head.fence if head else 0)
        await self._commit(Commit((write,), write.events))
        self._remember(after)
        return AppendResult(run_seq=write.last_seq, idempotent=False, persisted=True)

    async def _state(self, head: StreamHead | None, draft: EventDraft) -> StreamState:
        """The stream's state: as remembered, if that is still its head, else folded from the log."""
        if head is None:
            return empty_state(draft)
        known = self._states.get(draft.stream_id)
        if known is not None and known.head == head.head:
            return known
        stream = await self._read(reads.load, draft.tenant_id, draft.stream_id, 0)
        folded: StreamState = stream.fold()
        return folded

    def _remember(self, state: StreamState) -> None:
        self._states[state.stream_id] = state
        self._states.move_to_end(state.stream_id)
        if len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)
