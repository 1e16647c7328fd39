"""The cases of runs whose effects are under way: read many at once, and kept for the next outcome.

Whatever is asked for in one turn of the event loop is one read. A case that is out of date is found out
by the store when somebody commits on it, and brought up to date then.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import Final, TypeAlias

from runstone.core.decide import Case
from runstone.errors import NotFound, StoreCorrupt, StoreUnusable
from runstone.ports.cases import catch_up, load_cases
from runstone.ports.store import Host

KEPT: Final = 1024
"""As many as effects may be under way by default, for each may be of another run."""
AT_ONCE: Final = 128
"""The most runs of one read."""

RunPlace: TypeAlias = tuple[str, str]
"""A run's tenant and its id."""


class _Question:
    """A run that is to be read, and its signal if that is known."""

    __slots__ = ("answer", "signal_id")

    def __init__(self, signal_id: str | None) -> None:
        self.signal_id = signal_id
        self.answer: asyncio.Future[Case] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(_heard)


_Asked: TypeAlias = dict[RunPlace, _Question]


class Cases:
    """Reads cases, and keeps those that were used last."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._kept: OrderedDict[RunPlace, Case] = OrderedDict()
        self._asked: _Asked = {}
        """What the next read brings."""
        self._reading: _Asked = {}
        """What a read under way brings, that others may wait for too."""
        self._reads: set[asyncio.Task[None]] = set()

    def expect(self, place: RunPlace, signal_id: str | None) -> None:
        """Outcomes of this run will come: reads it if it is not known, and nobody waits for that."""
        if place not in self._kept and place not in self._reading:
            self._ask(place, signal_id)

    async def last_seen(self, place: RunPlace) -> Case:
        """A case as it was last seen; read, if it never was. `NotFound` if there is no such run."""
        known = self._kept.get(place)
        if known is not None:
            return known
        return await asyncio.shield((self._reading.get(place) or self._ask(place)).answer)

    async def latest(self, place: RunPlace) -> Case:
        """A case as it is now."""
        return await asyncio.shield(self._ask(place).answer)

    def keep(self, place: RunPlace, case: Case) -> None:
        self._kept[place] = case
        self._kept.move_to_end(place)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def drop(self, place: RunPlace) -> None:
        self._kept.pop(place, None)

    def _ask(self, place: RunPlace, signal_id: str | None = None) -> _Question:
        found = self._asked.get(place)
        if found is None:
            if not self._asked:
                asyncio.get_running_loop().call_soon(self._hand_over)
            found = self._asked[place] = _Question(signal_id)
        return found

    def _hand_over(self) -> None:
        asked, self._asked = iter(self._asked.items()), {}
        while batch := dict(islice(asked, AT_ONCE)):
            self._reading |= batch
            read = asyncio.ensure_future(self._read(batch))
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)

    async def _read(self, batch: _Asked) -> None:
        try:
            await self._answer(batch)
        finally:
            for place, question in batch.items():
                question.answer.cancel()  # unless it has one
                if self._reading.get(place) is question:
                    del self._reading[place]

    async def _answer(self, batch: _Asked) -> None:
        try:
            found = await self._fetch(batch)
        except Exception as error:
            everybodys = isinstance(error, StoreUnusable) and not isinstance(error, StoreCorrupt)
            if len(batch) == 1 or everybodys:
                for place, question in batch.items():
                    self.drop(place)
                    question.answer.set_exception(error)
            else:  # one that cannot be read must not take the others with it
                for place, question in batch.items():
                    await self._answer({place: question})
            return
        for (place, question), case in zip(batch.items(), found, strict=True):
            if case is None:
                self.drop(place)
                question.answer.set_exception(NotFound(f"There is no run {place[1]}"))
            else:
                self.keep(place, case)
                question.answer.set_result(case)

    async def _fetch(self, batch: _Asked) -> list[Case | None]:
        """What others appended to those that were seen before, and all of the others."""
        seen: dict[RunPlace, Case] = {}
        for (tenant_id, run_id), question in batch.items():
            case = self._kept.get((tenant_id, run_id))
            if case is None and question.signal_id is not None:
                case = Case.new(tenant_id, question.signal_id, run_id)
            if case is not None:
                seen[tenant_id, run_id] = case
        cases: dict[RunPlace, Case | None] = {}
        if seen:
            cases |= zip(seen, await catch_up(self._host, list(seen.values())), strict=True)
        rest = [place for place in batch if not _is_whole(cases.get(place))]
        if rest:
            cases |= zip(rest, await load_cases(self._host, rest), strict=True)
        return [cases[place] for place in batch]


def _is_whole(case: Case | None) -> bool:
    """Whether it is a run with its own signal."""
    return case is not None and case.run.run is not None and case.run.run.signal_id == case.signal.stream_id


def _heard(future: asyncio.Future[Case]) -> None:
    """Nobody may have waited for it."""
    if not future.cancelled():
        future.exception()
