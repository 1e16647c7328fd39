"""Records what came of effects: all that is known of one run goes in one commit.

It decides again while others are faster, on the case as it was last seen: the next outcome of the same
run needs no reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from runstone.core.commands import BeginEffect, Command
from runstone.core.commit import Commit, Context, Hold
from runstone.core.decide import Case, decide
from runstone.core.effect import Effect
from runstone.core.ids import NewId
from runstone.core.run import Run
from runstone.errors import (
    CommandRefused,
    CommitRefused,
    DuplicateKey,
    NotFound,
    OutcomeUnknown,
    StaleClaim,
    StateTransitionError,
    StoreClosed,
    StoreUnusable,
)
from runstone.outbox.cases import Cases
from runstone.outbox.inside import Inside, Streams
from runstone.outbox.outcomes import Report
from runstone.ports.bell import Bell
from runstone.ports.cases import ATTEMPTS, make_durable, submit
from runstone.ports.clock import Clock
from runstone.ports.store import EffectClaim, Host

PATIENCE: Final = 5.0
"""The longest pause between two attempts to record something on a store that is in trouble, in seconds."""

_log = logging.getLogger("runstone.outbox")


class _Entry:
    """One thing to record, and who waits for it."""

    __slots__ = ("command", "done", "hold", "inside", "late")

    def __init__(
        self,
        command: Callable[[Effect, bool], Command | None],
        hold: Hold,
        inside: Inside | None = None,
    ) -> None:
        self.command = command
        self.hold = hold
        self.inside = inside
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
        self._cases = Cases(host)
        self._streams = Streams(host)

    def expect(self, claims: Iterable[EffectClaim]) -> None:
        """Outcomes of these will come: their runs are read all at once, while the outside is called."""
        for claim in claims:
            self._cases.expect((claim.effect.tenant_id, claim.effect.run_id), claim.signal_id)

    async def perform(self, effect: Effect, inside: Inside, fence: int) -> Effect | None:
        """Carries an effect out in the store and records that, both in one commit (§OUT-55).

        The effect as it is then; none if it is no longer to be carried out, or no longer by this claim.
        """
        return await self._add(effect, _Entry(_none, Hold(effect.id, fence), inside))

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
        return (await self._cases.last_seen((effect.tenant_id, effect.run_id))).run.whole(payload)

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
            self._cases.drop(place)
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
        sure = behind = False
        while batch:
            try:
                if behind:
                    await self._cases.latest(place)
                    behind = False
                case = await self._current(place, batch)
                done = await self._try(case, batch)
                settled = [entry for entry in batch if sure or entry.hold.effect_id in done[1]]
                self._settle(place, settled, done)
                batch = [entry for entry in batch if entry not in settled]
                if batch:  # that there is nothing to record of an effect, only the latest of its run can say
                    await self._cases.latest(place)
                    sure = True
            except StaleClaim as stale:
                for entry in batch:
                    entry.late = entry.late or entry.hold.effect_id == stale.effect_id
            except CommitRefused:
                refused += 1
                if refused == ATTEMPTS:
                    raise
                behind = True  # the latest is read above, where a store in trouble is waited for
            except StoreClosed:
                raise
            except (OutcomeUnknown, StoreUnusable) as trouble:
                # What was done outside has to be recorded, so nobody gives up here while the process lives.
                _log.warning("cannot record an outcome of run %s yet: %s", place[1], trouble)
                self._cases.drop(place)
                await asyncio.sleep(pause)
                pause = min(pause * 2, PATIENCE)

    async def _try(self, case: Case, batch: Sequence[_Entry]) -> tuple[Case, set[str]]:
        """Decides and commits; the case as it is then, and the effects that something was recorded of."""
        if batch[0].inside is not None:
            return await self._carry_out(case, batch[0], batch[0].inside)
        wanted: list[Command] = []
        holds: list[Hold] = []
        recorded: set[str] = set()
        for entry in batch:
            effect = _effect(case, entry)
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
        try:
            await submit(self._host, decision)
        except OutcomeUnknown:
            if not await self._is_there(decision.commit):
                raise
        return decision.case, recorded

    async def _is_there(self, commit: Commit) -> bool:
        """Whether the log has a commit whose answer was lost.

        Asks until somebody knows: whoever decides again on his own outcome takes it for another's (§OUT-74).
        """
        last = commit.writes[-1].events[-1]
        pause = 0.05
        while True:
            try:
                found = await self._host.fetch(
                    last.tenant_id, last.stream_id, after_seq=last.run_seq - 1, limit=1
                )
            except StoreClosed:
                raise
            except StoreUnusable as trouble:
                _log.warning("cannot see whether an outcome of run %s is recorded: %s", last.run_id, trouble)
                await asyncio.sleep(pause)
                pause = min(pause * 2, PATIENCE)
            else:
                return bool(found) and found[0].id == last.id

    async def _carry_out(self, case: Case, entry: _Entry, inside: Inside) -> tuple[Case, set[str]]:
        """The same for an effect that is carried out in the store, as both it and its run are now."""
        effect = _effect(case, entry)
        if entry.late or effect.status not in ("PENDING", "EXECUTING", "FAILED"):
            return case, set()
        trace_id = effect.correlation_id.replace("-", "")
        context = Context(now=self._clock.now(), new_id=self._new_id, actor=self._actor, trace_id=trace_id)
        inside.asked_by(case.run.run)
        async with self._streams.perform(inside, case.run.causes[effect.id], context) as (outcome, written):
            report = inside.report(outcome)
            command = report.command(effect, late=False)
            assert command is not None, "an outcome of an effect that is under way is recorded"
            if written.events:  # the commit is one span
                context = msgspec.structs.replace(context, span_id=written.events[0].span_id)
            decision = decide(case, command, context=context, holds=(entry.hold,))
            commit = Commit.of(written, decision.commit)
            try:
                await make_durable(self._host, commit)
            except OutcomeUnknown:
                if not await self._is_there(commit):
                    raise
            except DuplicateKey:
                # The run is read after this: what was done with an outcome has it by then (§OUT-75).
                await inside.look_for(written, self._host)
                raise
        inside.reported = report
        return decision.case, {effect.id}

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
        case = await self._cases.last_seen(place)
        if all(entry.hold.effect_id in case.run.effects for entry in batch):
            return case
        return await self._cases.latest(place)

    def _keep(self, place: tuple[str, str], case: Case) -> None:
        run = case.run.run
        if run is not None and run.completed_at is not None and not case.run.compensations:
            self._cases.drop(place)  # it has ended: most likely nothing more comes
        else:
            self._cases.keep(place, case)


def _one_of_each(waiting: Sequence[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """One entry per effect, for a second is judged by what the first made of it; and the rest.

    What is carried out in the store has a commit of its own: it may be refused for more reasons.
    """
    if waiting[0].inside is not None:
        return [waiting[0]], list(waiting[1:])
    first: dict[str, _Entry] = {}
    rest: list[_Entry] = []
    for entry in waiting:
        if entry.inside is not None or first.setdefault(entry.hold.effect_id, entry) is not entry:
            rest.append(entry)
    return list(first.values()), rest


def _none(effect: Effect, late: bool) -> Command | None:
    return None


def _effect(case: Case, entry: _Entry) -> Effect:
    effect = case.run.effects.get(entry.hold.effect_id)
    if effect is None:
        raise NotFound(f"There is no effect {entry.hold.effect_id} in run {case.run.stream_id}")
    return effect


def _fail(batch: Sequence[_Entry], error: BaseException) -> None:
    for entry in batch:
        if not entry.done.done():
            entry.done.set_exception(error)
