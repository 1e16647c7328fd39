"""Entities: what a change makes of one, what is refused, and that they belong to no run (§ENT-26)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runstone.core import codec, payloads
from runstone.core.append import append_write, empty_state
from runstone.core.bundle import import_commit, pack, unpack
from runstone.core.catalogue import CATALOGUE
from runstone.core.commit import Commit, Context, StreamWriter, stream_write
from runstone.core.decide.entities import update
from runstone.core.effect_specs import SorUpdate
from runstone.core.entity import Entity
from runstone.core.events import Event, EventDraft
from runstone.core.fold import EntityFold, entity_fold, fold_stream, new_state
from runstone.core.fold.entities import pass_over
from runstone.core.keys import content_hash, digest, entity_stream
from runstone.core.payloads import ErrorInfo
from runstone.core.rows import all_rows
from runstone.core.state import EntityState
from runstone.core.stream import Stream
from runstone.core.tombstone import Resting, bury, objection, unfinished
from runstone.core.verify import verify_causes, verify_events, verify_stream
from runstone.errors import CommandRefused, InvalidPayload
from tests.unit.core.build import LARGE, NOON, SECOND, TENANT, Ids, an_id, handed_over, plain, raw

replace = msgspec.structs.replace
CASE = entity_stream(TENANT, "CASE", "42")
RUN, CAUSE = an_id(800), an_id(801)


class Record:
    """An entity to which changes are made, a second apart."""

    def __init__(self) -> None:
        self.new_id = Ids()
        self.now = NOON
        self.state = EntityState(stream_id=CASE, tenant_id=TENANT)
        self.events: list[Event] = []
        self.commits: list[Commit] = []
        self.effects = 900

    def writer(self) -> StreamWriter[EntityFold]:
        context = Context(now=self.now, new_id=self.new_id, actor="dispatcher")
        return StreamWriter(entity_fold(self.state), context, CASE)

    def attempt(self, change: dict[str, Any], **given: Any) -> tuple[StreamWriter[EntityFold], Any]:
        writer = self.writer()
        self.effects += 1
        fields = {"entity_type": "CASE", "entity_id": "42", "change": change, "evidence_pack": {"a": 1}}
        asked = SorUpdate(**fields | given)
        key = f"key {self.effects}"
        return writer, update(writer, asked, key=key, run_id=RUN, effect_id=an_id(self.effects), cause=CAUSE)

    def change(self, change: dict[str, Any], **given: Any) -> Entity:
        writer, done = self.attempt(change, **given)
        assert isinstance(done, Event)
        self.events += writer.events
        write = stream_write(writer.fold, writer.events)
        self.commits.append(Commit((write,), write.events))
        self.now += SECOND
        self.state = writer.fold.freeze()
        assert self.state.entity is not None
        return self.state.entity

    def data(self) -> Any:
        assert self.state.entity is not None
        return plain(self.state.whole(self.state.entity.data))

    @property
    def stream(self) -> Stream:
        return handed_over(self.state, self.events)


@pytest.fixture
def record() -> Record:
    return Record()


def test_the_stream_of_an_entity_is_the_same_for_all_who_look_for_it() -> None:
    """§ENT-28: and another for another tenant, type or id, however they are written."""
    assert entity_stream(TENANT, "CASE", "42") == CASE
    assert CASE.replace("-", "")[:12] == digest("entity", TENANT, "CASE", "42")[:12]
    others = [
        (an_id(1), "CASE", "42"),
        (TENANT, "CAS", "E42"),
        (TENANT, "CASE4", "2"),
        (TENANT, "42", "CASE"),
    ]
    assert len({CASE, *(entity_stream(*other) for other in others)}) == 5


def test_a_change_is_merged_and_told_whole(record: Record) -> None:
    """§OUT-28, §ENT-26"""
    first = record.change({"status": "OPEN", "owner": {"name": "Ann", "since": 3}})
    second = record.change(
        {"status": None, "owner": {"since": None, "room": 7}}, evidence_pack={"mail": "m-1"}
    )
    assert record.data() == {"owner": {"name": "Ann", "room": 7}}
    event = record.events[-1]
    told = CATALOGUE.decode(event)
    assert isinstance(told, payloads.EntityUpdated)
    assert plain(told.data) == record.data()
    assert bytes(told.change) == b'{"owner":{"room":7,"since":null},"status":null}'
    assert second == Entity(
        id=CASE,
        tenant_id=TENANT,
        entity_type="CASE",
        entity_id="42",
        version=2,
        data=told.data,
        evidence_pack=raw({"mail": "m-1"}),
        source_id="orchestrator:key 902",
        source_hash=content_hash(told.change),
        timestamp=NOON + SECOND,
        inference=False,
        run_id=RUN,
        effect_id=an_id(902),
        created_at=NOON,
        updated_at=NOON + SECOND,
    )
    assert (first.version, first.created_at, first.updated_at) == (1, NOON, NOON)


def test_its_events_belong_to_no_run(record: Record) -> None:
    """§ORD-37, §ORD-38"""
    record.change({"a": 1})
    (event,) = record.events
    assert (event.stream_id, event.correlation_id, event.aggregate_id) == (CASE, CASE, CASE)
    assert (event.run_id, event.causation_id, event.aggregate_type) == (None, CAUSE, "ENTITY")
    (write,) = record.commits[0].writes
    assert (write.kind, write.expected_seq, write.last_seq, write.queue_changed) == ("ENTITY", 0, 1, False)
    assert write.rows == (record.state.entity,)


def test_an_effect_has_one_key_in_the_stream_whatever_comes_before_it(record: Record) -> None:
    """§OUT-56"""
    _, done = record.attempt({"a": 1})
    record.effects -= 1
    record.change({"b": 1}, entity_type="CASE")
    record.effects -= 1
    _, again = record.attempt({"c": 1})
    assert done.idempotency_key == again.idempotency_key == record.events[0].idempotency_key
    assert record.attempt({"d": 1})[1].idempotency_key != again.idempotency_key


@pytest.mark.parametrize(("expected", "fits"), [(None, True), (1, True), (0, False), (2, False)])
def test_a_caller_may_say_which_version_it_saw(record: Record, expected: int | None, fits: bool) -> None:
    record.change({"a": 1}, expected_version=0)
    writer, done = record.attempt({"a": 2}, expected_version=expected)
    if fits:
        assert writer.fold.version == 2
    else:
        assert isinstance(done, ErrorInfo)
        assert (done.code, done.retryable, writer.events) == ("VERSION_CONFLICT", False, [])
        assert "version 1" in done.message


def test_no_change_was_carried_out_before_the_one_that_it_follows(record: Record) -> None:
    """§ORD-23: nor does its provenance say so, though its writer's clock is behind."""
    first = record.change({"a": 1})
    record.now -= SECOND * 60
    second = record.change({"a": 2})
    assert first.timestamp == second.timestamp == second.updated_at == NOON


