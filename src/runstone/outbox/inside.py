"""Effects that are carried out in our own store: what they write goes with their outcome (§OUT-55).

Whoever writes to a stream here has it for himself, in this process, until his commit is through: those
of other processes are met at the stream's head, and everything is decided again. A stream is kept as it
was left, so that the next effect need not read it; to refuse one, it is read anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from runstone.core.commit import Commit, Context, StreamWriter, stream_write
from runstone.core.events import Event, StreamKind
from runstone.core.fold import StreamFold, entities, fold_stream, new_state, stream_fold
from runstone.core.keys import event_key
from runstone.core.run import Run
from runstone.core.state import EntityState, ScheduleState, StreamState
from runstone.core.stream import Stream
from runstone.outbox.outcomes import Report, raised
from runstone.ports.executor import EffectCall, Failed, InnerExecutor, Outcome, Succeeded
from runstone.ports.schedules import FAR, find_stream, load_schedule
from runstone.ports.store import Host

STREAMS_KEPT: Final = 512
PAGE: Final = 100
SHORT: Final = 8
"""A stream of so few events is read whole: that is one read less."""
_NOTHING: Final = Commit((), ())


class Inside:
    """One effect on its way into the store."""

    def __init__(
        self, call: EffectCall, executor: InnerExecutor, report: Callable[[Outcome], Report]
    ) -> None:
        self.call = call
        self.report = report
        self._executor = executor
        self.reported: Report | None = None
        """What was recorded of it."""
        self.found: Event | None = None
        """What its stream has of it already, which its run knows nothing of (§OUT-75)."""
        self._searched: dict[str, int] = {}
        """How far streams were looked through for that."""

    @property
    def place(self) -> tuple[StreamKind, str]:
        """The stream it writes to, as long as that was not archived."""
        return self._executor.place(self.call)

    @property
    def schedule(self) -> str | None:
        """The name of the schedule it writes to, if to one."""
        return self._executor.schedule(self.call)

    def asked_by(self, run: Run | None) -> None:
        """Whose code asked for it, as far as its run says."""
        if run is not None:
            version = run.orchestrator_version
            self.call = msgspec.structs.replace(self.call, orchestrator_version=version)

    def perform(self, stream: StreamWriter[Any], cause: str) -> Outcome:
        """Records on the stream what it does; a failure means that it did nothing, whatever was recorded."""
        try:
            if self.found is not None:
                outcome = self._executor.recall(self.found)
            else:
                outcome = self._executor.perform(self.call, stream, cause)
        except Exception as error:
            outcome = raised(error)
        if isinstance(outcome, Failed):
            return msgspec.structs.replace(outcome, nothing_sent=True)
        return outcome

    async def look_for(self, refused: Commit, host: Host) -> None:
        """Looks for what the store refused as there already, in the stream below it, from the end."""
        if not refused.writes:
            return
        first = refused.writes[0].events[0]
        searched = self._searched.get(first.stream_id, 0)
        end = first.run_seq - 1
        while end > searched and self.found is None:
            after = max(searched, end - PAGE)
            page = await host.fetch(first.tenant_id, first.stream_id, after_seq=after, limit=end - after)
            self.found = next((one for one in page if one.idempotency_key == first.idempotency_key), None)
            end = after
        self._searched[first.stream_id] = first.run_seq - 1

    async def look_where_it_would_be(self, state: StreamState, host: Host) -> bool:
        """Whether the stream has it already, so that it fails for what it did itself."""
        seq = self._executor.written_at(self.call)
        if seq is None or seq > state.last_seq:
            return False
        for event in await host.fetch(state.tenant_id, state.stream_id, after_seq=seq - 1, limit=1):
            own = event_key(state.stream_id, event.event_type, occurrence=self.call.effect_id)
            self.found = event if event.idempotency_key == own else None
        return self.found is not None


class _Known(msgspec.Struct, frozen=True):
    """A stream as it was seen, and whether that is all there is of it, as far as anybody here knows."""

    state: StreamState
    fence: int = 0
    latest: bool = False


class Streams:
    """The streams that effects write to beside those of runs."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._kept: OrderedDict[str, _Known] = OrderedDict()

    @asynccontextmanager
    async def perform(
        self, inside: Inside, cause: str, context: Context
    ) -> AsyncIterator[tuple[Outcome, Commit]]:
        """What an effect comes to and what that writes; the body commits it, while nobody else is let in."""
        kind, stream_id = await self._place(inside)
        turn = self._turns.setdefault(stream_id, asyncio.Lock())
        async with turn:
            known = self._kept.pop(stream_id, None) or _Known(
                new_state(kind, stream_id, inside.call.tenant_id)
            )
            read = not known.latest
            if read:
                known = await self._read(known)
            writer, outcome = _attempt(known, inside, cause, context)
            if not read and (isinstance(outcome, Failed) or not writer.events):
                known = await self._read(known)
                writer, outcome = _attempt(known, inside, cause, context)
            if isinstance(outcome, Failed) and await inside.look_where_it_would_be(known.state, self._host):
                writer, outcome = _attempt(known, inside, cause, context)
            self._keep(msgspec.structs.replace(known, latest=False))
            if not isinstance(outcome, Succeeded) or not writer.events:
                yield outcome, _NOTHING
                return
            write = stream_write(writer.fold, writer.events, known.fence)
            yield outcome, Commit((write,), write.events)
            self._keep(_Known(writer.fold.freeze(), known.fence, latest=True))

    async def _place(self, inside: Inside) -> tuple[StreamKind, str]:
        """The stream it writes to: what was archived leaves its place to the next one (§STO-57)."""
        kind, stream_id = inside.place
        known = self._kept.get(stream_id)
        if inside.schedule is None or (known is not None and known.state.last_seq):
            return kind, stream_id  # who writes to one that is gone, on what he saw of it, is refused
        return kind, await find_stream(self._host, inside.call.tenant_id, inside.schedule)

    async def _read(self, known: _Known) -> _Known:
        """The stream as it is now: what came after what is known; all of it, if that is not how it began."""
        state = known.state if known.state.last_seq else await self._begin(known.state)
        stream = None if state is None else await self._load(state, state.last_seq)
        if state is None or stream is None:
            return _Known(_empty(known.state), latest=True)
        now = fold_stream(state, stream.events)
        if now.head != stream.head.head and state.last_seq:
            return await self._read_all(state)
        return _Known(now, stream.head.fence, latest=True)

    async def _read_all(self, state: StreamState) -> _Known:
        stream = await self._load(state, 0)
        if stream is None:
            return _Known(_empty(state), latest=True)
        return _Known(stream.fold(), stream.head.fence, latest=True)

    async def _begin(self, empty: StreamState) -> StreamState | None:
        """What to fold on from where nothing is known; none if there is no such stream.

        An entity may have had any number of changes: the first and the last say all that the next needs. A
        schedule may have fired any number of times: its row says all.
        """
        stream = await self._load(empty, FAR)
        if stream is None or stream.head.last_seq <= SHORT:
            return empty if stream else None
        if isinstance(empty, ScheduleState):
            known = await load_schedule(self._host, empty.tenant_id, empty.stream_id)
            return empty if known is None else known.state
        if not isinstance(empty, EntityState):
            return empty
        first = await self._host.fetch(empty.tenant_id, empty.stream_id, limit=1)
        return entities.pass_over(fold_stream(empty, first), stream.head.last_seq - 1)

    async def _load(self, state: StreamState, after_seq: int) -> Stream | None:
        return await self._host.load(state.tenant_id, state.stream_id, after_seq=after_seq)

    def _keep(self, known: _Known) -> None:
        self._kept[known.state.stream_id] = known
        self._kept.move_to_end(known.state.stream_id)
        if len(self._kept) > STREAMS_KEPT:
            self._kept.popitem(last=False)


def _empty(state: StreamState) -> StreamState:
    return new_state(state.KIND, state.stream_id, state.tenant_id)


def _attempt(
    known: _Known, inside: Inside, cause: str, context: Context
) -> tuple[StreamWriter[StreamFold], Outcome]:
    writer = StreamWriter(stream_fold(known.state), context, correlation_id=known.state.stream_id)
    return writer, inside.perform(writer, cause)
