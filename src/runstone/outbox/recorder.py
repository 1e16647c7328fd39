"""Records what came of effects: all that is known of one run goes in one commit.

It decides again while others are faster. It keeps the cases it wrote to last, so that the next
outcome of the same run needs no reading; a case that is out of date is found out by the store, and
brought up to date then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from runstone.core.commands import BeginEffect, Command
from runstone.core.commit import Context, Hold
from runstone.core.decide import Case, decide
from runstone.core.effect import Effect
from runstone.core.fold import fold_run, fold_signal
from runstone.core.ids import NewId
from runstone.core.run import Run
from runstone.errors import (
    CommandRefused,
    CommitRefused,
    NotFound,
    OutcomeUnknown,
    StaleClaim,
    StateTransitionError,
    StoreClosed,
    StoreUnusable,
)
from runstone.outbox.outcomes import Report
from runstone.ports.bell import Bell
from runstone.ports.cases import ATTEMPTS, load_case, submit
from runstone.ports.clock import Clock
from runstone.ports.store import Host

CASES_KEPT: Final = 512
PATIENCE: Final = 5.0
"""The longest pause between two attempts to record something on a store that is in trouble, in seconds."""

_log = logging.getLogger("runstone.outbox")


class _Entry:
    """One thing to record, and who waits for it."""

    __slots__ = ("command", "done", "hold", "late")

    def __init__(self, command: Callable[[Effect, bool], Command | None], hold: Hold) -> None:
        self.command = command
        self.hold = hold
        self.late = False
        self.done: asyncio.Future[Effect | None] = asyncio.get_running_loop().create_future()


class Recorder:
    """Writes outcomes beside the runs' own workers."""

    def __init__(
        self,
        host: Host,
        *,
        clock: Clock,
        new_id: NewId,
        actor: str,
        bell: Bell,
        ended: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self._host = host
        self._clock = clock
        self._new_id = new_id
        self._actor = actor
        self._bell = bell
        self._ended = ended
        self._pending: dict[tuple[str, str], list[_Entry]] = {}
        self._writing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._cases: OrderedDict[tuple[str, str], Case] = OrderedDict()

    async def record(self, effect: Effect, report: Report) -> Effect | None:
        """Records an outcome, as such or as a late one; the effect as it is then, or none: nothing to say."""
        return await self._add(
            effect, _Entry(lambda now, late: report.command(now, late=late), Hold(effect.id, report.fence))
        )

    async def begin(self, effect: Effect, executor: str, fence: int) -> bool:
        """Makes durable that an effect is about to be executed; false if it is not to be (§OUT-7, §OUT-9)."""

        def command(now: Effect, late: bool) -> Command | None:
            if late or now.status not in ("PENDING", "FAILED") or now.execution_result is not None:
                return None
            return BeginEffect(effect_id=now.id, executor=executor, fence=fence)

        return await self._add(effect, _Entry(command, Hold(effect.id, fence, release=False))) is not None

    async def whole(self, effect: Effect, payload: Raw) -> Raw:
        """A payload of the effect's row in full."""
        if not bytes(payload).startswith(b'{"$event":'):
            return payload
        return (await self._load((effect.tenant_id, effect.run_id))).run.whole(payload)

    async def _add(self, effect: Effect, entry: _Entry) -> Effect | None:
        place = (effect.tenant_id, effect.run_id)
        self._pending.setdefault(place, []).append(entry)
        if place not in self._writing:
            self._writing[place] = asyncio.ensure_future(self._write(place))
        return await entry.done

    async def _write(self, place: tuple[str, str]) -> None:
        try:
            while waiting := self._pending.pop(place, None):
                batch, rest = _one_of_each(waiting)
                if rest:
                    self._pending[place] = rest
                await self._record(place, batch)
        finally:
            del self._writing[place]

    async def _record(self, place: tuple[str, str], batch: Sequence[_Entry]) -> None:
        try:
            await self._commit(place, batch)
        except (CommandRefused, StateTransitionError, CommitRefused) as error:
            self._cases.pop(place, None)
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one that makes no sense must not take the others with it
                for entry in batch:
                    await self._record(place, [entry])
        except asyncio.CancelledError:
            for entry in batch:
                entry.done.cancel()
            raise
        except Exception as error:
            _fail(batch, error)

    async def _commit(self, place: tuple[str, str], batch: Sequence[_Entry]) -> None:
        pause = 0.05
        refused = 0
        sure = False
        while batch:
            try:
                case = await self._current(place, batch)
                done = await self._try(case, batch)
                settled = [entry for entry in batch if sure or entry.hold.effect_id in done[1]]
                self._settle(place, settled, done)
                batch = [entry for entry in batch if entry not in settled]
                if batch:  # that there is nothing to record of an effect, only the latest of its run can say
                    await self._catch_up(place)
                    sure = True
            except StaleClaim as stale:
                for entry in batch:
                    entry.late = entry.late or entry.hold.effect_id == stale.effect_id
            except CommitRefused:
                refused += 1
                if refused == ATTEMPTS:
                    raise
                await self._catch_up(place)
            except StoreClosed:
                raise
            except (OutcomeUnknown, StoreUnusable) as trouble:
                # What was done outside has to be recorded, so nobody gives up here while the process lives.
                _log.warning("cannot record an outcome of run %s yet: %s", place[1], trouble)
                self._cases.pop(place, None)
                await asyncio.sleep(pause)
                pause = min(pause * 2, PATIENCE)

    async def _try(self, case: Case, batch: Sequence[_Entry]) -> tuple[Case, set[str]]:
        """Decides and commits; the case as it is then, and the effects that something was recorded of."""
        wanted: list[Command] = []
        holds: list[Hold] = []
        recorded: set[str] = set()
        for entry in batch:
            effect = case.run.effects.get(entry.hold.effect_id)
            if effect is None:
                raise NotFound(f"There is no effect {entry.hold.effect_id} in run {case.run.stream_id}")
            command = entry.command(effect, entry.late)
            if command is None:
                continue
            wanted.append(command)
            recorded.add(effect.id)
            if not entry.late and effect.status in ("PENDING", "EXECUTING", "FAILED"):
                holds.append(entry.hold)
        if not wanted:
            return case, recorded
        context = Context(now=self._clock.now(), new_id=self._new_id, actor=self._actor)
        decision = decide(case, *wanted, context=context, holds=tuple(holds))
        await submit(self._host, decision)
        return decision.case, recorded

    def _settle(self, place: tuple[str, str], batch: Sequence[_Entry], done: tuple[Case, set[str]]) -> None:
        case, recorded = done
        self._keep(place, case)
        for entry in batch:
            if not entry.done.done():
                effect_id = entry.hold.effect_id
                entry.done.set_result(case.run.effects[effect_id] if effect_id in recorded else None)
        if recorded:
            self._bell.ring(place[1])
            if case.run.run is not None and case.run.run.completed_at is not None:
                self._ended(case.run.run)

    async def _current(self, place: tuple[str, str], batch: Sequence[_Entry]) -> Case:
        """The case as it was last seen, unless it must have moved on since."""
        case = self._cases.get(place)
        if case is None:
            return await self._load(place)
        if all(entry.hold.effect_id in case.run.effects for entry in batch):
            return case
        return await self._catch_up(place)

    async def _load(self, place: tuple[str, str]) -> Case:
        case = await load_case(self._host, *place)
        if case is None:
            raise NotFound(f"There is no run {place[1]}")
        self._keep(place, case)
        return case

    async def _catch_up(self, place: tuple[str, str]) -> Case:
        """Folds what others appended; the signal first, so that a run that ends meanwhile shows its end."""
        case = self._cases.pop(place, None)
        if case is None:
            return await self._load(place)
        signal = await self._host.load(place[0], case.signal.stream_id, after_seq=case.signal.last_seq)
        run = await self._host.load(*place, after_seq=case.run.last_seq)
        if run is None or signal is None:
            raise NotFound(f"Run {place[1]} is gone")
        case = msgspec.structs.replace(
            case,
            run=fold_run(case.run, run.events),
            signal=fold_signal(case.signal, signal.events),
            run_fence=run.head.fence,
            signal_fence=signal.head.fence,
        )
        self._keep(place, case)
        return case

    def _keep(self, place: tuple[str, str], case: Case) -> None:
        run = case.run.run
        if run is not None and run.completed_at is not None and not case.run.compensations:
            self._cases.pop(place, None)  # it has ended: most likely nothing more comes
            return
        self._cases[place] = case
        self._cases.move_to_end(place)
        if len(self._cases) > CASES_KEPT:
            self._cases.popitem(last=False)


def _one_of_each(waiting: Sequence[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """One entry per effect, for a second is judged by what the first made of it; and the rest."""
    first: dict[str, _Entry] = {}
    rest: list[_Entry] = []
    for entry in waiting:
        if first.setdefault(entry.hold.effect_id, entry) is not entry:
            rest.append(entry)
    return list(first.values()), rest


def _fail(batch: Sequence[_Entry], error: BaseException) -> None:
    for entry in batch:
        if not entry.done.done():
            entry.done.set_exception(error)
