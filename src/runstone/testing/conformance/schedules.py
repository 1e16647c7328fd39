"""The suite of schedules: what is due, who fires it, and the rows that say so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from runstone.core import codec, commands
from runstone.core.bundle import import_commit, pack, unpack
from runstone.core.commands import CreateRun, ReceiveSignal
from runstone.core.commit import Commit, StreamWriter, stream_write
from runstone.core.decide import Case, decide
from runstone.core.decide.schedules import cancel, fire, schedule
from runstone.core.effect_specs import ScheduleTask
from runstone.core.fold import ScheduleFold, schedule_fold
from runstone.core.keys import content_hash, schedule_stream
from runstone.core.rows import Row, all_rows
from runstone.core.schedule import CHANNEL, Schedule, source_id
from runstone.core.state import ScheduleState
from runstone.core.tombstone import Resting, Tombstone, bury
from runstone.errors import CommitRefused, DuplicateKey, RunstoneError, StaleSequence
from runstone.ports.retention import Expired
from runstone.ports.store import Committed, DueSchedule
from runstone.testing.conformance.scene import Scene, Suite, draft

replace = msgspec.structs.replace

TASK: Final = "nightly"
HOUR: Final = timedelta(hours=1)
YEAR: Final = timedelta(days=365)


def unscheduled(scene: Scene, name: str = "report", generation: int = 0) -> ScheduleState:
    """A schedule that is not there yet."""
    stream_id = schedule_stream(scene.tenant_id, name, generation)
    return ScheduleState(stream_id=stream_id, tenant_id=scene.tenant_id)


def _writer(scene: Scene, state: ScheduleState) -> StreamWriter[ScheduleFold]:
    return StreamWriter(schedule_fold(state), scene.context(), state.stream_id)


def _written(writer: StreamWriter[ScheduleFold], fence: int = 0) -> tuple[Commit, ScheduleState]:
    write = stream_write(writer.fold, writer.events, fence)
    return Commit((write,), write.events), writer.fold.freeze()


def scheduled(
    scene: Scene,
    state: ScheduleState,
    next_at: datetime,
    *,
    name: str = "report",
    task: str = TASK,
    cron: str | None = "0 * * * *",
    arguments: dict[str, Any] | None = None,
    effect_id: str | None = None,
    generation: int = 0,
    version: str = "",
) -> tuple[Commit, ScheduleState]:
    """What scheduling it writes, and the schedule after that."""
    writer = _writer(scene, state)
    asked = ScheduleTask(
        task=task, cron=cron, run_at=None if cron else next_at, arguments=arguments, name=name
    )
    schedule(
        writer,
        asked,
        name=name,
        next_at=next_at,
        run_id=scene.new_id(),
        effect_id=effect_id or scene.new_id(),
        cause=scene.new_id(),
        generation=generation,
        orchestrator_version=version,
    )
    return _written(writer)


def fired(scene: Scene, due: DueSchedule, next_at: datetime | None = None) -> tuple[Commit, Case]:
    """What firing it writes: its event, and the signal and the run that come of it."""
    one = due.schedule
    assert one.next_at is not None
    signal_id, run_id = scene.new_id(), scene.new_id()
    writer = _writer(scene, due.state)
    event = fire(
        writer, due_at=one.next_at, next_at=next_at, signal_id=signal_id, run_id=run_id, cause=scene.new_id()
    )
    theirs, _ = _written(writer, due.head.fence)
    payload = codec.canonical({"schedule_id": one.id, "task": one.task, "scheduled_for": one.next_at})
    decision = decide(
        Case.new(one.tenant_id, signal_id, run_id),
        ReceiveSignal(
            signal_type="SCHEDULED_TASK",
            source_channel=CHANNEL,
            source_id=source_id(event),
            source_hash=content_hash(payload),
            normalized_payload=payload,
            received_at=one.next_at,
            cause=event.id,
        ),
        CreateRun(plan_id=one.task, run_type="SCHEDULED_TASK"),
        context=scene.context(),
    )
    return Commit.of(theirs, decision.commit), decision.case


async def put(scene: Scene, next_at: datetime, **named: Any) -> ScheduleState:
    """A schedule that is there."""
    place = unscheduled(scene, named.get("name", "report"), named.get("generation", 0))
    commit, state = scheduled(scene, place, next_at, **named)
    assert await scene.store.commit(commit) == Committed()
    return state


async def over(scene: Scene, name: str, *, cancelled: bool = False) -> ScheduleState:
    """A schedule that has fired for the last time, or was taken back."""
    state = await put(scene, scene.clock.now(), name=name, cron=None)
    if not cancelled:
        (found,) = [one for one in await due(scene) if one.schedule.name == name]
        await scene.store.commit(fired(scene, found)[0])
        return await stored(scene, state)
    writer = _writer(scene, state)
    cancel(writer, "")
    commit, state = _written(writer)
    await scene.store.commit(commit)
    return state


async def stones_of(scene: Scene, state: ScheduleState) -> tuple[Tombstone, ...]:
    streams = await scene.store.correlation(scene.tenant_id, state.stream_id)
    return bury(streams, archive="a", bundle="b", bundle_sha256="0" * 64, now=scene.clock.now())


async def rested(scene: Scene, **page: Any) -> list[Expired]:
    """What has rested for an hour."""
    now = scene.clock.now()
    resting = Resting(ended_before=now - HOUR, received_before=now - YEAR)
    return list(await scene.store.expired(resting, tenant_id=scene.tenant_id, **page))


async def due(scene: Scene, *tasks: str, until: datetime | None = None, **page: Any) -> list[DueSchedule]:
    until = until or scene.clock.now()
    return list(await scene.store.due_schedules(tasks=tasks or (TASK,), until=until, **page))


async def stored(scene: Scene, state: ScheduleState) -> ScheduleState:
    """The same as it is now."""
    stream = await scene.store.load(scene.tenant_id, state.stream_id)
    assert stream is not None
    after = stream.fold()
    assert isinstance(after, ScheduleState)
    return after


def canonical(rows: Sequence[Row]) -> list[bytes]:
    return [codec.encode([type(row).__name__, row]) for row in rows]


async def assert_stored(scene: Scene, state: ScheduleState) -> None:
    rows = await scene.store.rows(scene.tenant_id, state.stream_id)
    assert canonical(rows) == canonical(all_rows(state))
    assert await scene.store.get_schedule(scene.tenant_id, state.stream_id) == state.schedule
    assert await scene.findings(state.stream_id) == []


class ScheduleSuite(Suite):
    """Schedules: their streams, their rows, and that each time counts once."""

    async def test_the_row_of_a_schedule_is_the_fold_after_every_event(self, scene: Scene) -> None:
        """§ENT-30: large arguments stand in their event."""
        now = scene.clock.now()
        state = await put(scene, now, arguments={"text": "x" * 3000})
        await assert_stored(scene, state)
        (found,) = await due(scene)
        assert found.schedule == state.schedule
        assert (found.head.last_seq, found.head.head) == (1, state.head)
        commit, case = fired(scene, found, now + HOUR)
        await scene.store.commit(commit)
        assert (await scene.store.get_run(scene.tenant_id, case.run.stream_id)) == case.run.run
        scene.clock.advance(1)
        state = await stored(scene, state)
        assert state.schedule is not None
        assert (state.schedule.fired, state.schedule.last_run_id) == (1, case.run.stream_id)
        await assert_stored(scene, state)
        writer = _writer(scene, state)
        cancel(writer, "enough")
        commit, state = _written(writer)
        await scene.store.commit(commit)
        await assert_stored(scene, state)
        commit, state = scheduled(scene, state, now + 2 * HOUR, arguments={"n": 1})
        await scene.store.commit(commit)
        await scene.reopen()
        await assert_stored(scene, state)
        assert state.schedule is not None
        assert (state.schedule.version, state.schedule.fired) == (2, 1)
        assert list(await scene.store.self_check()) == []

    async def test_events_of_a_schedule_can_be_appended(self, scene: Scene) -> None:
        commit, state = scheduled(scene, unscheduled(scene), scene.clock.now())
        assert (await scene.store.append(draft(commit.events[0]))).persisted
        await assert_stored(scene, state)
        (found,) = await due(scene)
        assert found.schedule == state.schedule
        again, _ = scheduled(scene, unscheduled(scene), scene.clock.now())
        with pytest.raises(RunstoneError):  # its version is not the next
            await scene.store.append(draft(again.events[0]))

    async def test_what_is_due_comes_in_order_and_in_pages(self, scene: Scene) -> None:
        """§OUT-67: of all tenants, of known tasks, active, and not later than asked for."""
        now = scene.clock.now()
        other = scene.for_tenant(scene.new_id())
        await put(scene, now + timedelta(microseconds=1), name="late")
        await put(scene, now - HOUR, name="unknown", task="nobody's")
        done = await put(scene, now - 2 * HOUR, name="done", cron=None)
        commit, _ = fired(scene, (await due(scene))[0])
        await scene.store.commit(commit)
        times = {}
        for place, whose in enumerate((scene, other, scene, other, scene)):
            state = await put(whose, now - place // 2 * HOUR, name=f"n{place}")
            times[state.stream_id] = now - place // 2 * HOUR
        wanted = sorted((at, stream_id) for stream_id, at in times.items())
        found: list[tuple[datetime, str]] = []
        after = None
        while page := await due(scene, after=after, limit=2):
            assert len(page) <= 2
            assert all(one.head.stream_id == one.schedule.id for one in page)
            found += [(one.schedule.next_at or now, one.schedule.id) for one in page]
            after = found[-1]
        assert found == wanted
        assert done.stream_id not in times
        both = await due(scene, TASK, "nobody's", until=now + HOUR)
        assert {one.schedule.name for one in both} == {"late", "unknown", *(f"n{n}" for n in range(5))}
        assert await due(scene, "another") == []

    async def test_of_several_who_fire_it_one_does(self, scene: Scene) -> None:
        """§OUT-68: there is one run for it, whoever was first."""
        now = scene.clock.now()
        state = await put(scene, now)
        async with scene.fleet(2) as scenes:
            seen = [(await due(one))[0] for one in scenes]
            commits = [fired(scene, seen[place % 2], now + HOUR)[0] for place in range(8)]
            writing = [scenes[place % 2].store.commit(commit) for place, commit in enumerate(commits)]
            outcomes = await asyncio.gather(*writing, return_exceptions=True)
        assert outcomes.count(Committed()) == 1
        refused = [outcome for outcome in outcomes if outcome != Committed()]
        assert all(isinstance(outcome, CommitRefused) for outcome in refused), refused
        winner = commits[outcomes.index(Committed())]
        assert (await scene.store.commit(winner)).repeated
        runs = await scene.store.list_runs(scene.tenant_id)
        row = await scene.store.get_schedule(scene.tenant_id, state.stream_id)
        assert row is not None
        assert [run.id for run in runs] == [row.last_run_id]
        assert row.fired == 1
        assert await due(scene) == []
        assert await scene.findings(state.stream_id) == []

    async def test_what_was_replaced_or_taken_back_meanwhile_is_not_fired(self, scene: Scene) -> None:
        now = scene.clock.now()
        state = await put(scene, now)
        (seen,) = await due(scene)
        commit, state = scheduled(scene, state, now + HOUR)
        await scene.store.commit(commit)
        with pytest.raises(StaleSequence):
            await scene.store.commit(fired(scene, seen)[0])
        scene.clock.advance(HOUR)
        (seen,) = await due(scene)
        writer = _writer(scene, state)
        cancel(writer, "")
        await scene.store.commit(_written(writer)[0])
        with pytest.raises(StaleSequence):
            await scene.store.commit(fired(scene, seen)[0])
        assert list(await scene.store.list_runs(scene.tenant_id)) == []
        assert await due(scene) == []

    async def test_an_effect_schedules_once(self, scene: Scene) -> None:
        """§OUT-56."""
        effect_id = scene.new_id()
        commit, state = scheduled(scene, unscheduled(scene), scene.clock.now(), effect_id=effect_id)
        await scene.store.commit(commit)
        again, _ = scheduled(scene, state, scene.clock.now(), effect_id=effect_id)
        with pytest.raises(DuplicateKey):
            await scene.store.commit(again)

    async def test_neither_version_nor_count_falls(self, scene: Scene) -> None:
        """§TRN-38."""
        now = scene.clock.now()
        state = await put(scene, now)
        await scene.store.commit(fired(scene, (await due(scene))[0], now + HOUR)[0])
        state = await stored(scene, state)
        commit, state = scheduled(scene, state, now + HOUR)
        await scene.store.commit(commit)
        commit, after = scheduled(scene, state, now + HOUR)
        assert after.schedule is not None
        for less in ({"version": 1}, {"fired": 0}):
            forged = replace(commit.writes[0], rows=(replace(after.schedule, **less),))
            with pytest.raises(RunstoneError):
                await scene.store.commit(replace(commit, writes=(forged,)))
        assert await scene.store.commit(commit) == Committed()

    async def test_a_name_is_one_schedule_of_its_tenant(self, scene: Scene) -> None:
        """§ENT-31, §TEN-9."""
        now = scene.clock.now()
        state = await put(scene, now)
        other = scene.for_tenant(scene.new_id())
        theirs = await put(other, now)
        assert theirs.stream_id != state.stream_id
        assert await other.store.get_schedule(other.tenant_id, state.stream_id) is None
        assert await scene.store.find_schedule(scene.tenant_id, "report") == state.schedule
        assert await other.store.find_schedule(other.tenant_id, "report") == theirs.schedule
        assert await other.store.find_schedule(scene.new_id(), "report") is None
        assert await scene.store.find_schedule(scene.tenant_id, "Report") is None
        commit, twin = scheduled(scene, unscheduled(scene, "twin"), now, name="twin")
        assert twin.schedule is not None
        forged = replace(commit.writes[0], rows=(replace(twin.schedule, name="report"),))
        with pytest.raises(DuplicateKey):
            await scene.store.commit(replace(commit, writes=(forged,)))

    async def test_schedules_are_listed_by_name_in_pages(self, scene: Scene) -> None:
        now = scene.clock.now()
        await put(scene.for_tenant(scene.new_id()), now, name="0")
        names = ["1", "10", "2", "B", "a", "é"]
        for name in reversed(names):
            await put(scene, now, name=name, task="odd" if name in "1B" else TASK)
        found: list[Schedule] = []
        after = None
        while page := await scene.store.list_schedules(scene.tenant_id, after=after, limit=4):
            assert len(page) <= 4
            found += page
            after = page[-1].name
        assert [one.name for one in found] == names
        odd = await scene.store.list_schedules(scene.tenant_id, task="odd", status="ACTIVE")
        assert [one.name for one in odd] == ["1", "B"]
        assert list(await scene.store.list_schedules(scene.tenant_id, status="DONE")) == []
        assert list(await scene.store.list_schedules(scene.new_id())) == []

    async def test_the_row_of_a_schedule_can_be_made_again(self, scene: Scene) -> None:
        """§STO-40."""
        state = await put(scene, scene.clock.now())
        assert state.schedule is not None
        place = (scene.tenant_id, state.stream_id, state.last_seq)
        await scene.store.replace_rows(*place, [replace(state.schedule, task="spoilt")])
        assert await due(scene) == []
        await scene.store.replace_rows(*place, [])
        assert await scene.store.get_schedule(scene.tenant_id, state.stream_id) is None
        await scene.store.replace_rows(*place, all_rows(state))
        assert await scene.store.delete_strays() == 0
        await assert_stored(scene, state)
        assert len(await due(scene)) == 1

    async def test_an_active_schedule_stays_and_its_runs_do_not(self, scene: Scene) -> None:
        """§ORD-37, §ORD-40, §STO-56: each is a correlation of its own, and can be carried elsewhere alone."""
        now = scene.clock.now()
        state = await put(scene, now)
        commit, case = fired(scene, (await due(scene))[0], now + HOUR)
        await scene.store.commit(commit)
        assert case.run.run is not None
        for correlation_id in (state.stream_id, case.run.run.correlation_id):
            streams = await scene.store.correlation(scene.tenant_id, correlation_id)
            assert (await scene.store.commit(import_commit(unpack(pack(streams))))).repeated
        scene.clock.advance(YEAR)
        assert await rested(scene) == []
        with pytest.raises(CommitRefused, match="is active"):
            await scene.store.forget(await stones_of(scene, state))
        assert await scene.store.get_schedule(scene.tenant_id, state.stream_id) is not None

    async def test_what_is_over_and_has_rested_expires(self, scene: Scene) -> None:
        """§STO-56: with runs in one line, by when each began."""
        begun = []
        for number in range(6):
            if number % 2:
                begun.append((await over(scene, f"n{number}", cancelled=number == 3)).stream_id)
            else:
                case = await scene.running()
                case = await scene.carry(case, commands.ReturnHandler(result=msgspec.Raw(b"null")))
                assert case.run.run is not None
                begun.append(case.run.run.correlation_id)
            scene.clock.advance(1)
        await put(scene, scene.clock.now(), name="active")
        await over(scene.for_tenant(scene.new_id()), "theirs")
        scene.clock.advance(HOUR - timedelta(seconds=4))
        assert [one.correlation_id for one in await rested(scene)] == begun[:3]
        scene.clock.advance(4)
        seen: list[Expired] = []
        while page := await rested(scene, limit=2, after=seen[-1] if seen else None):
            assert len(page) <= 2
            seen += page
        assert [one.correlation_id for one in seen if one.correlation_id in begun] == begun
        schedule = next(one for one in seen if one.correlation_id == begun[1])
        assert (schedule.first_id, schedule.streams, schedule.events) == (begun[1], 1, 2)
        assert schedule.last_at == schedule.began_at

    async def test_one_that_is_over_goes_and_leaves_its_name(self, scene: Scene) -> None:
        """§STO-57: the next of that name has a stream of its own; the first comes back only without it."""
        gone = await over(scene, "report", cancelled=True)
        streams = await scene.store.correlation(scene.tenant_id, gone.stream_id)
        stones = await stones_of(scene, gone)
        assert await scene.store.forget(stones) is True
        assert await scene.store.forget(stones) is False
        for _ in range(2):
            assert await scene.store.get_schedule(scene.tenant_id, gone.stream_id) is None
            assert await scene.store.find_schedule(scene.tenant_id, "report") is None
            assert list(await scene.store.rows(scene.tenant_id, gone.stream_id)) == []
            assert await scene.store.load(scene.tenant_id, gone.stream_id) is None
            found = await scene.store.find_tombstone(scene.tenant_id, stream_id=gone.stream_id)
            assert (found,) == stones
            assert list(await scene.store.self_check()) == []
            await scene.reopen()
        again, _ = scheduled(scene, unscheduled(scene), scene.clock.now())
        with pytest.raises(DuplicateKey):
            await scene.store.commit(again)
        state = await put(scene, scene.clock.now(), generation=1)
        assert state.stream_id != gone.stream_id
        assert state.schedule is not None
        assert (state.schedule.version, state.schedule.fired) == (1, 0)
        await assert_stored(scene, state)
        assert await scene.store.find_schedule(scene.tenant_id, "report") == state.schedule
        with pytest.raises(DuplicateKey):
            await scene.store.commit(import_commit(streams))
        writer = _writer(scene, state)
        cancel(writer, "")
        await scene.store.commit(_written(writer)[0])
        assert await scene.store.forget(await stones_of(scene, state)) is True
        await scene.store.commit(import_commit(streams))
        await assert_stored(scene, gone)
        assert await scene.store.find_tombstone(scene.tenant_id, stream_id=gone.stream_id) is None

    async def test_who_schedules_it_again_wins_or_comes_too_late(self, scene: Scene) -> None:
        """§STO-39: it is archived as it was, or it goes on."""
        state = await over(scene, "report")
        stones = await stones_of(scene, state)
        commit, after = scheduled(scene, state, scene.clock.now())
        done = await asyncio.gather(
            scene.store.forget(stones), scene.store.commit(commit), return_exceptions=True
        )
        assert sum(isinstance(outcome, CommitRefused) for outcome in done) == 1
        if done[0] is True:
            assert await scene.store.get_schedule(scene.tenant_id, state.stream_id) is None
        else:
            await assert_stored(scene, after)
            with pytest.raises(StaleSequence):
                await scene.store.forget(stones)

    async def test_what_nobody_fires_is_told(self, scene: Scene) -> None:
        """§STO-54."""
        now = scene.clock.now()
        assert (await scene.store.vitals()).unfired == ()
        for name, at in (("b", now - HOUR), ("a", now), ("later", now + HOUR)):
            await put(scene, at, name=name, task="lost")
        await put(scene, now, name="c")
        lost, other = (await scene.store.vitals()).unfired
        assert (lost.task, lost.count, lost.since, lost.example) == ("lost", 2, now - HOUR, "b")
        assert lost.tenant_id == scene.tenant_id
        assert (other.task, other.count) == (TASK, 1)