def test_the_next_change_needs_the_first_and_the_last(record: Record) -> None:
    """What lies between need not be read, however much it is."""
    for number in range(5):
        record.change({f"k{number}": LARGE if number % 2 else number})
    empty = EntityState(stream_id=CASE, tenant_id=TENANT)
    begun = pass_over(fold_stream(empty, record.events[:1]), 4)
    assert fold_stream(begun, record.events[4:]) == record.state


def test_what_would_be_too_large_is_refused(record: Record) -> None:
    record.change({"a": "x" * (codec.MAX_BYTES // 2)})
    with pytest.raises(InvalidPayload, match="over the bound"):
        record.change({"b": "x" * (codec.MAX_BYTES // 2)})


def test_a_large_entity_stands_in_its_event_and_only_the_latest_is_kept(record: Record) -> None:
    """§PAY-16"""
    record.change({"text": LARGE}, evidence_pack=LARGE)
    entity = record.change({"more": 1})
    assert plain(entity.data)["$event"] == record.events[-1].id
    assert plain(entity.data)["field"] == "data"
    assert record.data() == {"text": LARGE, "more": 1}
    assert set(record.state.large) == {f"{record.events[-1].id}/data"}
    small = record.change({"text": None})
    assert plain(small.data) == {"more": 1}
    assert record.state.large == {}


def test_the_fold_of_the_log_is_what_the_commits_wrote(record: Record) -> None:
    """§ENG-2"""
    for number in range(4):
        record.change({"n": number, "text": LARGE if number == 2 else None})
        empty = new_state("ENTITY", CASE, TENANT)
        assert fold_stream(empty, record.events) == record.state
        assert record.commits[-1].writes[0].rows == all_rows(record.state)
    assert all_rows(new_state("ENTITY", CASE, TENANT)) == ()
    assert record.stream.fold() == record.state
    assert verify_stream(record.stream, all_rows(record.state)) == []


def test_nothing_new_is_no_row(record: Record) -> None:
    record.change({"a": 1})
    fold = entity_fold(record.state)
    assert not fold.changed
    writer, _ = record.attempt({"a": 2})
    assert writer.fold.changed
    writer.hand_over()
    assert not writer.fold.changed


def test_events_that_do_not_follow_are_refused(record: Record) -> None:
    record.change({"a": 1})
    record.change({"a": 2})
    second = record.events[1]
    fields = msgspec.json.decode(second.event_data)
    for change, why in (
        ({"version": 3}, "its next cannot be 3"),
        ({"version": 1}, "its next cannot be 1"),
        ({"entity_id": "43"}, "is not that of CASE '43'"),
        ({"entity_type": "case"}, "is not that of case '42'"),
    ):
        forged = replace(second, event_data=raw(fields | change))
        with pytest.raises(CommandRefused, match=why):
            fold_stream(new_state("ENTITY", CASE, TENANT), [record.events[0], forged])


def test_a_change_can_be_appended(record: Record) -> None:
    """§STO-4"""
    record.change({"a": 1})
    (event,) = record.events
    draft = EventDraft(**{name: getattr(event, name) for name in EventDraft.__struct_fields__})
    write, after = append_write(empty_state(draft), draft, 0)
    assert (write, after) == (record.commits[0].writes[0], record.state)


def test_its_causes_lie_elsewhere(record: Record) -> None:
    """§ORD-39: a circle is found all the same."""
    record.change({"a": 1})
    record.change({"a": 2})
    assert verify_events(record.stream) == []
    assert verify_causes([record.stream]) == []
    first, second = record.events
    circle = (replace(first, causation_id=second.id), replace(second, causation_id=first.id))
    assert [finding.check for finding in verify_causes([replace(record.stream, events=circle)])] == [
        "causation",
        "causation",
    ]


def test_it_can_be_carried_by_itself(record: Record) -> None:
    """§STO-43 to §STO-46"""
    record.change({"a": 1})
    record.change({"text": LARGE})
    streams = unpack(pack([record.stream]))
    commit = import_commit(streams)
    (write,) = commit.writes
    assert (write.kind, write.rows, write.last_seq) == ("ENTITY", all_rows(record.state), 2)
    assert commit.events == tuple(record.events)


def test_it_does_not_end(record: Record) -> None:
    """§STO-56"""
    record.change({"a": 1})
    assert unfinished([record.stream]) == f"entity {CASE} outlives the runs that write to it"
    later = NOON + SECOND * 10_000
    assert "outlives" in (
        objection([record.stream], Resting(ended_before=later, received_before=later)) or ""
    )
    (stone,) = bury([record.stream], archive="a", bundle="b", bundle_sha256="0" * 64, now=later)
    assert (stone.kind, stone.source_id, stone.signal_id, stone.run_key) == ("ENTITY", None, None, None)
