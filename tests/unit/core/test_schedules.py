"""Schedules: how they are made, fire and end, what is refused, and that they belong to no run (§ENT-30)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from runstone.core import codec, commands, payloads
from runstone.core.append import append_write, empty_state
from runstone.core.bundle import import_commit, pack, unpack
from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import Context, StreamWriter, stream_write
from runstone.core.decide import Case, decide
from runstone.core.decide.schedules import cancel, fire, schedule
from runstone.core.effect_specs import ScheduleTask
from runstone.core.events import Event, EventDraft
from runstone.core.fold import ScheduleFold, fold_stream, new_state, schedule_fold
from runstone.core.keys import content_hash, digest, entity_stream, schedule_stream
from runstone.core.rows import CHANGING, all_rows
from runstone.core.schedule import CHANNEL, Schedule, firing_place, source_id
from runstone.core.state import ScheduleState
from runstone.core.stream import Stream
from runstone.core.tombstone import Resting, bury, objection, unfinished
from runstone.core.verify import verify_causes, verify_events, verify_stream
from runstone.errors import CommandRefused, StateTransitionError
from tests.unit.core.build import LARGE, NOON, SECOND, TENANT, Ids, an_id, handed_over, raw

replace = msgspec.structs.replace
NIGHTLY = schedule_stream(TENANT, "nightly")
RUN, CAUSE = an_id(800), an_id(801)
HOUR = timedelta(hours=1)


class Record:
    """A schedule to which things happen, a second apart."""

    def __init__(self) -> None:
        self.new_id = Ids()
        self.now = NOON
        self.state = ScheduleState(stream_id=NIGHTLY, tenant_id=TENANT)
        self.events: list[Event] = []
        self.effects = 900

    def writer(self) -> StreamWriter[ScheduleFold]:
        context = Context(now=self.now, new_id=self.new_id, actor="dispatcher")
        return StreamWriter(schedule_fold(self.state), context, NIGHTLY)

    def take(self, writer: StreamWriter[ScheduleFold]) -> Schedule:
        write = stream_write(writer.fold, writer.events)
        assert write.rows == ((writer.fold.schedule,) if writer.fold.changed else ())
        self.events += write.events
        self.now += SECOND
        writer.hand_over()
        assert not writer.fold.changed
        self.state = writer.fold.freeze()
        assert self.state.schedule is not None
        return self.state.schedule

    def schedule(self, next_at: datetime = NOON + HOUR, name: str = "nightly", **given: Any) -> Schedule:
        writer = self.writer()
        self.effects += 1
        asked = ScheduleTask(**{"task": "report", "cron": "0 * * * *"} | given)
        effect_id = an_id(self.effects)
        schedule(writer, asked, name=name, next_at=next_at, run_id=RUN, effect_id=effect_id, cause=CAUSE)
        return self.take(writer)

    def fire(self, due_at: datetime = NOON + HOUR, next_at: datetime | None = None) -> Schedule:
        writer = self.writer()
        fire(writer, due_at=due_at, next_at=next_at, signal_id=an_id(1), run_id=an_id(2), cause=CAUSE)
        return self.take(writer)

    def cancel(self, reason: str = "enough") -> Schedule:
        writer = self.writer()
        cancel(writer, reason)
        return self.take(writer)

    @property
    def stream(self) -> Stream:
        return handed_over(self.state, self.events)


@pytest.fixture
def record() -> Record:
    return Record()


def test_the_stream_of_a_schedule_is_the_same_for_all_who_look_for_it() -> None:
    """§ENT-32: and another for another tenant or name, and for an entity of that name."""
    assert NIGHTLY.replace("-", "")[:12] == digest("schedule", TENANT, "nightly")[:12]
    others = [schedule_stream(an_id(1), "nightly"), schedule_stream(TENANT, "nightly ")]
    later = [schedule_stream(TENANT, "nightly", generation) for generation in (1, 2)]
    assert schedule_stream(TENANT, "nightly", 0) == NIGHTLY
    assert len({NIGHTLY, *others, *later, entity_stream(TENANT, "nightly", "")}) == 6


def test_one_of_a_name_that_was_archived_stands_where_its_generation_says() -> None:
    """§ENT-32"""
    stream_id = schedule_stream(TENANT, "nightly", 2)
    asked = ScheduleTask(task="report", cron="0 * * * *")
    given: dict[str, Any] = {"next_at": NOON, "run_id": RUN, "effect_id": an_id(901), "cause": CAUSE}
    for generation in (0, 1, 3):
        with pytest.raises(CommandRefused, match="is not that of the schedule"):
            schedule(_stream_writer(stream_id), asked, name="nightly", generation=generation, **given)
    writer = _stream_writer(stream_id)
    done = schedule(writer, asked, name="nightly", generation=2, orchestrator_version="7", **given)
    said = CATALOGUE.decode(done)
    assert isinstance(said, payloads.TaskScheduled)
    assert (said.generation, said.orchestrator_version) == (2, "7")
    assert writer.fold.version == 1


def test_one_of_the_first_version_reads_as_it_was_meant(record: Record) -> None:
    """§EVT-19: of no generation, and asked for by whatever version."""
    row = record.schedule()
    now = record.events[0]
    then = replace(now, event_version=1)
    said = CATALOGUE.read(then, payloads.TaskScheduled)
    assert now.event_version == 2
    assert said == CATALOGUE.read(now, payloads.TaskScheduled)
    assert (said.generation, said.orchestrator_version) == (0, "")
    folded = fold_stream(ScheduleState(stream_id=NIGHTLY, tenant_id=TENANT), [then])
    assert isinstance(folded, ScheduleState)
    assert folded.schedule == row


def _stream_writer(stream_id: str) -> StreamWriter[ScheduleFold]:
    state = ScheduleState(stream_id=stream_id, tenant_id=TENANT)
    context = Context(now=NOON, new_id=Ids(), actor="dispatcher")
    return StreamWriter(schedule_fold(state), context, stream_id)


def test_a_signal_is_known_by_its_firing_and_leads_to_it(record: Record) -> None:
    """§OUT-66"""
    record.schedule()
    record.fire()
    fired = record.events[-1]
    assert source_id(fired) == f"{NIGHTLY}:2:{fired.id}"
    assert firing_place(source_id(fired)) == (NIGHTLY, 2)
    assert firing_place("mail-7") is firing_place("a:b:c") is firing_place("a:²") is None


def test_it_is_scheduled_fires_and_is_done(record: Record) -> None:
    """§ENT-30, §EVT-26"""
    berlin = timezone(HOUR)
    due_at = NOON + HOUR
    first = record.schedule(due_at.astimezone(berlin), cron=None, run_at=due_at, arguments={"b": 1, "a": 2})
    assert first == Schedule(
        id=NIGHTLY,
        tenant_id=TENANT,
        name="nightly",
        version=1,
        task="report",
        cron=None,
        timezone="UTC",
        arguments=raw({"a": 2, "b": 1}),
        status="ACTIVE",
        next_at=due_at,
        fired=0,
        last_fired_at=None,
        last_run_id=None,
        run_id=RUN,
        effect_id=an_id(901),
        scheduled_seq=1,
        created_at=NOON,
        updated_at=NOON,
    )
    assert str(first.next_at) == str(due_at), "rows tell every time in UTC"
    done = record.fire(due_at)
    assert done == replace(
        first,
        status="DONE",
        next_at=None,
        fired=1,
        last_fired_at=NOON + SECOND,
        last_run_id=an_id(2),
        updated_at=NOON + SECOND,
    )
    told = [CATALOGUE.decode(event) for event in record.events]
    assert isinstance(told[0], payloads.TaskScheduled)
    assert (told[0].run_at, told[0].cron, told[0].effect_id) == (due_at, None, an_id(901))
    assert isinstance(told[1], payloads.TaskFired)
    assert (told[1].due_at, told[1].fired, told[1].signal_id) == (due_at, 1, an_id(1))
    assert {event.correlation_id for event in record.events} == {NIGHTLY}
    assert {event.causation_id for event in record.events} == {CAUSE}
    assert {event.run_id for event in record.events} == {None}


def test_it_fires_again_and_again_until_it_is_taken_back(record: Record) -> None:
    record.schedule()
    for number in range(1, 4):
        row = record.fire(NOON + number * HOUR, NOON + (number + 1) * HOUR)
        assert (row.status, row.fired, row.next_at) == ("ACTIVE", number, NOON + (number + 1) * HOUR)
    row = record.cancel("moved")
    assert (row.status, row.next_at, row.fired) == ("CANCELLED", None, 3)
    told = CATALOGUE.decode(record.events[-1])
    assert isinstance(told, payloads.ScheduleCancelled)
    assert told.reason == "moved"
    assert record.events[-1].causation_id == record.events[-2].id


@pytest.mark.parametrize("end", ["fire", "cancel", None])
def test_the_same_name_again_replaces_it(record: Record, end: str | None) -> None:
    """It counts on: no two firings of one name have the same number."""
    record.schedule(arguments={"text": LARGE})
    record.fire(NOON + HOUR, NOON + 2 * HOUR)
    if end:
        getattr(record, end)(*((NOON + 2 * HOUR,) if end == "fire" else ()))
    before = record.state.schedule
    assert before is not None
    assert record.state.large
    row = record.schedule(NOON + 9 * HOUR, task="other", timezone="Europe/Berlin")
    assert not record.state.large
    assert (row.version, row.task, row.status) == (2, "other", "ACTIVE")
    assert (row.fired, row.last_run_id, row.created_at) == (before.fired, before.last_run_id, NOON)
    assert row.scheduled_seq == record.state.last_seq
    assert record.fire(NOON + 9 * HOUR).fired == before.fired + 1


def test_large_arguments_stand_in_their_event(record: Record) -> None:
    row = record.schedule(arguments={"text": LARGE})
    assert bytes(row.arguments).startswith(b'{"$event"')
    assert record.state.whole(row.arguments) == raw({"text": LARGE})
    assert record.fire(next_at=NOON + 2 * HOUR).arguments == row.arguments
    assert all_rows(record.state) == (record.state.schedule,)


def test_what_changes_of_a_row(record: Record) -> None:
    """A store writes no other column again."""
    rows = [record.schedule(), record.fire(next_at=NOON + 2 * HOUR), record.cancel()]
    rows.append(record.schedule(NOON + 5 * HOUR, task="other", cron="5 * * * *", arguments={"a": 1}))
    fields = Schedule.__struct_fields__
    moved = {name for name in fields if len({codec.encode(getattr(row, name)) for row in rows}) > 1}
    assert moved <= set(CHANGING[Schedule])
    assert [name for name in fields if name in CHANGING[Schedule]] == list(CHANGING[Schedule])


def test_an_effect_and_a_firing_have_keys_that_nobody_has_twice(record: Record) -> None:
    """§OUT-56, §OUT-68"""
    record.schedule()
    record.effects -= 1  # the same effect once more
    record.schedule()
    assert record.events[0].idempotency_key == record.events[1].idempotency_key
    record.fire(next_at=NOON + 2 * HOUR)
    lost = record.writer()
    record.fire(NOON + 2 * HOUR, NOON + 3 * HOUR)
    late = fire(lost, due_at=NOON + 2 * HOUR, next_at=None, signal_id=an_id(8), run_id=an_id(9), cause=CAUSE)
    assert late.idempotency_key == record.events[-1].idempotency_key
    assert len({event.idempotency_key for event in record.events[2:]}) == 2


def test_what_is_not_there_does_not_fire_and_is_not_cancelled(record: Record) -> None:
    with pytest.raises(StateTransitionError):
        record.fire()
    with pytest.raises(CommandRefused, match="There is no schedule"):
        record.cancel()


@pytest.mark.parametrize("end", ["fire", "cancel"])
def test_what_has_ended_does_not_fire_and_is_not_cancelled(record: Record, end: str) -> None:
    record.schedule()
    getattr(record, end)()
    with pytest.raises(StateTransitionError):
        record.fire(NOON + 9 * HOUR)
    with pytest.raises(CommandRefused, match="nothing to cancel"):
        record.cancel()


def test_a_time_that_has_not_come_or_does_not_go_on_is_refused(record: Record) -> None:
    record.schedule()
    with pytest.raises(CommandRefused, match="not due before"):
        record.fire(NOON + HOUR - SECOND)
    with pytest.raises(CommandRefused, match="cannot be due next"):
        record.fire(NOON + HOUR, NOON + HOUR)
    assert record.fire(NOON + 5 * HOUR, NOON + 6 * HOUR).fired == 1, "those before were missed"


def test_events_that_do_not_go_on_from_what_is_there_are_refused(record: Record) -> None:
    record.schedule()
    scheduled = CATALOGUE.decode(record.events[0])
    assert isinstance(scheduled, payloads.TaskScheduled)
    fired = payloads.TaskFired(due_at=NOON + HOUR, fired=2, signal_id=an_id(1), run_id=an_id(2))
    for odd, why in (
        (scheduled, "its next cannot be 1"),
        (replace(scheduled, version=3), "its next cannot be 3"),
        (replace(scheduled, version=2, name="other"), "is not that of the schedule 'other'"),
        (fired, "cannot be number 2"),
    ):
        with pytest.raises(CommandRefused, match=why):
            record.writer().record(odd)


def test_it_is_appended_as_it_is_committed(record: Record) -> None:
    record.schedule()
    record.fire(next_at=NOON + 2 * HOUR)
    fields = EventDraft.__struct_fields__
    drafts = [EventDraft(**{name: getattr(event, name) for name in fields}) for event in record.events]
    state = empty_state(drafts[0])
    assert state == new_state("SCHEDULE", NIGHTLY, TENANT)
    for draft in drafts:
        write, state = append_write(state, draft, 0)
        assert write.kind == "SCHEDULE"
    assert state == record.state == fold_stream(new_state("SCHEDULE", NIGHTLY, TENANT), record.events)


def test_it_is_proven_and_carried_by_itself(record: Record) -> None:
    """§ORD-39"""
    record.schedule()
    record.cancel()
    (carried,) = unpack(pack([record.stream]))
    assert import_commit([carried]).writes[0].rows == all_rows(record.state)
    assert verify_stream(record.stream, all_rows(record.state)) == []
    assert verify_causes([record.stream]) == []
    spoilt = replace(record.events[1], causation_id=record.events[1].id)
    assert verify_events(replace(record.stream, events=(record.events[0], spoilt)))


def test_it_is_kept_as_long_as_it_is_active_and_as_a_run_after_that(record: Record) -> None:
    """§STO-56"""
    never = NOON - 1000 * HOUR
    record.schedule(cron=None, run_at=NOON)
    assert objection([record.stream], Resting(ended_before=record.now, received_before=never))
    record.cancel()
    assert unfinished([record.stream]) is None
    rested = Resting(ended_before=record.stream.head.last_at, received_before=never)
    assert objection([record.stream], rested) is None
    assert objection([record.stream], Resting(ended_before=never, received_before=record.now))
    record.schedule()
    assert unfinished([record.stream]) == f"schedule {NIGHTLY} is active"
    (stone,) = bury([record.stream], archive="a", bundle="b", bundle_sha256="0" * 64, now=record.now)
    assert (stone.kind, stone.correlation_id, stone.source_id) == ("SCHEDULE", NIGHTLY, None)


def test_a_state_without_its_history_goes_on_as_one_with_it(record: Record) -> None:
    """Who fires a schedule has its row and its head, and no more."""
    record.schedule(arguments={"text": LARGE})
    bare = replace(record.state, causes={}, large={}, last_event=None)
    with_it, without = record.writer(), record.writer()
    without.fold = schedule_fold(bare)
    for writer in (with_it, without):
        writer.context = replace(writer.context, new_id=Ids())
        fire(
            writer,
            due_at=NOON + HOUR,
            next_at=NOON + 2 * HOUR,
            signal_id=an_id(1),
            run_id=an_id(2),
            cause=CAUSE,
        )
    assert with_it.events == without.events
    assert with_it.fold.schedule == without.fold.schedule
    assert with_it.fold.seal_head() == without.fold.seal_head()


def _case(channel: str, cause: str | None) -> tuple[Stream, ...]:
    """A signal from this door and its run, as streams."""
    context = Context(now=NOON, new_id=Ids(), actor="test")
    payload = raw({"schedule_id": NIGHTLY, "task": "report", "scheduled_for": "2026-03-01T12:00:00Z"})
    decision = decide(
        Case.new(TENANT, an_id(1), an_id(2)),
        commands.ReceiveSignal(
            signal_type="SCHEDULED_TASK",
            source_channel=channel,
            source_id="1",
            source_hash=content_hash(payload),
            normalized_payload=payload,
            received_at=NOON,
            cause=cause,
        ),
        commands.CreateRun(plan_id="report", run_type="SCHEDULED_TASK"),
        context=context,
    )
    signal, run = decision.commit.writes
    return handed_over(decision.case.signal, signal.events), handed_over(decision.case.run, run.events)


def test_the_cause_of_a_scheduled_signal_lies_elsewhere(record: Record) -> None:
    """§ORD-40: and only of the signal itself, and only if a schedule has sent it."""
    streams = _case(CHANNEL, CAUSE)
    assert verify_causes(streams) == []
    assert unpack(pack(streams)) == streams
    assert verify_causes(_case(CHANNEL, None)) == []
    (finding, *_) = verify_causes(_case("inbox", CAUSE))
    assert finding.check == "causation"
    signal, run = streams
    torn = replace(run, events=(replace(run.events[0], causation_id=CAUSE),))
    assert [found.stream_id for found in verify_causes([signal, torn])] == [run.head.stream_id]
    odd = replace(signal, events=(replace(signal.events[0], event_data=raw([1])),))
    assert verify_causes([odd, run])
